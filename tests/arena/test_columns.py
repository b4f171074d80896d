"""A column is one row of `COLUMNS`: add it, and it is computed, compared, and shown everywhere."""

import csv
import io
import json

import numpy as np
import pytest
from command_line import balcal_cli
from pages import Page

from balcal import arena, metrics
from balcal.arena.columns import COLUMNS, Column, SampleMeans
from balcal.core import BalcalError
from balcal.metrics.scoring import entropies
from balcal.plots.arena import differences
from balcal.registry import recipe
from balcal.report.arena import arena_page
from balcal.runs import Run

ASKED = ["digits", "--methods", "vanilla,balcal", "--seeds", "2", "--set", "plan.epochs=1", "--quiet"]
METRIC = Column("smooth_ece", "smECE", percent=True)
OWN = Column(
    "sharpness",
    "sharpness",
    higher=True,
    compared=SampleMeans(lambda rows: -entropies(rows)),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings, out = ["plan.epochs=1"], folder / "older.json"
    arena.run("digits", ["vanilla", "balcal"], 2, settings=settings, runs=folder, out=out, quiet=True)
    return folder


@pytest.mark.parametrize("column", [METRIC, OWN], ids=lambda column: column.name)
def test_one_row_is_enough(column, runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(COLUMNS, column.name, column)

    def printed(format):
        code, out, err = balcal_cli("arena", *ASKED, "--runs", runs, "--format", format, capsys=capsys)
        assert (code, err) == (0, "")
        return out

    of_seeds = [Run(runs, recipe("digits", "vanilla", seed, ["plan.epochs=1"])) for seed in (0, 1)]
    tests = [run.load_predictions("test") for run in of_seeds]
    found = [metrics.summary(log_probs=test.log_probs, labels=test.labels) for test in tests]
    values = [each["smooth_ece"] if column is METRIC else -each["entropy"] for each in found]
    shown = f"{column.shown(np.mean(values))} ± {column.shown(np.std(values, ddof=1))}"

    told = json.loads(printed("json"))
    assert told["rows"][0][column.name]["values"] == pytest.approx(values)
    assert [cell["figures"][column.name] for cell in told["cells"][:2]] == pytest.approx(values)
    assert (column.name in told["chance"]) == (column is OWN)
    markdown = printed("markdown").splitlines()
    assert markdown[0].endswith(f"| {column.title}{' %' if column.percent else ''} |")
    assert shown in markdown[2].split("|")[-2]
    assert len({line.count("|") for line in markdown[:6]}) == 1
    assert ("No comparison in smECE." in "\n".join(markdown)) == (column is METRIC)
    latex = printed("latex")
    assert rf"& {column.title}" in latex
    assert shown.replace("±", r"$\pm$") in latex
    [line, *_] = csv.DictReader(io.StringIO(printed("csv")))
    assert float(line[column.name]) == pytest.approx(np.mean(values), rel=1e-5)
    assert bool(line[f"{column.name}_against"]) == (column is OWN)
    [line, *_] = csv.DictReader(io.StringIO(printed("runs")))
    assert float(line[column.name]) == pytest.approx(values[0], rel=1e-5)

    path = tmp_path / "arena.json"
    path.write_text(json.dumps(told))
    code, _, err = balcal_cli("report", path, capsys=capsys)
    assert (code, err) == (0, "")
    page = Page((tmp_path / "arena.html").read_text())
    assert page.text.count(column.title) >= 2, "in the table and among the ranks"
    assert shown in page.text
    assert any(f"{column.title} by seed: " in a.get("data-tip", "") for _, a in page.tags)


def test_a_file_that_is_older_than_a_column_still_counts(runs, monkeypatch):
    path = runs / "older.json"
    before = arena.ArenaResult.load(path).table("markdown")
    monkeypatch.setitem(COLUMNS, OWN.name, OWN)
    assert arena.ArenaResult.load(path).table("markdown") == before
    monkeypatch.setitem(COLUMNS, METRIC.name, METRIC)
    assert "| smECE % |" in arena.ArenaResult.load(path).table("markdown"), "every metric is in the file"


def test_a_column_that_nobody_computes_is_one_sentence(runs, monkeypatch):
    monkeypatch.setitem(COLUMNS, "luck", Column("luck", "luck"))
    result = arena.run("digits", ["vanilla"], 1, settings=["plan.epochs=1"], runs=runs, quiet=True)
    assert "the column `luck` needs a figure `luck`, which no evaluation has" in result.complaints[0]


def test_a_column_may_have_a_value_an_interval_and_a_floor_of_its_own(runs, monkeypatch):
    more = {"luck_interval": [0.1, 0.3], "luck_floor": 0.05, "luck_high": 0.06}
    column = Column(
        "luck",
        "luck",
        percent=True,
        value=lambda rows: 0.2,
        more=lambda rows: more,
        interval="luck_interval",
        floor=("luck_floor", "luck_high"),
    )
    monkeypatch.setitem(COLUMNS, "luck", column)
    result = arena.run("digits", ["vanilla"], 1, settings=["plan.epochs=1"], runs=runs, quiet=True)
    assert result.table().splitlines()[0].endswith("| luck % | floor % |")
    assert result.table().splitlines()[2].endswith("| 20.00 [10.00, 30.00] | 5.00 |")
    assert "interval that so many images leave to a run's ECE and luck" in result.table()
    page = Page(arena_page(result))
    assert "20.00 [10.00, 30.00]" in page.text
    assert "luck_floor" in result.table("csv").splitlines()[0]


def test_a_column_without_comparison_has_no_differences(runs, monkeypatch):
    monkeypatch.setitem(COLUMNS, METRIC.name, METRIC)
    result = arena.ArenaResult.load(runs / "older.json")
    assert METRIC.name not in result.compare("vanilla", "balcal")
    assert result.best(METRIC.name) in result.entries
    assert result.against_best(METRIC.name) == {}
    assert not any(row[METRIC.name]["ties_best"] for row in result.rows())
    with pytest.raises(BalcalError, match="entries are not compared in the column `smooth_ece`"):
        differences(result, (METRIC.name,))
