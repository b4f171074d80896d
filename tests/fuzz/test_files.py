"""Files of predictions whose bytes were flipped, cut or filled in."""

import io
import tempfile
from pathlib import Path

import numpy as np
import torch
from fuzzing import distributions, law, outcome
from hypothesis import strategies as st

from balcal.cli.predictions import calibrate_arrays
from balcal.evaluation.prediction_files import KINDS, read_arrays

P = np.random.default_rng(0).dirichlet(np.ones(3), 12)
Y = np.arange(12) % 3


def stored(save, **arrays):
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


CSV = "\n".join(["label,a,b,c", *(",".join([str(y), *map(repr, p.tolist())]) for p, y in zip(P, Y, strict=True))])
WHOLE = {
    "plain.npz": stored(np.savez, probs=P, labels=Y),
    "packed.npz": stored(np.savez_compressed, log_probs=np.log(P).astype(np.float32), labels=Y.astype(np.uint8)),
    "logits.npz": stored(np.savez, logits=np.log(P), labels=Y, role=np.array("val")),
    "table.npy": stored(np.save, arr=P),
    "table.csv": CSV.encode(),
}
changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "set"]), st.integers(0, 10**6), st.binary(min_size=1, max_size=6)
    ),
    max_size=4,
)


def changed(content, steps):
    content = bytearray(content)
    for how, where, more in steps:
        at = where % max(1, len(content))
        if how == "flip" and content:
            content[at] ^= 1 << (where % 8)
        elif how == "cut":
            del content[at : at + (where % 997)]
        elif how == "insert":
            content[at:at] = more
        else:
            content[at : at + len(more)] = more
    return bytes(content)


@law(examples=150, name=st.sampled_from([*WHOLE]), steps=changes, kind=st.sampled_from([*KINDS, None]))
def test_damaged_files_are_refused_or_hold_predictions(name, steps, kind):
    with tempfile.TemporaryDirectory() as folder:
        path, labels = Path(folder, name), Path(folder, "labels.npy")
        path.write_bytes(changed(WHOLE[name], steps))
        np.save(labels, Y)
        found = outcome(read_arrays, str(path), str(labels) if name.endswith(".npy") else None, kind)
    if found is None:
        return
    predictions = outcome(found.predictions)
    assert predictions.log_probs.ndim == 2
    assert len(predictions.labels) == len(predictions.log_probs)
    assert 0 <= int(predictions.labels.min()) <= int(predictions.labels.max()) < predictions.log_probs.shape[1]
    torch.testing.assert_close(
        predictions.log_probs.double().exp().sum(1), torch.ones(len(predictions)).double(), atol=2e-5, rtol=0
    )


@law(
    examples=15,
    both=distributions(least=20, most=40, classes=3),
    steps=changes,
    method=st.sampled_from(["ts", "ets", "vs"]),
)
def test_calibrating_files_writes_all_or_nothing(both, steps, method):
    p, y = both
    with tempfile.TemporaryDirectory() as folder:
        held, other, out = (Path(folder, name) for name in ("held.npz", "other.npz", "out.npz"))
        np.savez(held, probs=p, labels=y)
        other.write_bytes(changed(WHOLE["plain.npz"], steps))
        result = outcome(calibrate_arrays, str(held), method, str(other), None, None, out)
        assert out.exists() == (result is not None)
        if result is not None:
            written = np.load(out)
            assert np.abs(written["probs"].sum(1) - 1).max() < 1e-6
            assert {each.name for each in Path(folder).iterdir()} == {"held.npz", "other.npz", "out.npz"}
