"""results/scripts/ensembles.py: rows of all predictions that the finished runs allow, and the figure of them."""

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from runs_helper import QUICK, trained

import balcal
from balcal import registry
from balcal.core import BalcalError
from balcal.evaluation.prediction_files import read_arrays

SETTINGS = QUICK


def test_it_takes_the_runs_that_exist(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "results" / "scripts"))
    import ensembles

    real = registry.recipe
    monkeypatch.setattr(ensembles.registry, "recipe", lambda t, m, s=0, o=(): real(t, m, s, [*SETTINGS, *o]))
    for seed in (0, 1, 3):
        trained("vanilla", tmp_path / "runs", seed)
    trained("balcal", tmp_path / "runs")
    monkeypatch.setattr(ensembles, "METHODS", ("vanilla", "balcal"))
    monkeypatch.setattr("balcal.training.fit.run_epochs", lambda session: pytest.fail("it trains"))
    file = tmp_path / "ensembles.csv"
    arguments = ["ensembles.py", "digits", "--runs", str(tmp_path / "runs"), "--to", str(file)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--pictures", str(tmp_path)])
    ensembles.main()
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    kinds = [(r["method"], r["members"], r["seed"]) for r in rows if r["after"] == ""]
    assert kinds == [("vanilla", "1", "0"), ("vanilla", "1", "1"), ("vanilla", "1", "3"), ("vanilla", "2", "0"),
                     ("balcal", "1", "0")]  # fmt: skip
    assert "balcal+laplace seed 0: `laplace` needs" in capsys.readouterr().out
    found = {(r["method"], r["members"], r["seed"], r["after"]): r for r in rows}
    two = found["vanilla", "2", "0", "tta+ts"]
    assert (two["trainings"], two["passes"]) == ("2", "10")
    kept = [next((tmp_path / "runs").glob(f"digits/vanilla-seed{s}-*")) / "predictions/test.npz" for s in (0, 1)]
    labels = read_arrays(str(kept[0])).predictions().labels
    probs = sum(read_arrays(str(path)).predictions().probs.double().numpy() for path in kept) / 2
    nll = -np.log(probs[np.arange(500), labels]).mean()
    assert float(found["vanilla", "2", "0", ""]["nll"]) == pytest.approx(nll, rel=1e-4)
    one, base = found["vanilla", "1", "1", ""], found["vanilla", "1", "1", "ts"]
    assert float(one["nll_against_value"]) == pytest.approx(float(one["nll"]) - float(base["nll"]), abs=1e-5)
    assert float(one["nll_against_low"]) <= float(one["nll_against_value"]) <= float(one["nll_against_high"])
    assert base["nll_against_value"] == ""
    assert (tmp_path / "ensembles-digits.png").stat().st_size > 10_000
    drawn = balcal.plots.budget(file)
    lines = {line.get_gid(): line for axes in drawn.axes for line in axes.lines if line.get_gid()}
    mean = np.mean([float(found["vanilla", "1", s, ""]["nll"]) for s in ("0", "1", "3")])
    np.testing.assert_allclose(lines["passes vanilla"].get_ydata(), [mean, nll], rtol=1e-4)
    assert list(lines["trainings vanilla"].get_xdata()) == [1, 2]
    with pytest.raises(BalcalError, match="each row must have method, members, after, trainings, passes and nll"):
        balcal.plots.budget([{"method": "vanilla"}])
