"""Fuzzing: properties as tests, and inputs of every kind.

Every call must return a right result or raise a `BalcalError` of one sentence; never another exception, a warning of a
library, or NaN. In the ordinary suite each property gets a few fixed examples. `make fuzz` sets BALCAL_FUZZ to a number
of seconds, which the properties share, with new examples each time.
"""

import os
import time
import warnings

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from balcal.core import BalcalError

SECONDS = float(os.environ.get("BALCAL_FUZZ") or 0)
OUR_WARNINGS = "|".join(
    [
        "[0-9.]+ held-out samples are few",
        "rows of these predictions do not",
        "all .* calibration samples are right",
        "the best temperature is below",
    ]
)
LAWS = []


def law(examples=40, **inputs):
    """Make a property of named inputs a test: of a few fixed examples, or of new ones for its share of the time."""

    def made(check):
        LAWS.append(check.__name__)
        hurried = settings(
            max_examples=200 if SECONDS else examples,
            derandomize=not SECONDS,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        run = hurried(given(**inputs)(check))

        def test():
            end = time.monotonic() + SECONDS / len(LAWS)
            run()
            while time.monotonic() < end:
                run()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return made


def outcome(call, *args, **named):
    """What a call returns, or None if it raises a `BalcalError` of one sentence. Anything else fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", OUR_WARNINGS, UserWarning)
        try:
            return call(*args, **named)
        except BalcalError as error:
            message = str(error)
            assert message.strip(), "it says something"
            assert "\n" not in message, "in one sentence"
            assert len(message) < 1000, message
            return None


def mostly(good, *others):
    """A valid input in nine of ten cases."""
    return st.integers(0, 9).flatmap(lambda roll: st.one_of(*others) if roll == 0 else good)


def softmax(z):
    with np.errstate(under="ignore"):
        p = np.exp(z - z.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)


@st.composite
def distributions(draw, least=1, most=30, classes=None):
    """(probabilities (N, K) in float64, labels): smooth ones, ties, certain ones, uniform ones, zeros."""
    n, k = draw(st.integers(least, most)), classes or draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["smooth", "hot", "ties", "certain", "uniform"]))
    z = rng.normal(size=(n, k)) * {"smooth": 2, "hot": 40, "ties": 2, "certain": 1, "uniform": 0}[kind]
    p = softmax(z)
    if kind == "ties":
        p = np.maximum(np.round(p * 4), 0) + (np.arange(k) == 0)
        p = p / p.sum(1, keepdims=True)
    if kind == "certain":
        p = np.eye(k)[rng.integers(k, size=n)]
    labels = rng.integers(k, size=n)
    return p, np.where(rng.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0])), p.argmax(1), labels)


numbers = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(), st.booleans(), st.none(), st.text(max_size=4), st.just([]), st.just({})
)
"""for settings: numbers, and what users may pass in their place"""
odd = st.one_of(
    numbers,
    st.lists(st.one_of(st.floats(), st.integers(-3, 3), st.none(), st.lists(st.floats(), max_size=3)), max_size=4),
    st.sampled_from(
        [
            np.zeros((0, 3)),
            np.array(0.5),
            np.array([["a", "b"]]),
            np.array([[1, None]], dtype=object),
            np.array([["2020", "2021"]], dtype="M8[Y]"),
            np.zeros((3, 2), dtype=">c8"),
            np.zeros((2, 2, 2)),
            np.full((3, 2), 0.5, dtype=np.longdouble),
            np.ma.masked_array([[0.5, 0.5]], mask=[[True, False]]),
            np.array([2**63, 0], dtype=np.uint64),
            torch.full((2, 2), 0.5).to_sparse(),
            torch.full((2, 2), 0.5, requires_grad=True),
            torch.full((2, 2), 0.5, dtype=torch.float8_e4m3fn),
            torch.zeros(2, 2, device="meta"),
            "probs",
            object(),
        ]
    ),
)
"""what users may pass in place of a table, or of labels"""


@st.composite
def spoilt(draw, table):
    """The table as another kind of array, perhaps with something wrong in it."""
    table = np.array(table, dtype=np.float64)
    how = draw(st.sampled_from(["as it is"] * 10 + ["scaled", "cell", "cut", "turned", "flat"]))
    if how == "scaled":
        table = table * draw(st.sampled_from([1 + 1e-7, 1.003, 0.992, 1.02, -1.0, 1e20]))
    if how == "cell" and table.size:
        cells = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -1e-9, np.nan, np.inf, -np.inf]))
        table.flat[draw(st.integers(0, table.size - 1))] = draw(cells)
    table = {"cut": table[:, :1], "turned": table.T, "flat": table.ravel()}.get(how, table)
    with np.errstate(all="ignore"):
        kinds = {
            "float64": lambda: table,
            "float32": lambda: table.astype(np.float32),
            "float16": lambda: table.astype(np.float16),
            "big": lambda: table.astype(">f4"),
            "list": table.tolist,
            "tensor": lambda: torch.from_numpy(table).requires_grad_(),
            "bfloat16": lambda: torch.from_numpy(table).bfloat16(),
            "rows": lambda: [*torch.from_numpy(table)],
        }
        return kinds[draw(st.sampled_from([*kinds]))]()


@st.composite
def answers(draw, labels, classes):
    """Labels as another kind of array, perhaps with something wrong in them."""
    labels = np.array(labels)
    how = draw(st.sampled_from(["as they are"] * 20 + ["shifted", "fractions", "fewer", "column", "huge"]))
    labels = {
        "shifted": labels + draw(st.integers(-2, classes + 1)),
        "fractions": labels + 0.7,
        "fewer": labels[1:],
        "column": labels[:, None],
        "huge": labels.astype(np.uint64) + np.uint64(2**63),
    }.get(how, labels)
    kinds = {"array": lambda: labels, "list": labels.tolist, "tensor": lambda: torch.from_numpy(labels)}
    if labels.dtype.kind == "i" and labels.size and labels.min() >= 0:
        kinds |= {"unsigned": lambda: labels.astype(np.uint64), "bytes": lambda: labels.astype(np.uint8)}
    return kinds[draw(st.sampled_from([*kinds]))]()
