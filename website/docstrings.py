"""For the reference: an example without a heading gets one, so that it is shown as code."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import griffe

HEADING = ("Examples", "--------")


class Examples(griffe.Extension):  # type: ignore[misc]
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_heading(obj.docstring.value)


def with_heading(text: str) -> str:
    """The heading stands before the example, and before the words that introduce it after a list of parameters.

    >>> print(with_heading("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    Examples
    --------
    >>> 1 + 1
    2
    """
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith(">>>")), None)
    if first is None or HEADING in pairwise(lines):
        return text
    rules = [i for i, line in enumerate(lines[:first]) if line and set(line) == {"-"}]
    breaks = [i for i, line in enumerate(lines[:first]) if not line.strip() and (not rules or i > rules[-1])]
    place = (breaks[0] if rules else breaks[-1]) + 1 if breaks else first
    return "\n".join([*lines[:place], *([] if breaks else [""]), *HEADING, *lines[place:]])
