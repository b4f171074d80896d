"""A local server that serves files, breaks off, or stalls."""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from data_files import cifar10_members, tarred

from balcal.data import download
from balcal.data.download import OFFLINE


class DownloadServer(BaseHTTPRequestHandler):
    """Serves `content`. The first `interruptions` requests are broken off half-way."""

    content, interruptions, asked = b"", 0, 0
    stalled = None
    """an event that is set once half of a file has been sent; then nothing more comes"""

    def do_GET(self):
        DownloadServer.asked += 1
        if self.path.startswith("/absent"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        if DownloadServer.stalled:
            self.wfile.write(self.content[: len(self.content) // 2])
            self.wfile.flush()
            DownloadServer.stalled.set()
            with suppress(ConnectionResetError):
                self.rfile.read(1)  # ends when the other side does
            return
        broken = DownloadServer.asked <= DownloadServer.interruptions
        self.wfile.write(self.content[: len(self.content) // 2] if broken else self.content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server_url(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), DownloadServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    DownloadServer.content, DownloadServer.stalled = b"", None
    DownloadServer.interruptions = DownloadServer.asked = 0
    monkeypatch.delenv(OFFLINE, raising=False)
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def archive(tmp_path):
    return tarred(tmp_path / "small.tar.gz", cifar10_members("cifar-10-batches-py", "py")[0])
