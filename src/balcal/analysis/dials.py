"""What beta allows: how confident an ETF classifier can be at most."""

from __future__ import annotations

import math


def largest_confidence(beta: float, num_classes: int) -> float:
    """A feature at unit length along a column: logit beta there, -beta/(K-1) elsewhere.

    >>> round(largest_confidence(1, 10), 4), round(largest_confidence(10, 10), 4)
    (0.2524, 0.9999)
    """
    others = num_classes - 1
    return 1 / (1 + others * math.exp(-beta * num_classes / others))
