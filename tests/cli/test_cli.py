"""The command line as a person meets it."""

import json
import re
import subprocess
import sys
import time
from inspect import signature

import numpy as np
import pytest
from command_line import balcal_cli
from runs_helper import trained
from samples import draw

import balcal
from balcal.cli.text import render_table

QUICK = ["--set", "plan.epochs=1", "--quiet"]


def test_help_answers_at_once_and_without_torch():
    probe = "import sys; sys.argv = ['balcal', '--help']\nfrom balcal.cli import main\n"
    probe += "try: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    print(f"{time.perf_counter() - begun:.2f} s")
    for verb in ("train", "evaluate", "list", "show", "demo"):
        assert verb in done.stdout


def test_train_then_evaluate_in_json(tmp_path, capsys):
    code, out, err = balcal_cli("train", "digits", "balcal+ts", "--out", tmp_path, "--json", *QUICK, capsys=capsys)
    assert code == 0, err
    figures = json.loads(out)
    assert figures["method"] == "balcal+ts"
    assert 0 < figures["test"]["accuracy"] <= 1, "fractions in JSON"
    ece = figures["specification"]["ece"]
    assert (ece["bins"], ece["norm"], ece["split"], ece["posthoc"]) == (15, "L1", "test", "ts")
    assert ece["edges"].startswith("uniform, (lo, hi]")
    assert set(figures["metrics"]) <= set(figures["specification"])
    assert figures["metrics"]["ece"] == pytest.approx(figures["test"]["ece"])
    assert figures["against_uncalibrated"]["names"] == ["balcal", "balcal+ts"]
    assert figures["fusion"] == "probs"
    code, out, _ = balcal_cli("evaluate", figures["run"], "--with", "ts", "--json", capsys=capsys)
    assert json.loads(out)["test"] == figures["test"]
    assert json.loads(
        balcal_cli("calibrate", figures["run"], "--with", "ts", "--json", capsys=capsys)[1]
    ) == json.loads(out)
    code, out, _ = balcal_cli("evaluate", figures["run"], capsys=capsys)
    assert f"epoch {figures['epoch']} chosen" in out, "counted from 1 in text and in JSON"
    assert figures["epoch"] == 1
    assert re.search(r"accuracy +\d+\.\d\d %   \[", out)
    assert re.search(r"ECE .* a perfect model scores \d\.\d\d % on average", out)
    code, out, _ = balcal_cli("evaluate", figures["run"], "--with", "ts", capsys=capsys)
    assert "balcal+ts against balcal: accuracy the same" in out


def test_a_method_that_had_nothing_to_do_or_did_too_much_says_so(tmp_path, capsys):
    code, out, err = balcal_cli("train", "digits", "balcal", "--out", tmp_path, *QUICK, capsys=capsys)
    assert code == 0, err
    assert "note: BalCAL was not active: confidence on the training images stayed below delta × accuracy" in out
    assert "or lower head.delta" in " ".join(out.split())
    low = ["--set", "head.delta=0.5", "--json"]
    _, out, _ = balcal_cli("train", "digits", "balcal", "--out", tmp_path, *low, *QUICK, capsys=capsys)
    assert json.loads(out)["dials"]["gamma"] < 1
    (remark,) = json.loads(out)["remarks"]
    assert re.match(
        r"delta is low here: in the last epoch mean confidence on validation images is \d\d\.\d %, and", remark
    )
    _, out, _ = balcal_cli("train", "digits", "--out", tmp_path, "--json", *QUICK, capsys=capsys)
    assert json.loads(out)["method"] == "balcal-auto", "as in balcal.wrap"


def test_a_setting_without_effect_is_said_to_have_none(tmp_path, capsys):
    """It is no error here, as the addresses of runs depend on it."""
    for setting, words in (("momentum=0.5", 'momentum has no effect with optimiser="adam"'), ("lr=0.01", "")):
        code, _, err = balcal_cli(
            "train", "tumours", "vanilla", "--set", setting, "--out", tmp_path, *QUICK, capsys=capsys
        )
        assert code == 0
        assert ("has no effect" in err, words in err) == (bool(words), True)


def test_list_and_show(capsys):
    for kind in ("methods", "tasks", "datasets", "backbones", "metrics"):
        code, out, _ = balcal_cli("list", kind, "--json", capsys=capsys)
        assert code == 0
        assert len(json.loads(out)) >= 2
    _, out, _ = balcal_cli("show", "balcal+ts", capsys=capsys)
    assert "e = beta unit(A(z)) M" in out
    assert "posthoc      TemperatureScaling(by='nll', prior=5.0)   (by ts)" in out
    _, out, _ = balcal_cli("show", "smooth_ece", capsys=capsys)
    assert "reflected Gaussian" in out
    assert "Blasiok" in out
    _, out, _ = balcal_cli("list", "metrics", capsys=capsys)
    assert re.search(r"auroc +higher +fraction", out)
    _, out, _ = balcal_cli("list", capsys=capsys)
    assert "ours: logit fusion" in out, "balcal-auto is named as ours wherever it appears"


