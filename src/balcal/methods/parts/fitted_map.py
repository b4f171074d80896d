"""What post-hoc methods share: maps of log-probabilities, and a careful minimiser.

No fitted map gives probability 0, which would make the NLL infinite: `mixed` adds a little of the uniform distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from balcal.core import Outputs
from balcal.methods.parts.newton import Objective, check_settled
from balcal.metrics.inputs import finite_scores
from balcal.runtime.devices import sum_dtype

TIE = 1e-9
"""share of the raw probability that decides between equal pieces"""


def mixed(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """Log-probabilities mixed with the uniform distribution, which gets the share `uniform`.

    >>> mixed(torch.tensor([[0.0, -torch.inf]]), torch.tensor(0.1)).exp()
    tensor([[0.9500, 0.0500]])
    """
    share = uniform.to(log_probs)
    return torch.logaddexp(log_probs + torch.log1p(-share), (share / log_probs.shape[-1]).log())


class PositiveMap(nn.Module):
    """A map of outputs to log-probabilities (N, K) that mixes in the share `uniform` of the uniform distribution."""

    uniform: Tensor

    def __init__(self, uniform: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("uniform", torch.tensor(uniform, dtype=torch.float64))

    def probs(self, outputs: Outputs) -> Tensor:
        """The exponential of what the map returns; a map may have a faster way to it."""
        log_probs: Tensor = self(outputs)
        return log_probs.exp()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        if prefix + "uniform" not in state_dict:  # fitted before maps had it
            state_dict = {**state_dict, prefix + "uniform": torch.zeros_like(self.uniform)}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PositiveMap:
        try:
            fn(torch.zeros((), dtype=torch.float64))
        except TypeError:  # Apple's GPUs have no float64
            for name, value in self.named_buffers(recurse=False):
                self._buffers[name] = value.float()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def explained(fitted: nn.Module) -> dict[str, str]:
    """What a map that chose among others chose, and why; empty for a map that had no choice."""
    return {name: str(getattr(fitted, name)) for name in ("chosen", "why") if hasattr(fitted, name)}


class LogProbsMap(PositiveMap):
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

    def __init__(self, uniform: float = 0.0, **state: Tensor) -> None:
        super().__init__(uniform)
        for name, value in state.items():
            self.register_buffer(name, value.double())

    def of_log_probs(self, log_probs: Tensor) -> Tensor:
        scores = self.lifted(log_probs.to(sum_dtype(log_probs.device)))
        return mixed(self.calibrated(scores), self.uniform).to(log_probs.dtype)

    def lifted(self, scores: Tensor) -> Tensor:
        return finite_scores(scores)

    def calibrated(self, scores: Tensor) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Few numbers as they are, of many only how many."""
        buffers = [(name, value) for name, value in self.named_buffers() if name != "uniform"]
        state = {name: [round(x, 4) for x in value.flatten().tolist()] for name, value in buffers}
        few = {name: numbers[0] if len(numbers) == 1 else numbers for name, numbers in state.items()}
        return ", ".join(f"{n}={v if len(state[n]) <= 4 else f'{len(state[n])} numbers'}" for n, v in few.items())

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


@cache
def thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def minimise(
    objective: Objective,
    start: Tensor,
    who: str,
    box: Tensor | None = None,
    small: float = 1e-7,
    steps: int = 2000,
    low: Tensor | None = None,
) -> Tensor:
    """Where a smooth convex function is lowest, within -box .. box, or low .. box; the start, if nothing is lower.

    The numbers should come scaled so that curvatures are near one: then half the squared slope is about what is still
    to be gained. L-BFGS is started again, with its memory cleared, until the slope is `small` or nothing is gained.

    >>> minimise(lambda u: ((u - 3).square().sum() / 2, u - 3), torch.zeros(2), "it", box=torch.tensor([9.0, 1.0]))
    tensor([3., 1.], dtype=torch.float64)
    """
    shape, best = start.shape, start.double().reshape(-1)
    edge = torch.full_like(best, torch.inf) if box is None else box.double().reshape(-1)
    least = -edge if low is None else low.double().reshape(-1)

    def flat(u: Any) -> tuple[float, Any]:
        value, slope = objective(torch.from_numpy(u).view(shape))
        return float(value), slope.double().reshape(-1).numpy()

    def steepness(u: Tensor, slope: Tensor) -> float:
        return float(((u - slope).clamp(least, edge) - u).abs().max())

    value, slope = objective(best.view(shape))
    lowest, steep = float(value), steepness(best, slope.double().reshape(-1))
    bounds = None if box is None else list(zip(least.tolist(), edge.tolist(), strict=True))
    options = {"maxiter": steps, "maxfun": 2 * steps, "gtol": small, "ftol": 0.0, "maxcor": 30}
    for _ in range(5):
        if steep <= small:
            break
        # threads of scipy's BLAS wait at full speed, on the cores where torch's threads evaluate the objective
        with thread_pools().limit(limits=1, user_api="blas"):
            found = minimize(flat, best.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        if not found.fun < lowest:
            break
        best, lowest = torch.from_numpy(found.x), float(found.fun)
        steep = steepness(best, torch.from_numpy(found.jac))
    check_settled(steep, small, who)
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
        edges = self.edges.to(p)
        if torch.compiler.is_exporting():  # ONNX has no search
            piece = (p[..., None] > edges[:, None, :]).sum(-1)
        else:
            piece = torch.searchsorted(edges, p)
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
