"""Two who use one run at once: each gets the right figures, or is refused in a sentence. Nobody gets wrong ones."""

import os
import shutil

import pytest
import two_actors
from two_actors import interleaved

from balcal.evaluation.check_run import check_run
from balcal.registry import recipe
from balcal.runs import Run

SETTINGS = ["plan.epochs=2", "plan.batch_size=256"]
ADDRESS = recipe("digits", "balcal", 0, SETTINGS).address()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and its figures. Trained as the actors are, in a process with one thread."""
    root = tmp_path_factory.mktemp("finished") / "runs"
    [(how, figures)] = interleaved([(two_actors.train, root, SETTINGS)], root, 0)
    assert how == "done", figures
    return root, figures


def cast(names, root, into):
    known = {
        "trainer": (two_actors.train, root, SETTINGS),
        "keeper": (two_actors.train, root, SETTINGS, 1),
        "evaluator": (two_actors.evaluate, root / ADDRESS),
        "exporter": (two_actors.export, root / ADDRESS, into / "model.pt"),
    }
    return [known[name] for name in names]


SCENES = [
    ("fresh", "trainer", "trainer"),
    ("fresh", "trainer", "evaluator", "exporter"),
    ("finished", "keeper", "evaluator"),
    ("finished", "keeper", "exporter", "trainer"),
    ("finished", "evaluator", "evaluator", "exporter"),
]


@pytest.mark.parametrize("locks", [True, False], ids=["one host", "hosts without locks"])
@pytest.mark.parametrize("scene", SCENES, ids=" ".join)
@pytest.mark.parametrize("seed", range(20 if os.environ.get("BALCAL_FUZZ") else 1))
def test_no_wrong_figure(scene, seed, locks, finished, tmp_path):
    source, expected = finished
    root = tmp_path / "runs"
    if scene[0] == "finished":
        shutil.copytree(source, root)
    actors = scene[1:]
    ends = interleaved(cast(actors, root, tmp_path), root, f"{scene} {seed}", locks)
    for actor, (how, result) in zip(actors, ends, strict=True):
        assert how != "broken", f"{actor}: {result}"
        if how == "done":
            assert result == (expected["nll"] if actor == "exporter" else expected), actor
    if locks:
        assert any(how == "done" for how, _ in ends), ends
    run = Run(root, recipe("digits", "balcal", 0, SETTINGS))
    if not locks and (not run.finished or check_run(run.path).findings):
        # Whoever deletes what others train may leave a run without weights: nothing wrong, and it says how to mend it.
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    [(how, result)] = interleaved([(two_actors.train, root, SETTINGS)], root, 0)
    assert (how, result) == ("done", expected), "whoever comes afterwards finds it in order"
    assert not check_run(run.path).findings