def test_a_table_wraps_where_it_must():
    rows = [["a", "1.50", "words and words"], ["longer", "-12.00", ""]]
    assert render_table(["name", "ECE %", "why"], rows, "title", width=24).split("\n") == [
        "title",
        "name     ECE %  why",
        "a         1.50  words and words",
        "longer  -12.00",
    ], "the last column keeps twenty columns"
    assert render_table(["name", "why"], [["a", "words and words"]], limits={"why": 9}).split("\n") == [
        "name  why",
        "a     words and",
        "      words",
    ]
    assert render_table(["name", "why"], [["a", "word " * 9]], width=29).split("\n")[1:] == [
        "a     word word word word",
        "      word word word word",
        "      word",
    ]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train", "digits", "balcal+balcal-k"], "cannot be joined: both set `head`"),
        (["train", "digits", "balkal"], "unknown method `balkal`; did you mean `balcal`?"),
        (["train", "digit"], "unknown task `digit`; did you mean `digits`?"),
        (["train", "digits", "--set", "plan.epoch=1"], "did you mean `epochs`?"),
        (["train", "digits", "--set", "learning_rate=1"], "did you mean `plan.lr`?"),
        (["train", "digits", "--set", "optimizer=sgd"], "did you mean `plan.optimiser`?"),
        (["train", "digits", "--set", "max_epochs=3"], "did you mean `plan.epochs`?"),
        (["train", "digits", "--set", "task.val_size=99999"], "cannot hold out 99999 of 1297 images"),
        (["train", "digits", "--set", "task.val_size=0"], "task.val_size must be at least 1, not 0"),
        (["train", "digits", "--device", "cuda:7"], "cannot use device `cuda:7`"),
        (["train", "digits", "--device", "toaster"], "cannot use device `toaster`"),
        (["train", "digits", "--out", "/proc/nowhere"], "choose another folder with --out"),
        (["evaluate", "nowhere"], "is not a run"),
        (["list", "recipes"], "unknown kind `recipes`"),
        (["show", "ls+"], "unknown method"),
        (["audit", "nothing.npz"], "there is no file nothing.npz"),
        (["calibrate", "nothing.npz", "--with", "ts"], "there is no file nothing.npz"),
    ],
)
def test_mistakes_are_one_clear_sentence(arguments, complaint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = balcal_cli(*arguments, *(QUICK if arguments[0] == "train" else []), capsys=capsys)
    assert code == 1
    assert complaint in err
    assert err.startswith("balcal: ")
    assert err.count("\n") == 1, "one sentence"
    assert out == ""
    assert not list(tmp_path.glob("**/*.pt")), "nothing half-written"


def test_audit_explains_each_difference(tmp_path, capsys):
    p = np.array([[1.0, 0.0]] * 4 + [[0.96, 0.04]] * 4)
    np.savez(tmp_path / "p.npz", probs=p, labels=[0, 0, 0, 1, 0, 0, 0, 0])
    code, out, _ = balcal_cli("audit", tmp_path / "p.npz", capsys=capsys)
    assert code == 0
    assert re.search(r"torchmetrics +14\.500 +\+4\.000 +4 confidences equal 1", out)
    assert "A perfect model with these confidences" in out
    _, out, _ = balcal_cli("audit", tmp_path / "p.npz", "--json", capsys=capsys)
    assert {f["name"] for f in json.loads(out)["findings"]} >= {"balcal", "Guo et al.", "torchmetrics", "netcal"}


def test_the_verdict_of_a_file_and_its_details(tmp_path, capsys):
    p, y = draw(3, 300, 4)
    np.savez(tmp_path / "a.npz", probs=p, labels=y)
    code, said, error = balcal_cli("verdict", tmp_path / "a.npz", capsys=capsys)
    assert code == 0, error
    assert said == f"{balcal.verdict(probs=p, labels=y)}\n"
    code, told, error = balcal_cli(
        "verdict", tmp_path / "a.npz", "--details", "--matters", "0.2", "--json", capsys=capsys
    )
    assert code == 0, error
    found = json.loads(told)
    tests = balcal.metrics.calibration_tests(probs=p, labels=y)
    assert found["details"]["ks"]["p"] == pytest.approx(tests["ks"].p)
    assert (found["matters"], found["ece"]) == (0.2, balcal.metrics.ece(probs=p, labels=y))
    said = balcal_cli("verdict", tmp_path / "a.npz", "--details", capsys=capsys)[1]
    assert "Spiegelhalter" in said
    assert "refinement" in said


def test_calibrate_arrays(tmp_path, capsys):
    for name, seed in (("held", 0), ("new", 1)):
        p, y = draw(seed, n=400)
        y = np.where(np.random.default_rng(seed).random(400) < 0.5, p.argmax(1), y)
        np.savez(tmp_path / f"{name}.npz", probs=p, labels=y)
    held, new, out_file = (str(tmp_path / f"{name}.npz") for name in ("held", "new", "out"))
    code, out, _ = balcal_cli("calibrate", held, "--with", "ts", capsys=capsys)
    assert code == 0
    assert "evaluate it on other samples" in out
    code, out, err = balcal_cli("calibrate", held, "--with", "ts", "--apply", new, "--out", out_file, capsys=capsys)
    assert code == 0, err
    assert "ts against no calibration: accuracy the same, NLL better" in out
    with np.load(out_file) as written:
        assert written["probs"].sum(1) == pytest.approx(np.ones(400))
        assert (written["probs"].argmax(1) == np.load(new)["probs"].argmax(1)).all()
    _, out, _ = balcal_cli("calibrate", held, "--with", "ts", "--apply", new, "--json", capsys=capsys)
    result = json.loads(out)
    assert result["fit_nll"][1] <= result["fit_nll"][0]
    assert result["after"]["nll"] < result["before"]["nll"]
    for arguments, complaint in (
        (["--apply", held], "the very predictions that were fitted on"),
        (["--out", out_file], "--out needs --apply"),
    ):
        code, _, err = balcal_cli("calibrate", held, "--with", "ts", *arguments, capsys=capsys)
        assert code == 1
        assert complaint in err


def test_calibrating_on_test_predictions_is_refused(tmp_path, capsys):
    run = trained("vanilla", tmp_path)
    code, _, err = balcal_cli("calibrate", run / "predictions" / "test.npz", "--with", "ts", capsys=capsys)
    assert code == 1
    assert "predictions of the test role" in err


def test_a_full_disk_ends_with_one_sentence_and_room_makes_it_go_on(tmp_path):
    """Files may not grow beyond 60 kB: the first checkpoint fails half-way, as on a full disk."""
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, -1))\n"
    code += (
        f"sys.argv = ['balcal', 'train', 'digits', 'balcal', '--out', {str(tmp_path)!r}, '--set', 'plan.epochs=3']\n"
    )
    code += "from balcal.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "balcal: cannot write" in done.stderr
    assert "make room or choose another folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("**/.unfinished-*"))
    assert not list(tmp_path.glob("**/*.pt"))
    assert (trained("balcal", tmp_path) / "metrics.json").exists()


