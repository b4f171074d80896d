"""Newton's method for smooth convex functions of many numbers. The Hessian is only ever multiplied with.

Each step solves H d = -slope by conjugate gradients, roughly at first and closely near the minimum. The better the
inverse of H is known, the fewer products a step needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from balcal.core import BalcalError

STEEP = 1e-4
"""A fit that ends on a slope above this has not converged."""
STEPS = 100
PRODUCTS = 500
"""most of them in a step"""
HALVINGS = 40
ROUNDING = 1e-14
"""error of a value, relative to it"""

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""numbers -> (value, slope)"""
Change = Callable[[Tensor], Tensor]


class NotSettled(BalcalError):
    """A fit that has not converged."""


def check_settled(steep: float, small: float, who: str) -> None:
    if not steep <= max(STEEP, small):
        raise NotSettled(
            f"the fit of `{who}` did not settle (its slope is still {steep:.1e}): use `ts`, or a stronger penalty"
        )


def newton(
    objective: Objective, product: Change, inverse: Callable[[], Change], start: Tensor, who: str, small: float
) -> Tensor:
    """Where a smooth convex function is lowest.

    Parameters
    ----------
    objective
        The function and its slope.
    product
        The Hessian at the numbers that `objective` was last asked about, times a direction.
    inverse
        Makes a function that multiplies with about the inverse of that Hessian.
    small
        The slope s at which the search ends, as the root of s * inverse(s). Half its square is about what is still to
        be gained.

    >>> h, lowest = torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.tensor([4.0, 5.0])
    >>> def objective(v):
    ...     slope = h @ (v - lowest)
    ...     return (v - lowest) @ slope / 2, slope
    >>> newton(objective, h.mv, lambda: lambda slope: slope / h.diag(), torch.zeros(2), "it", 1e-5)
    tensor([4., 5.])
    """
    best, (value, slope), scaled = start, objective(start), inverse()
    for number in range(STEPS):
        steep = math.sqrt(_dot(slope, scaled(slope)))
        if steep <= small:
            break
        scaled = inverse() if number else scaled
        rough = max(min(0.3, math.sqrt(steep)), small / (2 * steep))
        step = _conjugate_gradients(product, scaled, slope, rough)
        before, fall = float(value), _dot(slope, step)
        for _ in range(HALVINGS):
            value, slope = objective(best + step)
            if float(value) <= before + 1e-4 * fall + ROUNDING * abs(before):
                break
            step, fall = step / 2, fall / 2
        else:
            break
        best = best + step
        if not float(value) < before:
            break
    check_settled(steep, small, who)
    return best


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())


def _conjugate_gradients(product: Change, scaled: Change, slope: Tensor, rough: float) -> Tensor:
    """The d with H d = -slope, so closely that `rough` of the slope is left."""
    rest, direction, step = -slope, -scaled(slope), torch.zeros_like(slope)
    size = _dot(rest, direction)
    enough = rough**2 * size
    for _ in range(PRODUCTS):
        bent = product(direction)
        curvature = _dot(direction, bent)
        if not curvature > 0:  # lost in rounding
            break
        length = size / curvature
        step = step + length * direction
        rest = rest - length * bent
        down = scaled(rest)
        size, last = _dot(rest, down), size
        if size <= enough:
            break
        direction = down + size / last * direction
    return step
