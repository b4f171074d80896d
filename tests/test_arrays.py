"""Predictions in files: read by name, or refused with a hint."""

import numpy as np
import pytest
from samples import draw

from balcal import metrics
from balcal.arrays import read_arrays
from balcal.core import BalcalError


@pytest.fixture
def files(tmp_path):
    p, y = draw(0, n=40)
    np.savez(tmp_path / "whole.npz", probs=p, labels=y)
    np.savez(tmp_path / "logits.npz", logits=np.log(p) + 3, labels=y)
    np.savez(tmp_path / "strange.npz", outputs=p, test=y, train=y[:5])
    np.save(tmp_path / "table.npy", p)
    np.save(tmp_path / "labels.npy", y)
    rows = [",".join([str(label), *map(repr, row.tolist())]) for row, label in zip(p, y, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["label,a,b,c,d", *rows]))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not really")
    (tmp_path / "broken.csv").write_text("label,a,b\n0,x,1\n")
    return tmp_path, metrics.ece(probs=p, labels=y)


@pytest.mark.parametrize(
    ("source", "labels", "kind"),
    [
        ("whole.npz", None, None),
        ("logits.npz", None, None),
        ("strange.npz:outputs", "strange.npz:test", "probs"),
        ("table.npy", "labels.npy", "probs"),
        ("table.npy", "whole.npz", "probs"),
        ("table.csv", None, "probs"),
    ],
)
def test_every_form_says_the_same(files, source, labels, kind):
    folder, expected = files
    found = read_arrays(f"{folder}/{source}", labels and f"{folder}/{labels}", kind)
    assert metrics.ece(**found.named()) == pytest.approx(expected, abs=1e-12)
    predictions = found.predictions()
    assert metrics.ece(log_probs=predictions.log_probs, labels=predictions.labels) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("source", "labels", "kind", "complaint"),
    [
        ("nothing.npz", None, None, "there is no file"),
        ("broken.npz", None, None, "is not a whole .npz"),
        ("broken.csv", None, "probs", "not numbers"),
        ("table.npy", "labels.npy", None, "say what it is with --as"),
        ("table.npy", None, "probs", "has no array `labels`"),
        ("strange.npz", "labels.npy", "probs", "it has: labels, outputs, test, train"),
        ("strange.npz:output", "labels.npy", "probs", "has no array `output`"),
        ("table.npy", "strange.npz", "probs", "say which are the labels"),
        ("whole.npz", None, "percent", "--as must be one of probs, log_probs, logits"),
        ("", None, None, "there is no file"),
    ],
)
def test_what_cannot_be_read_is_said(files, source, labels, kind, complaint):
    folder, _ = files
    with pytest.raises(BalcalError, match=complaint):
        read_arrays(f"{folder}/{source}", labels and f"{folder}/{labels}", kind)
