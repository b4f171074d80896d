"""What post-hoc methods share: the check of the held-out set, a careful minimiser, maps of log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from balcal.core import BalcalError, Outputs, check_labels
from balcal.metrics.inputs import LARGE, LOWEST, finite_scores
from balcal.runtime.devices import sum_dtype

STEEP = 1e-4
"""A fit that ends on a slope above this has not converged."""
TIE = 1e-9
"""share of the raw probability that decides between equal pieces"""

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""numbers -> (value, slope)"""


def read_scores(scores: Tensor, who: str) -> Tensor:
    """Held-out scores (N, K) in float64 on the CPU, lifted; -inf is the log of 0 and allowed, NaN and +inf are not."""
    if len(scores) == 0:
        raise BalcalError(f"cannot fit `{who}` on an empty split: hold out some validation data")
    z = scores.detach().double().cpu()
    bad = z.isnan().any(1) | ~z.amax(1).isfinite()
    if bool(bad.any()):
        raise BalcalError(f"cannot fit `{who}`: the scores of sample {int(bad.nonzero()[0])} are NaN or infinite")
    best, second = z.topk(2, dim=1).values.T
    apart = torch.where(second == -torch.inf, 0.0, best - second)
    if float(apart.max()) > LOWEST:
        raise BalcalError(
            f"cannot fit `{who}`: the two largest scores of sample {int(apart.argmax())} differ by "
            f"{float(apart.max()):.2g}: divide all logits by a constant, or leave that sample out"
        )
    return finite_scores(z)


def check_size(scores: Tensor, who: str) -> None:
    """For maps that take scores as they are: refuse scores so large that their differences are lost in rounding."""
    best, second = scores.topk(2, dim=1).values.T
    size = float(torch.maximum(best.abs(), torch.where(second == -torch.inf, 0.0, best - second)).max())
    if size > LARGE:
        raise BalcalError(
            f"`{who}` takes logits as they are, and {size:.2g} is too large: divide by a constant, or pass log_probs"
        )


def check_held_out(
    outputs: Outputs,
    labels: Tensor,
    who: str,
    least: int = 10,
    per_class: int = 0,
    each_class: str = "",
    as_they_are: bool = False,
) -> tuple[Tensor, Tensor]:
    """The calibration set as the fits take it: float64 scores (N, K) and labels (N,), or one sentence on what is wrong.

    `least` is the smallest set that the fit accepts, or `per_class` samples times K. `each_class` names what is fitted
    for every class by itself, if anything is: then every class must occur. `as_they_are`: see `PostHoc`.
    """
    scores = outputs.log_probs()
    if scores.ndim != 2 or scores.shape[1] < 2 or labels.shape != scores.shape[:1]:
        raise BalcalError(
            f"cannot fit `{who}` on scores of shape {tuple(scores.shape)} and labels of shape {tuple(labels.shape)}: "
            "it takes a row of K scores (N, K) for each of N labels"
        )
    z = read_scores(scores, who)
    if as_they_are:
        check_size(scores, who)
    n, k = z.shape
    check_labels(labels, k, "the calibration set")
    y = labels.long().cpu()
    instead = "hold out more data" if who == "ts" else "use `ts`, or hold out more data"
    least = per_class * k or least
    if n < least:
        raise BalcalError(f"`{who}` needs at least {least} calibration samples for {k} classes, not {n}: {instead}")
    count = y.bincount(minlength=k)
    if int(count.max()) == n:
        raise BalcalError(
            f"the {n} calibration labels are all class {int(y[0])}: "
            "a calibrator learns from errors, so hold out samples of every class"
        )
    if each_class and int(count.min()) == 0:
        missing = int((count == 0).nonzero()[0])
        raise BalcalError(
            f"class {missing} does not occur in the calibration set, so `{who}` cannot fit its {each_class}: {instead}"
        )
    return z, y


class LogProbsMap(nn.Module):
    """A map that reads only the fused log-probabilities (N, K), and returns calibrated ones."""

    def forward(self, outputs: Outputs) -> Tensor:
        return self.of_log_probs(outputs.log_probs())

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        raise NotImplementedError


