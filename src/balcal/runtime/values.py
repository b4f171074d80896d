"""Check values that users pass, settings and arrays, and refuse a wrong one in one sentence.

Types and ranges of settings are declared on the fields of a record:

    @dataclass(frozen=True)
    class Focal:
        gamma: Annotated[float, at_least(0)] = 3.0

        def __post_init__(self) -> None:
            check_settings(self, "loss")

So `Focal(gamma=-1)`, `--set loss.gamma=-1` and a method's own settings get the same error message.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from balcal.core import BalcalError
from balcal.runtime.names import nearest


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be, never NaN or infinite. It does not restrict values that are no numbers."""

    words: str
    """completes the sentence "must ..." """
    low: float = -math.inf
    high: float = math.inf
    low_belongs: bool = True
    high_belongs: bool = True
    why: str = ""

    def holds(self, value: float) -> bool:
        above = value > self.low or (self.low_belongs and value == self.low)
        below = value < self.high or (self.high_belongs and value == self.high)
        return above and below and not _infinite(value)


ANY = Range("be a number")
LARGEST = float(np.finfo(np.float32).max)


def _infinite(value: float) -> bool:
    """Whether a number is infinite in float32, which networks compute in; whole numbers are settings, not operands."""
    return isinstance(value, float) and abs(value) > LARGEST


def at_least(low: float, words: str = "", most: float = math.inf) -> Range:
    """From `low` on, and no further than `most`."""
    limit = "" if math.isinf(most) else f" and at most {most:,}"
    return Range(f"{words or f'be at least {low:g}'}{limit}", low, most)


def above(low: float, words: str = "") -> Range:
    """Anything larger than `low`."""
    return Range(words or f"be above {low:g}", low, low_belongs=False)


def within(interval: str, why: str = "") -> Range:
    """An interval in mathematical notation; a round bracket leaves the end out.

    >>> 1.0 in [x for x in (0.0, 1.0) if within("(0, 1]").holds(x)], within("(0, 1]").holds(0.0)
    (True, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    return Range(f"lie in {interval}", low, high, interval[0] == "[", interval[-1] == "]", why)


SEED = at_least(0)


@cache
def adapter(wanted: Any) -> TypeAdapter[Any]:
    """The pydantic adapter that checks values of a type; cached, as making one takes a while."""
    return TypeAdapter(wanted)


def declared(record: Any) -> Mapping[str, tuple[Any, Range]]:
    """The type and the range of each setting of a record."""
    kind: Any = type(record)
    return _declared(kind)


@cache
def _declared(kind: Any) -> Mapping[str, tuple[Any, Range]]:
    types, hints = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    return {f.name: (types[f.name], _range(hints[f.name])) for f in fields(kind) if f.compare}


def _range(hint: Any) -> Range:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Range)), ANY)


def check_settings(record: Any, root: str) -> None:
    """Raise an error if a field's value is not allowed. Lists become tuples, and numpy's numbers Python's."""
    for name, (wanted, allowed) in declared(record).items():
        given = getattr(record, name)
        value = check_value(f"{root}.{name}", given, wanted, allowed)
        if value is not given:
            object.__setattr__(record, name, value)


def check_value(name: str, value: Any, wanted: Any, allowed: Range = ANY) -> Any:
    """Return the value if it is of the type and in the range, else raise an error.

    >>> check_value("seed", np.int64(3), int, SEED)
    3
    >>> check_value("seed", True, int, SEED)
    Traceback (most recent call last):
    balcal.core.BalcalError: `seed=True` does not fit: input should be a valid integer
    >>> check_value("plan.lr", math.inf, float, above(0))
    Traceback (most recent call last):
    balcal.core.BalcalError: plan.lr must be above 0 and finite in float32, not inf
    """
    value = as_python(value)
    try:
        checked = adapter(wanted).validate_python(value, strict=True)
    except ValidationError as error:
        raise misfit(name, repr(value), error) from None
    for number in checked if isinstance(checked, tuple) else (checked,):
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not allowed.holds(number):
            finite = " and finite in float32" if _infinite(number) else ""
            why = f": {allowed.why}" if allowed.why else ""
            raise BalcalError(f"{name} must {allowed.words}{finite}, not {value}{why}")
    return value


def as_python(value: Any) -> Any:
    """numpy's numbers as Python's, lists as tuples."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(as_python, value)) if isinstance(value, (list, tuple)) else value


def misfit(name: str, value: str, error: ValidationError) -> BalcalError:
    """The error for a value of another type."""
    reasons = " or ".join(dict.fromkeys(e["msg"][0].lower() + e["msg"][1:] for e in error.errors()))
    words = [
        word for e in error.errors() for word in re.findall("'([^']+)'", str(e.get("ctx", {}).get("expected", "")))
    ]
    near = nearest(value.strip("'\""), words)
    return BalcalError(f"`{name}={value}` does not fit: {reasons}{f'; did you mean `{near}`?' if near else ''}")


def as_tensor(values: Any, what: str = "the data") -> Tensor:
    """Read an array of any kind: tensors stay on their device, arrays share their memory, lists become float64.

    Gradients are detached. What is not numbers, or has masked entries, is refused.

    >>> as_tensor([[1, 2], [3]])
    Traceback (most recent call last):
    balcal.core.BalcalError: the data cannot be read as an array of numbers: its rows must be equally long
    """
    if isinstance(values, Tensor):
        return _plain_tensor(values, what)
    if np.ma.isMaskedArray(values) and bool(np.ma.is_masked(values)):
        raise BalcalError(f"{what} has masked entries: leave those samples out, or fill them, before you pass it")
    array = _array(values, what)
    if array.dtype.kind not in "biuf":
        raise BalcalError(f"expected numbers in {what}, got an array of {array.dtype}")
    usual = f"{array.dtype.kind}{min(array.dtype.itemsize, 8)}"  # long doubles to 64 bits, bytes in native order
    array = np.ascontiguousarray(array.astype(usual, copy=False)).reshape(array.shape).view(usual)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a read-only array: nothing writes to it
        return torch.from_numpy(array)


def _plain_tensor(values: Tensor, what: str) -> Tensor:
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
    except Exception:  # whatever a user's object raises when it is converted
        raise BalcalError(f"{what} cannot be read as an array of numbers: its rows must be equally long") from None


def _detached(each: Any) -> Any:
    """A row of a list; a tensor becomes an array on the CPU, without gradients."""
    if isinstance(each, Tensor):
        return each.detach().cpu().numpy()
    if np.ma.isMaskedArray(each) and bool(np.ma.is_masked(each)):
        raise BalcalError("the data has masked entries: leave those samples out, or fill them, before you pass it")
    return each


def check_whole(value: Any, name: str, least: float = 0, most: float = math.inf) -> int:
    """Return a whole number from `least` to `most`, else raise an error.

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
    """Return a finite number from `least` to `most`, else raise an error.

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
    """Raise an error unless the value is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise BalcalError(f"{name} must be {' or '.join(choices)}, not {_shown(value)}")


def plain_record(data: Any, kind: type[Any]) -> dict[str, Any]:
    """Return plain data that has just the fields of a record, else raise an error."""
    names = [each.name for each in fields(kind)]
    if not isinstance(data, Mapping) or set(data) != set(names):
        raise BalcalError(f"a {kind.__name__.lower()} must have {', '.join(names)}")
    return dict(data)


def plain_list(data: Any, name: str) -> list[Any]:
    """Return plain data as a list, else raise an error."""
    if not isinstance(data, (list, tuple)):
        raise BalcalError(f"{name} must be a list")
    return list(data)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}..."
