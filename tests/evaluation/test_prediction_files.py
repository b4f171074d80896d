"""Predictions in files: read by name, or refused with a hint; by every verb alike."""

import io
import json
import warnings
import zipfile

import numpy as np
import pytest
from samples import draw

from balcal import metrics
from balcal.cli.predictions import calibrate_arrays
from balcal.core import BalcalError
from balcal.evaluation.prediction_files import read_arrays
from balcal.metrics.audit import audit
from balcal.report import write_report


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


VERBS = {
    "audit": lambda path, good: audit(**read_arrays(path).named()),
    "report": lambda path, good: write_report(path),
    "calibrate": lambda path, good: calibrate_arrays(path, "ts", None, None, None, None),
    "calibrate --apply": lambda path, good: calibrate_arrays(good, "ts", path, None, None, None),
}
P, Y = draw(0, n=40)
REFUSED = {
    "labels with fractions": ({"probs": P, "labels": Y + 0.7}, "class indices"),
    "labels out of range": ({"probs": P, "labels": Y + 1}, "label 4 in the data is out of range"),
    "unsigned labels out of range": (
        {"probs": P, "labels": Y.astype(np.uint64) + np.uint64(2**63)},
        "label 92233720368547758.. in the data is out of range",
    ),
    "negative labels": ({"probs": P, "labels": Y - 1}, "label -1 in the data is out of range"),
    "no labels": ({"probs": P, "labels": Y[:39]}, "got .40, 4. and .39,."),
    "labels as a table": ({"probs": P, "labels": np.eye(4, dtype=int)[Y] * 2}, "must be one-hot"),
    "words": ({"probs": P.astype(str), "labels": Y}, "expected numbers"),
    "labels in words": ({"probs": P, "labels": np.array(["cat", "dog"])[Y % 2]}, "not names like '(cat|dog)'"),
    "complex numbers": ({"probs": P.astype(complex), "labels": Y}, "expected numbers"),
    "dates": ({"probs": P, "labels": Y.astype("datetime64[s]")}, "expected numbers"),
    "dates of the other byte order": ({"probs": P, "labels": Y.astype(">M8[s]")}, "expected numbers"),
    "records": ({"probs": P, "labels": np.zeros(40, dtype="i4,i4")}, "expected numbers"),
    "a number": ({"probs": np.array(0.5), "labels": Y}, "a row for each sample"),
    "nothing": ({"probs": np.zeros((0, 4)), "labels": Y[:0]}, "no samples"),
    "one column of logits": ({"probs": 3 * np.ones((40, 1)), "labels": Y * 0}, "from 0 to 1, and one is 3: are these"),
    "one column of four classes": ({"probs": np.ones(40), "labels": Y}, "pass a column for each class"),
    "no distribution": ({"probs": P * 1.012, "labels": Y}, "sum to one .one is off by 0.012.: are these logits"),
    "log-probabilities above one": ({"log_probs": np.log(P) + 0.012, "labels": Y}, "sum to one"),
    "a negative probability": ({"probs": P + np.array([[-1, 1, 0, 0]]), "labels": Y}, "negative"),
    "NaN": ({"probs": P * np.nan, "labels": Y}, "NaN or infinite"),
    "logits that are NaN": ({"logits": P * np.nan, "labels": Y}, "NaN or infinite"),
    "infinite logits": ({"logits": np.where(P > 0.9, np.inf, P), "labels": Y}, "NaN or infinite"),
    "only impossible classes": ({"logits": np.full_like(P, -np.inf), "labels": Y}, "NaN or infinite"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", REFUSED)
def test_every_verb_refuses_the_same(tmp_path, verb, what):
    arrays, complaint = REFUSED[what]
    np.savez(tmp_path / "bad.npz", **arrays)
    np.savez(tmp_path / "good.npz", probs=P[:, ::-1], labels=Y)
    with pytest.raises(BalcalError, match=complaint) as refusal:
        VERBS[verb](str(tmp_path / "bad.npz"), str(tmp_path / "good.npz"))
    assert "bad.npz" in str(refusal.value)
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("verb", VERBS)
def test_rows_that_are_off_are_divided_by_their_sum_and_it_is_said(tmp_path, verb):
    right, off = str(tmp_path / "right.npz"), str(tmp_path / "off.npz")
    good = str(tmp_path / "good.npz")
    np.savez(right, probs=P, labels=Y)
    np.savez(off, log_probs=np.log(P) + 0.009, labels=Y)
    np.savez(good, probs=P[:, ::-1], labels=Y)
    with pytest.warns(UserWarning, match="do not sum to one .one is off by 0.009.: they are divided by their sum"):
        VERBS[verb](off, good)
    with pytest.warns(UserWarning, match="divided by their sum"):
        found = read_arrays(off).predictions()
    assert metrics.nll(log_probs=found.log_probs, labels=Y) == pytest.approx(metrics.nll(probs=P, labels=Y), abs=1e-12)


def test_half_precision_needs_no_warning(tmp_path):
    """Stored in float16, 1,000 classes: read in float32, as far as float16 goes."""
    p, y = draw(1, n=30, k=1000)
    np.savez(tmp_path / "half.npz", log_probs=np.log(p).astype(np.float16), labels=y)
    found = read_arrays(str(tmp_path / "half.npz")).predictions()
    assert found.log_probs.exp().sum(1).numpy() == pytest.approx(np.ones(30), abs=1e-3)
    assert metrics.nll(log_probs=found.log_probs, labels=y) == pytest.approx(metrics.nll(probs=p, labels=y), abs=0.01)
    np.savez(tmp_path / "half.npz", probs=p.astype(np.float16), labels=y)
    assert found.log_probs.dtype == read_arrays(str(tmp_path / "half.npz")).predictions().log_probs.dtype


def test_large_logits_are_read(tmp_path):
    z = np.array([[1e20, 0.0], [3e20, -1e20], [-1e20, 1e20]])
    np.savez(tmp_path / "large.npz", logits=z, labels=[0, 0, 1])
    judged = metrics.verdict(read_arrays(str(tmp_path / "large.npz")).predictions())
    assert (judged.accuracy, judged.nll, judged.mean_confidence) == (1, 0, 1)


def patched(content, offset, value):
    """The same archive with one byte of every member's headers set; the central one has it two bytes later."""
    spoilt = bytearray(content)
    for mark, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = content.find(mark)
        while at >= 0:
            spoilt[at + offset + more] = value
            at = content.find(mark, at + 4)
    return bytes(spoilt)


def declared(shape):
    """An array whose header promises more than there is."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + bytes(64)


def archive(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def stored(compressed=False):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, probs=P, labels=Y)
    return buffer.getvalue()


def spoilt_stream():
    """A compressed member whose stream is no longer one."""
    content = bytearray(stored(compressed=True))
    content[60:80] = b"\xff" * 20
    return bytes(content)


DAMAGED = {
    "encrypted": lambda: patched(stored(), 6, 1),
    "more than memory": lambda: archive(probs=declared((10**13, 4)), labels=declared((4,))),
    "more than 64 bits": lambda: archive(probs=declared((10**40, 4)), labels=declared((4,))),
    "negative shape": lambda: archive(probs=declared((-5, 4)), labels=declared((4,))),
    "shape in words": lambda: archive(probs=declared(("a", 4)), labels=declared((4,))),
    "spoilt stream": spoilt_stream,
    "unknown compression": lambda: patched(stored(), 8, 99),
    "half": lambda: stored()[:400],
    "empty": lambda: b"",
    "pickled": lambda: archive(probs=b"\x80\x04]\x94.", labels=declared((4,))),
    "a number of the npy format": lambda: declared((10**13, 4)),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files_get_one_sentence(tmp_path, what):
    path = tmp_path / "damaged.npz"
    path.write_bytes(DAMAGED[what]())
    with pytest.raises(BalcalError, match=r"not a whole .npz|cannot read|expected numbers"):
        read_arrays(str(path), kind="probs")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff\xfe\x00label", "not a text file"),
        (b"label,a,b\n0,0.5,0.5\x00\n", "not a text file|not numbers"),
        (b"label,a,b\n" + b"0" * 200_000 + b",1,0\n", "not a text file|not numbers"),
        (b"", "one column `label`"),
        (b"label,a,b\n", "one column `label`"),
        (b"label,a,label\n0,0.5,0.5\n", "one column `label`"),
        (b"label,a,b\n0,0.5,0.5,0.0\n", "not as many as its first line"),
        (b"label,a,b\n0,0.5\n", "not as many as its first line"),
        (b"label,a,b\n0.7,0.5,0.5\n", "the label `0.7`, which is no class index"),
        (b"label,a,b\n99999999999999999999999,0.5,0.5\n", "expected numbers in the labels"),
        (b"label,a,b\n0,nan,0.5\n", "NaN or infinite"),
        (b"label\n0\n", "rows without a number"),
    ],
)
def test_tables_of_text_get_one_sentence(tmp_path, content, complaint):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(BalcalError, match=complaint):
        read_arrays(str(tmp_path / "table.csv"), kind="probs")


def test_tables_of_text_as_spreadsheets_write_them(tmp_path):
    (tmp_path / "table.csv").write_bytes("\ufefflabel,a,b\r\n1,0.25,0.75\r\n\r\n0,0.5,0.5\r\n".encode())
    assert read_arrays(str(tmp_path / "table.csv"), kind="probs").predictions().labels.tolist() == [1, 0]


def test_nothing_is_written_that_cannot_be_judged(tmp_path):
    """A label of probability 0 has an infinite NLL, from which nothing can be subtracted."""
    good, zero = (str(tmp_path / name) for name in ("good.npz", "zero.npz"))
    p = P.copy()
    p[0] = np.eye(4)[(Y[0] + 1) % 4]
    np.savez(good, probs=P, labels=Y)
    np.savez(zero, probs=p, labels=Y)
    with pytest.raises(BalcalError, match="its NLL is infinite"):
        calibrate_arrays(good, "ts", zero, None, None, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()


def test_json_stays_valid_where_nll_is_infinite(tmp_path):
    np.savez(tmp_path / "zero.npz", probs=np.r_[P, [[1.0, 0, 0, 0]]], labels=np.r_[Y, 1])
    result = calibrate_arrays(str(tmp_path / "zero.npz"), "ts", None, None, None, None).as_dict()
    assert json.loads(json.dumps(result, allow_nan=False))["fit_nll"][0] is None


def test_long_names_are_no_traceback():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in ("x" * 5000 + ".npz", "a\0b.npz", "x" * 5000 + ".csv"):
            with pytest.raises(BalcalError):
                read_arrays(source, kind="probs")
            with pytest.raises(BalcalError):
                write_report(source)


def test_what_as_says_is_not_ignored(tmp_path):
    np.savez(tmp_path / "logits.npz", logits=np.log(P), labels=Y)
    np.savez(tmp_path / "both.npz", logits=2 * np.log(P), probs=P, labels=Y)
    for source in ("logits.npz", "logits.npz:logits"):
        with pytest.raises(BalcalError, match="calls its array logits, and --as says probs"):
            read_arrays(f"{tmp_path / source}", f"{tmp_path / 'logits.npz'}:labels", "probs")
    with pytest.raises(BalcalError, match="must hold exactly one array"):
        read_arrays(f"{tmp_path / 'both.npz'}")
    assert read_arrays(f"{tmp_path / 'both.npz'}", kind="probs").predictions().probs.numpy() == pytest.approx(P)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            ",cat,dog,label\n0,0.5,0.5,cat\n",
            "a first column without a name: if it is an index, write it with index=False",
        ),
        ("cat;dog;label\n0.5;0.5;cat\n", "one column `label`, and the classes in order beside it, joined by commas"),
    ],
)
def test_tables_as_other_programs_write_them(text, words, tmp_path):
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(BalcalError, match=words):
        read_arrays(str(tmp_path / "table.csv"), kind="probs")


def test_one_column_of_a_file_is_the_probability_of_class_1(tmp_path):
    one, y = P[:, 1], (P[:, 1] > 0.3).astype(int)
    both = np.stack([1 - one, one], 1)
    (tmp_path / "one.csv").write_text("label,p\n" + "".join(f"{a},{float(b)!r}\n" for a, b in zip(y, one, strict=True)))
    np.savez(tmp_path / "probs.npz", probs=one, labels=y)
    np.savez(tmp_path / "logits.npz", logits=np.log(one / (1 - one))[:, None], labels=np.eye(2)[y])
    for name, kind in (("one.csv", "probs"), ("probs.npz", None), ("logits.npz", None)):
        predictions = read_arrays(str(tmp_path / name), kind=kind).predictions()
        assert predictions.probs.numpy() == pytest.approx(both, abs=1e-12)
        assert predictions.labels.tolist() == y.tolist()
