"""Turn what users pass into tensors: a table of predictions, its labels, the weights of its samples.

Of two classes one column is enough: the probability of class 1, its logarithm, or its log-odds. Labels are class
indices; whole numbers in any type, digits as text and one-hot rows are converted, as they can mean only one thing.
"""

from __future__ import annotations

import math
import warnings
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from balcal.core import BalcalError, at_least_float32
from balcal.runtime.labels import check_labels
from balcal.runtime.values import as_tensor

Kind = Literal["probs", "log_probs", "logits"]
ONE_COLUMN = {"probs": "probability", "log_probs": "log-probability", "logits": "log-odds"}
LIGHTEST, HEAVIEST = 1e-30, 1e30
"""weights between which squares and quotients of sums are finite"""


def read_table(given: Any, kind: Kind) -> tuple[Tensor, bool]:
    """A table (N, K) of floating-point numbers, with at least one row; and whether it was one column, made two here.

    >>> read_table([0.25, 1.0], "probs")
    (tensor([[0.7500, 0.2500],
            [0.0000, 1.0000]], dtype=torch.float64), True)
    """
    what = "logits" if kind == "logits" else "probabilities"
    table = as_tensor(given, f"the {what}")
    if table.ndim not in (1, 2):
        raise BalcalError(f"expected {what} (N, K), a row for each sample, got an array of shape {tuple(table.shape)}")
    if not len(table):
        raise BalcalError("there are no samples to measure")
    if table.ndim == 1 or table.shape[1] == 1:
        return _two_columns(table.reshape(-1), kind), True
    if table.shape[1] == 0:
        raise BalcalError(f"expected {what} (N, K), got rows without a number")
    return (table if table.is_floating_point() else table.double()), False


def _two_columns(column: Tensor, kind: Kind) -> Tensor:
    """(class 0, class 1) from what is given of class 1."""
    must = f"one column must be the {ONE_COLUMN[kind]} of class 1"
    if not column.is_floating_point():
        raise BalcalError(f"{must}, a floating-point number, not {column.dtype}: are these class labels?")
    if bool(column.isnan().any()):
        raise BalcalError("the predictions contain NaN or infinite values")
    if kind == "logits":
        return torch.stack([torch.zeros_like(column), column], 1)
    low, high = (float(end) for end in column.aminmax())
    if kind == "probs":
        if low < 0 or high > 1:
            raise BalcalError(f"{must}, from 0 to 1, and one is {low if low < 0 else high:.2g}: are these logits?")
        return torch.stack([1 - column, column], 1)
    if high > 0:
        raise BalcalError(f"{must}, at most 0, and one is {high:.2g}: are these logits?")
    wide = at_least_float32(column)
    rest = torch.where(wide > -math.log(2), (-wide.expm1()).log(), (-wide.exp()).log1p())
    return torch.stack([rest.to(column.dtype), column], 1)


def read_labels(given: Any, table: Tensor, one_column: bool = False) -> Tensor:
    """The class index of each row of the table, on its device."""
    if given is None:
        raise BalcalError("pass labels= as well: the class index of each sample")
    objects = _objects(given)
    answers = as_tensor(given if objects is None else objects, "the labels").to(table.device)
    if answers.ndim == 2 and answers.shape == table.shape:
        answers = _from_one_hot(answers)
    if answers.ndim == 2 and answers.shape[1] == 1:
        answers = answers[:, 0]
    if answers.ndim != 1 or len(table) != len(answers):
        raise BalcalError(
            f"expected probabilities (N, K) and N labels, got {tuple(table.shape)} and {tuple(answers.shape)}"
        )
    answers = _whole(answers)
    numbers = answers.long()
    if one_column and bool((numbers > 1).any()):
        raise BalcalError(
            f"one column is the probability of class 1 of two classes, but a label is {int(numbers.max())}: "
            "pass a column for each class"
        )
    signed = table.shape[1] == 2 and answers.dtype != torch.uint64
    if signed and int(numbers.min()) == -1 and bool((numbers.abs() == 1).all()):
        raise BalcalError("labels are class indices, 0 and 1, not -1 and 1: pass (labels + 1) // 2")
    check_labels(answers, table.shape[1], "the data")
    return numbers


