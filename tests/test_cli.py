"""The command line as a person meets it."""

import json
import subprocess
import sys
import time

import pytest
from runs_helper import trained

import balcal
from balcal.cli import main

QUICK = ["--set", "plan.epochs=1", "--quiet"]


def balcal_cli(*arguments, capsys):
    """What the command does, in this process: (exit code, stdout, stderr)."""
    old, sys.argv = sys.argv, ["balcal", *map(str, arguments)]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = old
    told = capsys.readouterr()
    return code, told.out, told.err


def test_help_answers_at_once_and_without_torch():
    probe = "import sys; sys.argv = ['balcal', '--help']\nfrom balcal.cli import main\n"
    probe += "try: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    begun = time.perf_counter()
    told = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    print(f"{time.perf_counter() - begun:.2f} s")
    for verb in ("train", "evaluate", "list", "show", "demo"):
        assert verb in told.stdout


def test_train_then_evaluate_in_json(tmp_path, capsys):
    code, out, err = balcal_cli("train", "digits", "balcal+ts", "--out", tmp_path, "--json", *QUICK, capsys=capsys)
    assert code == 0, err
    figures = json.loads(out)
    assert figures["method"] == "balcal+ts"
    assert 0 < figures["test"]["accuracy"] <= 1, "fractions in JSON"
    assert figures["ece"]["bins"] == 15
    assert figures["fusion"] == "probs"
    code, out, _ = balcal_cli("evaluate", figures["run"], "--with", "ts", "--json", capsys=capsys)
    assert json.loads(out)["test"] == figures["test"]
    code, out, _ = balcal_cli("evaluate", figures["run"], capsys=capsys)
    assert "accuracy" in out
    assert "%" in out


def test_list_and_show(capsys):
    for kind in ("methods", "tasks", "datasets", "backbones", "metrics"):
        code, out, _ = balcal_cli("list", kind, "--json", capsys=capsys)
        assert code == 0
        assert len(json.loads(out)) >= 2
    _, out, _ = balcal_cli("show", "balcal+ts", capsys=capsys)
    assert "e = beta unit(A(z)) M" in out
    assert "posthoc      TemperatureScaling()   (by ts)" in out
    _, out, _ = balcal_cli("list", capsys=capsys)
    assert "ours: logit fusion" in out, "balcal-auto is named as ours wherever it appears"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train", "digits", "balcal+balcal-k"], "cannot be joined: both set `head`"),
        (["train", "digits", "balkal"], "unknown method `balkal`; did you mean `balcal`?"),
        (["train", "digit"], "unknown task `digit`; did you mean `digits`?"),
        (["train", "digits", "--set", "plan.epoch=1"], "did you mean `epochs`?"),
        (["train", "digits", "--set", "task.val_size=99999"], "cannot hold out 99999 of 1297 images"),
        (["train", "digits", "--set", "task.val_size=0"], "cannot hold out 0 of 1297 images"),
        (["train", "digits", "--device", "cuda:7"], "cannot use device `cuda:7`"),
        (["train", "digits", "--device", "toaster"], "cannot use device `toaster`"),
        (["train", "digits", "--out", "/proc/nowhere"], "choose another folder with --out"),
        (["evaluate", "nowhere"], "is not a run"),
        (["list", "recipes"], "unknown kind `recipes`"),
        (["show", "ls+"], "unknown method"),
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