class FittedMap(LogProbsMap):
    """Log-probabilities (N, K) -> log-probabilities (N, K). All its state is in buffers, in float64.

    It computes in float64, where the device has it, and returns the dtype that it was given.
    """

    varying: ClassVar[tuple[str, ...]] = ()
    """buffers whose last size depends on the calibration set; they take the size of what is loaded"""

    def __init__(self, **state: Tensor) -> None:
        super().__init__()
        for name, value in state.items():
            self.register_buffer(name, value.double())

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        scores = self.lifted(log_probs.to(sum_dtype(log_probs.device)))
        return self.calibrated(scores).to(log_probs.dtype)

    def lifted(self, scores: Tensor) -> Tensor:
        return finite_scores(scores)

    def calibrated(self, scores: Tensor) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Few numbers as they are, of many only how many."""
        state = {name: [round(x, 4) for x in value.flatten().tolist()] for name, value in self.named_buffers()}
        few = {name: numbers[0] if len(numbers) == 1 else numbers for name, numbers in state.items()}
        return ", ".join(f"{n}={v if len(state[n]) <= 4 else f'{len(state[n])} numbers'}" for n, v in few.items())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FittedMap:
        try:
            fn(torch.zeros((), dtype=torch.float64))
        except TypeError:  # Apple's GPUs have no float64
            for name, value in self.named_buffers(recurse=False):
                self._buffers[name] = value.float()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name in self.varying:
            mine, new = self.get_buffer(name), state_dict.get(prefix + name)
            if new is not None and new.shape[:-1] == mine.shape[:-1]:
                self._buffers[name] = mine.new_empty(new.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def keep_top(log_probs: Tensor, scores: Tensor) -> Tensor:
    """Log-probabilities whose largest is where the scores have theirs, also where rounding or a flat step made a tie.

    The largest is raised by two of the smallest steps of its dtype.
    """
    best = log_probs.amax(-1, keepdim=True) * (1 - 2 * torch.finfo(log_probs.dtype).eps)
    return log_probs.scatter(-1, scores.argmax(-1, keepdim=True), best)


def minimise(
    objective: Objective, start: Tensor, who: str, box: Tensor | None = None, small: float = 1e-7, steps: int = 2000
) -> Tensor:
    """Where a smooth convex function is lowest, within -box .. box; the start, if nothing is lower.

    The numbers should come scaled so that curvatures are near one: then half the squared slope is about what is still
    to be gained. L-BFGS is started again, with its memory cleared, until the slope is `small` or nothing is gained.

    >>> minimise(lambda u: ((u - 3).square().sum() / 2, u - 3), torch.zeros(2), "it", box=torch.tensor([9.0, 1.0]))
    tensor([3., 1.], dtype=torch.float64)
    """
    shape, best = start.shape, start.double().reshape(-1)
    edge = torch.full_like(best, torch.inf) if box is None else box.double().reshape(-1)

    def flat(u: Any) -> tuple[float, Any]:
        value, slope = objective(torch.from_numpy(u).view(shape))
        return float(value), slope.double().reshape(-1).numpy()

    def steepness(u: Tensor, slope: Tensor) -> float:
        return float(((u - slope).clamp(-edge, edge) - u).abs().max())

    value, slope = objective(best.view(shape))
    lowest, steep = float(value), steepness(best, slope.double().reshape(-1))
    bounds = None if box is None else list(zip((-edge).tolist(), edge.tolist(), strict=True))
    options = {"maxiter": steps, "maxfun": 2 * steps, "gtol": small, "ftol": 0.0, "maxcor": 30}
    for _ in range(5):
        if steep <= small:
            break
        found = minimize(flat, best.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        if not found.fun < lowest:
            break
        best, lowest = torch.from_numpy(found.x), float(found.fun)
        steep = steepness(best, torch.from_numpy(found.jac))
    if steep > STEEP:
        raise BalcalError(
            f"the fit of `{who}` did not settle (its slope is still {steep:.1e}): use `ts`, or a stronger penalty"
        )
    return best.view(shape)


class Piecewise(FittedMap):
    """For p in (edge_{i-1}, edge_i] the table says height_i + slope_i * (p - left_i); then rows are made to sum to 1.

    With one row of pieces they serve all classes, and the order of the classes is kept: 1e-9 * p is added, and the
    largest stays the largest. With K rows each class has its own.

    A frequency of exactly 0 or 1 would make the NLL infinite, and no finite set proves it. So values are kept between
    `floor` and 1 - `floor`; the floor is half a sample among all that a row of pieces was fitted on.
    """

    varying: ClassVar[tuple[str, ...]] = ("edges", "left", "height", "slope")
    edges: Tensor
    left: Tensor
    height: Tensor
    slope: Tensor
    floor: Tensor

    def __init__(self, edges: Tensor, left: Tensor, height: Tensor, slope: Tensor, floor: float) -> None:
        super().__init__(
            edges=edges, left=left, height=height, slope=slope, floor=torch.tensor(floor, dtype=torch.float64)
        )

    @classmethod
    def identity(cls, rows: int, pieces: int = 1) -> Piecewise:
        """Every piece lies on the diagonal."""
        edges = torch.arange(1, pieces, dtype=torch.float64) / pieces
        zero = torch.zeros(rows, pieces)
        return cls(edges.repeat(rows, 1), zero, zero, zero + 1, 0.0)

    @property
    def pooled(self) -> bool:
        return len(self.edges) == 1

    def table(self, probs: Tensor) -> Tensor:
        """(N, K) -> (N, K), as fitted: not yet kept off 0 and 1, rows not yet summing to one."""
        p = probs.reshape(1, -1) if self.pooled else probs.T.contiguous()
        piece = torch.searchsorted(self.edges.to(p), p)
        left, height, slope = (t.to(p).gather(1, piece) for t in (self.left, self.height, self.slope))
        q = height + slope * (p - left)
        return q.reshape(probs.shape) if self.pooled else q.T

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        calibrated = super().of_log_probs(log_probs)
        return keep_top(calibrated, log_probs) if self.pooled else calibrated

    def calibrated(self, scores: Tensor) -> Tensor:
        p = scores.softmax(-1)
        floor = self.floor.to(p).clamp(min=torch.finfo(p.dtype).tiny)
        q = torch.minimum(torch.maximum(self.table(p), floor), 1 - floor)
        q = q + TIE * p if self.pooled else q
        return (q / q.sum(-1, keepdim=True)).log()