def _objects(given: Any) -> list[int] | NDArray[np.float64] | None:
    """Labels as text or in an array of objects, as numbers; none, if they are something else."""
    if isinstance(given, Tensor) or np.ma.isMaskedArray(given):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            array = np.asarray(given)
    except Exception:  # whatever a user's object raises: `as_tensor` says what is wrong with it
        return None
    if array.ndim != 1 or not array.size or array.dtype.kind not in "OUT":
        return None
    values = array.tolist()
    if all(isinstance(value, str) for value in values):
        return _digits(values)
    exact = all(isinstance(value, Real) and not abs(float(value)) > 2**53 for value in values)
    return np.array(values, dtype=np.float64) if exact else None


def _digits(words: list[str]) -> list[int]:
    bad = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 16)), None)
    if bad is None:
        return [int(word) for word in words]
    raise BalcalError(
        f"labels must be class indices, in the order of the columns, not names like {bad!r:.40}: "
        "pass [classes.index(name) for name in labels], with `classes` in that order"
    )


def _from_one_hot(rows: Tensor) -> Tensor:
    ones = rows == 1
    if not bool(((rows == 0) | ones).all()) or not bool((ones.sum(1) == 1).all()):
        raise BalcalError(
            f"labels of shape {tuple(rows.shape)} must be one-hot, a single 1 in each row: pass class indices, "
            "or votes to soft_nll and soft_kl as soft_labels="
        )
    return ones.int().argmax(1)


def _whole(answers: Tensor) -> Tensor:
    """Whole numbers stored as floating-point ones are converted."""
    if not answers.is_floating_point():
        return answers
    broken = answers[~(answers == answers.round()) | ~answers.isfinite()]
    if len(broken):
        raise BalcalError(
            f"labels must be class indices, whole numbers, and one is {float(broken[0]):.4g}; "
            "votes and probabilities go to soft_nll and soft_kl as soft_labels="
        )
    return answers.double().clamp(-(2.0**53), 2.0**53).long()


def read_weights(given: Any, samples: int, name: str = "sample_weight", all_zero: bool = False) -> Tensor | None:
    """(N,) float64 on the CPU, checked: finite, none negative, not all 0 unless `all_zero`. None stays None.

    >>> read_weights([1, 2, 0], 3)
    tensor([1., 2., 0.], dtype=torch.float64)
    """
    if given is None:
        return None
    weights = as_tensor(given, name).cpu().double()
    if weights.shape != (samples,):
        raise BalcalError(
            f"{name} must have one number for each of {samples:,} samples, not the shape {tuple(weights.shape)}"
        )
    if not bool(weights.isfinite().all()) or not bool((weights >= 0).all()):
        raise BalcalError(f"{name} must be finite and not negative")
    if not bool((weights > 0).any()):
        if all_zero:
            return weights
        raise BalcalError(f"{name} is 0 for every sample: there is nothing to measure")
    low, high = (float(end) for end in weights[weights > 0].aminmax())
    if low < LIGHTEST or high > HEAVIEST:
        raise BalcalError(f"{name} runs from {low:.1g} to {high:.1g}: scale it, and set what is negligible to 0")
    return weights


def effective_size(weights: Tensor) -> float:
    """How many samples of equal weight say as much: (sum w)^2 / sum w^2.

    >>> effective_size(torch.tensor([1.0, 1.0, 2.0]))  # 16 / 6
    2.6666666666666665
    """
    scaled = weights.double() / float(weights.max())
    return float(scaled.sum() ** 2 / scaled.square().sum())


def decimals_of(probs: Tensor) -> int | None:
    """To how many decimals, one to four, all numbers of a table of probabilities were rounded; none, if not."""
    if float(probs.min()) < 0 or float(probs.max()) > 1:
        return None
    for decimals in range(1, 5):
        scaled = probs.double() * 10**decimals
        if float((scaled - scaled.round()).abs().max()) < 1e-6 * 10**decimals:
            return decimals
    return None
