"""The serving example beside plain onnxruntime: latency of one request, and requests per second of two clients.

python bench/serve.py [ROUNDS]

The server is a process of its own (`examples/serve/app.py`), asked over loopback with kept-alive connections.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
from side_by_side import ratio, report, take_turns

from balcal.deploy.export import export_run
from balcal.evaluation.judge import load_splits
from balcal.registry import recipe
from balcal.training.fit import train_recipe

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
APP = Path(__file__).parents[1] / "examples" / "serve" / "app.py"
SIZES = (1, 64)
SECONDS = 3.0
RAW = {"Content-Type": "application/octet-stream"}


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def connect(port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection: http.client.HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> None:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, content[:200]


def per_second(what: list, seconds: float = SECONDS) -> float:
    """Calls of all together, each in a thread of its own."""
    ends, counts = time.perf_counter() + seconds, [0] * len(what)

    def work(number: int) -> None:
        while time.perf_counter() < ends:
            what[number]()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(what))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def main() -> None:
    with TemporaryDirectory() as folder:
        wanted = recipe("fashion-few", "balcal-auto", 0, ["plan.epochs=1"])
        run = train_recipe(wanted, folder, "cpu", quiet=True)["run"]
        file = Path(folder) / "model.onnx"
        export_run(run, "onnx", file, posthoc="ts", most=64, accuracy=0.9)
        images = load_splits(wanted.task).test.images.numpy()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        port = free_port()
        server = subprocess.Popen([sys.executable, str(APP), str(file), "--port", str(port)])
        try:
            report("serve", f"python bench/serve.py {ROUNDS}", measure(session, images, waited_for(port)))
        finally:
            server.terminate()
            server.wait()


def waited_for(port: int) -> int:
    for _ in range(600):
        try:
            connect(port).close()
        except OSError:
            time.sleep(0.2)
        else:
            return port
    raise SystemExit("the server does not answer")


def measure(session: onnxruntime.InferenceSession, images: np.ndarray, port: int) -> dict:
    figures: dict = {"model": "fashion-few balcal-auto, ONNX, one thread", "unit": "milliseconds, images per second"}
    for size in SIZES:
        some = np.ascontiguousarray(images[:size])
        raw, text = some.tobytes(), json.dumps({"images": some.tolist()}).encode()
        kept = connect(port)
        turns = {
            "onnxruntime": lambda some=some: session.run(["probs", "accept", "set"], {"images": some}),
            "served, bytes": lambda raw=raw, kept=kept: ask(kept, "/predict/bytes", raw, RAW),
            "served, JSON": lambda text=text, kept=kept: ask(
                kept, "/predict", text, {"Content-Type": "application/json"}
            ),
        }
        seconds = take_turns(turns, ROUNDS)
        found: dict = {}
        for name, each in seconds.items():
            middle, late = np.quantile(each, [0.5, 0.95]) * 1000
            found[name] = {"median ms": round(middle, 3), "95 % ms": round(late, 3)}
            if name != "onnxruntime":
                found[name]["against onnxruntime"] = ratio(seconds, name, "onnxruntime")
        clients = [connect(port) for _ in range(2)]
        alone = per_second([turns["onnxruntime"]] * 2)
        served = per_second([lambda c=client, raw=raw: ask(c, "/predict/bytes", raw, RAW) for client in clients])
        found["images per second, two clients"] = {
            "onnxruntime": round(alone * size),
            "served, bytes": round(served * size),
            "ratio": round(served / alone, 3),
        }
        figures[f"batch of {size}"] = found
    return figures


if __name__ == "__main__":
    main()
