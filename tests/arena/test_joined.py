"""Joined runs in an arena: each member is trained once, by whoever does the work, and the table says what it costs."""

import csv
import io
import json

import pytest

from balcal import arena
from balcal.runs import Run
from balcal.runtime.files import save_sealed_json

METHODS, SETTINGS = ("vanilla", "2*vanilla"), ("plan.epochs=2",)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    runs = tmp_path_factory.mktemp("alone")
    return arena.run("digits", METHODS, 2, settings=SETTINGS, runs=runs, quiet=True)


def test_each_member_is_trained_once_and_the_table_has_the_cost(alone):
    assert not alone.complaints
    assert [(run.method, run.seed) for run in alone.runs] == [
        *(("vanilla", 0), ("vanilla", 1), ("2*vanilla", 0), ("vanilla", 2), ("2*vanilla", 1)),
    ]
    assert alone.trainings == {"vanilla": 1, "vanilla+ts": 1, "2*vanilla": 2, "2*vanilla+ts": 2}
    titles, _, *lines = alone.table().splitlines()
    assert titles.endswith("| trainings |")
    assert [line.split("|")[-2].strip() for line in lines[:4]] == ["1", "1", "2", "2"]
    assert "share members" in alone.table()
    rows = list(csv.DictReader(io.StringIO(alone.table("csv"))))
    assert [row["trainings"] for row in rows] == ["1", "1", "2", "2"]
    again = arena.ArenaResult.of(json.loads(json.dumps(alone.as_dict())))
    assert again.trainings == alone.trainings


def test_a_cluster_gives_the_same_numbers(alone, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install 'balcal[dask]'")
    monkeypatch.setenv("DASK_LOGGING__DISTRIBUTED", "critical")
    places = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**places, local_directory=str(tmp_path / "dask")) as cluster:
        settings = {"settings": SETTINGS, "runs": tmp_path, "scheduler": cluster.scheduler_address, "quiet": True}
        found = arena.run("digits", METHODS, 2, **settings)
    assert not found.complaints
    assert [cell.figures for cell in found.cells] == [cell.figures for cell in alone.cells]


def test_a_member_that_fails_fails_what_joins_it(tmp_path):
    runs = {seed: Run(tmp_path, arena.entries.registry.recipe("digits", "vanilla", seed, SETTINGS)) for seed in (0, 1)}
    save_sealed_json(runs[1].checkpoints, "finished", {})  # damaged: no record of a run
    damaged = runs[1].checkpoints / "state-e0001-s000000.0123456789abcdef.pt"
    damaged.write_bytes(b"nonsense")
    found = arena.run("digits", ["2*vanilla"], 1, settings=SETTINGS, runs=tmp_path, quiet=True)
    assert found.cell("2*vanilla", 0).error == f"the run that it joins, {runs[1].recipe.address()}, has failed"
    assert runs[0].finished
