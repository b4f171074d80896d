"""Names that people type."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A sentence for a name that nobody has.

    >>> unknown("fruit", "aple", ["pear", "apple"])
    'unknown fruit `aple`; did you mean `apple`? known: apple, pear'
    """
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean `{near[0]}`?" if near else ";"
    return f"unknown {what} `{name}`{hint} known: {', '.join(known)}"