def test_the_public_names_are_there():
    for name in balcal.__all__:
        assert getattr(balcal, name) is not None
    assert set(balcal.__all__) <= set(dir(balcal))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        balcal.nonsense  # noqa: B018


def test_names_of_the_contract():
    """Others call these by name."""
    wanted = {
        "wrap": ("network", "num_classes", "method", "classifier", "features", "num_features"),
        "fit": ("model", "train_loader", "val_loader", "epochs"),
        "save": ("model", "path"),
        "load": ("path", "network"),
        "export": ("model", "example", "path"),
        "report": ("source", "loader"),
        "card": ("model", "predictions"),
    }
    for name, parameters in wanted.items():
        call = getattr(balcal, name)
        known = list(signature(call.report if name == "report" else call).parameters)
        assert [each for each in known if each in parameters] == list(parameters), name


def test_version_and_completion(capsys, monkeypatch):
    code, out, _ = balcal_cli("--version", capsys=capsys)
    assert (code, out.strip()) == (0, f"balcal {balcal.__version__}")
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # a script, even under `python -m pytest`
    monkeypatch.setenv("_BALCAL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "balcal train digits fl+bal")
    monkeypatch.setenv("COMP_CWORD", "3")
    _, out, _ = balcal_cli(capsys=capsys)
    assert {"fl+balcal", "fl+balcal-auto"} <= set(out.split())


def test_a_csv_whose_columns_are_classes(tmp_path, capsys):
    table = tmp_path / "pets.csv"
    rows = ["0.7,cat,0.3", "0.2,dog,0.8", "0.4,cat,0.6"] * 20
    table.write_text("cat,label,dog\n" + "\n".join(rows))
    code, _, err = balcal_cli("report", table, "--as", "probs", capsys=capsys)
    assert code == 0, err
    page = (tmp_path / "pets.html").read_text()
    assert ">cat<" in page
    assert "66.7" in page
    table.write_text("cat,label,dog\n0.7,cow,0.3\n")
    _, _, err = balcal_cli("report", table, "--as", "probs", capsys=capsys)
    assert "the label `cow`, which is no class index and no column's name" in err
    np.savez(tmp_path / "odd.npz", p=np.full((50, 2), 0.5), labels=np.arange(50) % 2)
    labels = f"{tmp_path / 'odd.npz'}:labels"
    code, _, err = balcal_cli("report", f"{tmp_path / 'odd.npz'}:p", "--as", "probs", "--labels", labels, capsys=capsys)
    assert code == 0, err


def test_the_time_left_is_never_negative():
    import torch

    from balcal.runtime.progress import Progress

    progress = Progress("", quiet=True)
    progress.start(1, 0, 0, 4, 3)
    for _ in range(4):
        progress.train_batch(torch.tensor(0.0))
    for _ in range(30):
        progress.val_batch()
    assert progress.left() == "about 0 s left"
