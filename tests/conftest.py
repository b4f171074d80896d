"""Tests share two cores: one thread each."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
os.environ["DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT"] = "600s"  # a cluster on a busy machine is slow, not dead
os.environ["DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP"] = "600s"
os.environ["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "600s"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("balcal", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("balcal")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


EXTRAS = {  # what `pip install 'balcal[NAME]'` brings, and the tests that need it
    "onnx": ("deploy/test_export",),
    "lightning": ("adapters/test_lightning",),
    "huggingface": ("adapters/test_huggingface", "test_zoo.py::test_a_foreign_model_goes_all_the_way[bert]"),
    "dask": ("test_a_cluster",),
    "timm": ("test_timm", "all_the_way[timm_"),
    "laplace-torch": ("laplace_torch",),
    "encoders": ("encoder_learns", "sentence_vectors"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "a browser": ("report/test_browser",),
}


def pytest_terminal_summary(terminalreporter):
    """Say of each extra whether its tests ran, and why not."""
    outcomes = {kind: terminalreporter.stats.get(kind, []) for kind in ("passed", "failed", "skipped")}
    lines = []
    for name, marks in EXTRAS.items():
        found = {
            kind: [each for each in reports if any(mark in each.nodeid for mark in marks)]
            for kind, reports in outcomes.items()
        }
        ran, skipped = len(found["passed"]) + len(found["failed"]), found["skipped"]
        if ran or skipped:
            why = sorted({str(each.longrepr[2]).removeprefix("Skipped: ") for each in skipped})
            lines.append(f"{name}: {ran} ran" + (f", {len(skipped)} skipped ({'; '.join(why)})" if skipped else ""))
    if lines:
        terminalreporter.section("extras")
        for line in lines:
            terminalreporter.write_line(line)
