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
