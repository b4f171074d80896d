"""Pickles of strangers. A pickle is a program; this runs only those that build arrays, lists, dicts and strings."""

from __future__ import annotations

import pickle
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def _empty_array(kind: Any, shape: Any, dtype: Any) -> NDArray[Any]:
    return np.ndarray((0,), np.uint8)  # its content follows in the pickle; asking for more now could fill the memory


def _encoded(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as text in {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): "ndarray",  # only ever an argument of the above
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encoded,  # how Python 3 writes bytes for Python 2
}


class _Cautious(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for `{module}.{name}`, which data has no use for: it may be malicious"
            ) from None


def unpickle(file: IO[bytes]) -> Any:
    """What the pickle builds, strings of Python 2 as bytes.

    >>> import io
    >>> unpickle(io.BytesIO(pickle.dumps({"labels": [1, 2]})))
    {'labels': [1, 2]}
    """
    try:
        return _Cautious(file, encoding="bytes").load()
    except (AttributeError, MemoryError, OverflowError) as error:
        raise pickle.UnpicklingError(f"it is damaged ({type(error).__name__})") from None
