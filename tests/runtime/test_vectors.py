"""Vectors of frozen encoders are computed once, and found again by other processes."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from balcal.core import BalcalError
from balcal.runtime.vectors import VectorCache

TEXTS = [b"one", b"two", b"three", b"one"]


def lengths(texts, asked):
    def compute(rows):
        asked.extend(texts[row] for row in rows)
        return torch.tensor([[float(len(texts[row])), 1.0] for row in rows])

    return compute


def test_each_is_computed_once_by_whichever_process(tmp_path, monkeypatch):
    monkeypatch.setenv("BALCAL_CACHE", str(tmp_path))
    asked = []
    first = VectorCache("a", 2)
    assert first.get(TEXTS, lengths(TEXTS, asked)).tolist() == [[3, 1], [3, 1], [5, 1], [3, 1]]
    assert sorted(asked) == sorted(TEXTS[:3]), "one of two that are alike"
    first.write()
    asked.clear()
    again = VectorCache("a", 2)
    assert again.get([b"four", b"two"], lengths([b"four", b"two"], asked)).tolist() == [[4, 1], [3, 1]]
    assert asked == [b"four"]
    again.write()
    assert len(list(tmp_path.glob("encoded/a/*.pt"))) == 2
    VectorCache("b", 2).get([b"two"], lengths([b"two"], asked))
    assert asked == [b"four", b"two"], "another encoder has other vectors"


def test_a_process_writes_when_it_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("BALCAL_CACHE", str(tmp_path))
    code = "import torch; from balcal.runtime.vectors import VectorCache as V\n"
    code += "V('a', 1).get([b'x'], lambda rows: torch.tensor([[7.0]]))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert VectorCache("a", 1).get([b"x"], lengths([], [])).tolist() == [[7.0]]


def test_a_damaged_file_is_removed_and_computed_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BALCAL_CACHE", str(tmp_path))
    first = VectorCache("a", 2)
    first.get(TEXTS, lengths(TEXTS, []))
    first.write()
    (file,) = tmp_path.glob("encoded/a/*.pt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    asked = []
    assert VectorCache("a", 2).get([b"two"], lengths([b"two"], asked)).tolist() == [[3, 1]]
    assert asked == [b"two"]
    assert "is damaged: what it held is computed again" in capsys.readouterr().err
    assert not file.exists()
    first.new = dict(first.found)
    first.write()
    VectorCache("a", 3).get([b"two"], lambda rows: torch.zeros(1, 3))
    assert "is damaged" in capsys.readouterr().err, "vectors of another width are of no use"
    with pytest.raises(BalcalError, match=r"an encoder of 2 features gave \(1, 3\)"):
        VectorCache("c", 2).get([b"two"], lambda rows: torch.zeros(1, 3))


@given(st.lists(st.lists(st.binary(max_size=3), min_size=1, max_size=8), max_size=5))
def test_it_is_the_function_itself(tmp_path_factory, batches):
    cached = VectorCache(str(tmp_path_factory.mktemp("v")), 2)
    for texts in batches:
        expected = [[float(len(text)), 1.0] for text in texts]
        assert cached.get(texts, lengths(texts, [])).tolist() == expected
