"""Values that people bring: arrays of any kind, and settings. Read, or refused in one sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from balcal.core import BalcalError


def as_tensor(values: Any, what: str = "the data") -> Tensor:
    """Tensors stay where they are; arrays share their memory; lists are read in float64, as numpy does.

    Gradients are left behind. What is not numbers, or hides some of them behind a mask, is refused.

    >>> as_tensor([[1, 2], [3]])
    Traceback (most recent call last):
    balcal.core.BalcalError: the data cannot be read as an array of numbers: its rows must be equally long
    """
    if isinstance(values, Tensor):
        return _plain(values, what)
    if np.ma.isMaskedArray(values) and bool(np.ma.is_masked(values)):
        raise BalcalError(f"{what} has masked entries: leave those samples out, or fill them, before you pass it")
    array = _array(values, what)
    if array.dtype.kind not in "biuf":
        raise BalcalError(f"expected numbers in {what}, got an array of {array.dtype}")
    usual = f"{array.dtype.kind}{min(array.dtype.itemsize, 8)}"  # long doubles are cut, bytes put in our order
    array = np.ascontiguousarray(array.astype(usual, copy=False)).reshape(array.shape).view(usual)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a read-only array: we do not write
        return torch.from_numpy(array)


def _plain(values: Tensor, what: str) -> Tensor:
    if values.layout is not torch.strided or values.is_quantized or values.is_meta or values.is_complex():
        raise BalcalError(f"expected numbers in {what}, got a tensor of {values.dtype}, {values.layout}")
    if type(values).__name__ == "MaskedTensor":
        raise BalcalError(f"{what} is a masked tensor: leave the masked samples out before you pass it")
    plain = values.detach()
    return plain.float() if plain.is_floating_point() and plain.dtype.itemsize == 1 else plain


def _array(values: Any, what: str) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a masked entry in a list would become NaN
            return np.asarray([_detached(each) for each in values] if isinstance(values, (list, tuple)) else values)
    except BalcalError:
        raise
    except Exception:  # whatever somebody's object does when it is asked for its numbers
        raise BalcalError(f"{what} cannot be read as an array of numbers: its rows must be equally long") from None


def _detached(each: Any) -> Any:
    """A row of a list: a tensor is taken off its device and its gradients."""
    if isinstance(each, Tensor):
        return each.detach().cpu().numpy()
    if np.ma.isMaskedArray(each) and bool(np.ma.is_masked(each)):
        raise BalcalError("the data has masked entries: leave those samples out, or fill them, before you pass it")
    return each


def check_whole(value: Any, name: str, least: float = 0, most: float = math.inf) -> int:
    """A whole number from `least` to `most`.

    >>> check_whole(2.5, "bins")
    Traceback (most recent call last):
    balcal.core.BalcalError: bins must be a whole number, not 2.5
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BalcalError(f"{name} must be a whole number, not {_shown(value)}")
    whole = int(value)
    if whole < least:
        raise BalcalError(f"{name} must be at least {least}, not {whole}")
    if whole > most:
        raise BalcalError(f"{name} must be at most {most:,}, not {whole}")
    return whole


def check_number(value: Any, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number from `least` to `most`.

    >>> check_number(float("nan"), "tolerance")
    Traceback (most recent call last):
    balcal.core.BalcalError: tolerance must be a finite number, not nan
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise BalcalError(f"{name} must be a finite number, not {_shown(value)}")
    number = float(value)
    if not least <= number <= most:
        limit = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise BalcalError(f"{name} must be {limit}, not {number:g}")
    return number


def check_choice(value: Any, name: str, choices: Sequence[str]) -> None:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise BalcalError(f"{name} must be {' or '.join(choices)}, not {_shown(value)}")


def plain_record(told: Any, kind: type[Any]) -> dict[str, Any]:
    """Plain data that has the fields of a record, and nothing else."""
    names = [each.name for each in fields(kind)]
    if not isinstance(told, Mapping) or set(told) != set(names):
        raise BalcalError(f"a {kind.__name__.lower()} must have {', '.join(names)}")
    return dict(told)


def plain_list(told: Any, name: str) -> list[Any]:
    if not isinstance(told, (list, tuple)):
        raise BalcalError(f"{name} must be a list")
    return list(told)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
