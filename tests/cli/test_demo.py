"""The demo shows what it promises, by its own numbers."""

import json
from pathlib import Path

from command_line import balcal_cli


def test_the_demo_shows_over_confidence_and_its_correction(tmp_path, capsys):
    code, out, err = balcal_cli("demo", "--out", tmp_path, "--json", capsys=capsys)
    assert code == 0, err
    shown = json.loads(out)
    assert list(shown["methods"]) == ["vanilla", "vanilla+ts", "balcal", "balcal-logits", "balcal-auto"]
    plain, scaled, *ours = shown["methods"].values()
    assert plain["kind"] == "over"
    assert plain["ece"] > 0.07
    assert scaled["accuracy"] == plain["accuracy"]
    for one in ours:
        assert one["gamma"] < 0.95, "in the last epoch"
    assert ours[1]["ece_interval"][1] < plain["ece_interval"][0], "balcal-logits"
    for difference in shown["against_vanilla"].values():
        assert difference["ece"]["high"] < 0, "better by more than the interval"
        assert difference["accuracy"]["high"] >= 0, "and not less accurate"
    assert list(Path(tmp_path).glob("*/*.png")) == [Path(shown["picture"])]
    code, out, _ = balcal_cli("demo", "--out", tmp_path, capsys=capsys)
    assert "balcal-logits against vanilla: accuracy" in out, "found, not trained again"
