"""A server of the test's own that hands out files, interrupts, or stalls."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from data_files import cifar10_members, tarred

from balcal.data import download as places
from balcal.data.download import OFFLINE


class Shop(BaseHTTPRequestHandler):
    """Hands out `content`; as often as `interruptions` says it hangs up half-way."""

    content, interruptions, asked = b"", 0, 0
    stalled = None
    """an event that is set once half of a file has been sent; then nothing more comes"""

    def do_GET(self):
        Shop.asked += 1
        if self.path.startswith("/absent"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        if Shop.stalled:
            self.wfile.write(self.content[: len(self.content) // 2])
            self.wfile.flush()
            Shop.stalled.set()
            self.rfile.read(1)  # ends when the other side does
            return
        broken = Shop.asked <= Shop.interruptions
        self.wfile.write(self.content[: len(self.content) // 2] if broken else self.content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def shop(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    Shop.content, Shop.interruptions, Shop.asked, Shop.stalled = b"", 0, 0, None
    monkeypatch.delenv(OFFLINE, raising=False)
    monkeypatch.setattr(places.time, "sleep", lambda seconds: None)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def archive(tmp_path):
    return tarred(tmp_path / "small.tar.gz", cifar10_members("cifar-10-batches-py", "py")[0])
