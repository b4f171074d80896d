"""Unknown names get a suggestion; names that are printed are escaped for the terminal, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def unknown(what: str, name: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """The error message for a name that does not exist; `others`: what is called differently elsewhere.

    >>> unknown("fruit", "aple", ["pear", "apple"])
    'unknown fruit `aple`; did you mean `apple`? known: apple, pear'
    """
    known = sorted(known)
    found = (others or {}).get(name)
    found = found if found in known else nearest(name, known)
    hint = f"; did you mean `{found}`?" if found else ";"
    return f"unknown {what} `{name}`{hint} known: {', '.join(known)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, whatever its case; None if none is.

    >>> nearest("ADAMW", ["sgd", "adam", "adamw"]), nearest("lion", ["sgd", "adamw"])
    ('adamw', None)
    """
    known = list(known)
    same = [each for each in known if each.lower() == name.lower()]
    return next(iter(same or get_close_matches(name, known, n=1, cutoff=0.5)), None)


HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""what a terminal obeys instead of showing it: control characters, those that change the direction of text, and lone
surrogates, which cannot be encoded"""
SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def plain(text: object) -> str:
    r"""The text on one line, with control characters written out. Text inside JSON keeps its meaning.

    >>> print(plain("cat\x1b[31m\ndog"))
    cat\u001b[31m\ndog
    """
    return HIDDEN.sub(lambda found: SHORT.get(found[0], f"\\u{ord(found[0]):04x}"), str(text))


def plain_lines(text: object) -> str:
    """The same for text that has lines of its own."""
    return "\n".join(map(plain, str(text).split("\n")))


def in_markdown(text: object) -> str:
    r"""Escape a name for a Markdown sentence or table.

    >>> print(in_markdown("a|b <script> _c_ d_e"))
    a\|b \<script\> \_c\_ d_e
    """
    return re.sub(r"[\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\\g<0>", plain(text))


def as_code(text: object, cell: bool = False) -> str:
    r"""A name as Markdown code; `cell`: inside a table, where a bar would end the cell.

    >>> print(as_code("balcal+ts"), as_code("a`b"), as_code("a|b", cell=True))
    `balcal+ts` ``a`b`` `a\|b`
    """
    shown = plain(text)
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown[:1] == "`" or shown[-1:] == "`" else ""
    return f"{fence}{pad}{shown.replace('|', chr(92) + '|') if cell else shown}{pad}{fence}"


LATEX = {c: f"\\{c}" for c in "_%&#${}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def in_latex(text: object) -> str:
    r"""Escape a name for LaTeX.

    >>> print(in_latex(r"a_b{50%} \input"))
    a\_b\{50\%\} \textbackslash{}input
    """
    return "".join(LATEX.get(c, c) for c in plain(text))
