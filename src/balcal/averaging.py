"""The weights in use may be an average over the steps of training: steadier than those of any one step.

    mean_k = (1 - a_k) mean_(k-1) + a_k weights_k,    a_k = (p + 1) / (k + p)

so that the k-th step counts about as k^p: with p = 3 half of the weight lies on the last sixth of the steps so far,
however many there are. Nothing depends on the length of the training, so nothing has to be set for it. Polynomial-decay
averaging: Shamir & Zhang, ICML 2013.

Training itself goes on with its own weights and sees nothing of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class RunningMean:
    """Of a model's parameters and of what its body counts in training (BatchNorm); a head's dials are as they are."""

    def __init__(self, model: nn.Module, power: float) -> None:
        counted = (buffer for buffer in model.get_submodule("backbone").buffers() if buffer.is_floating_point())
        self.live: list[Tensor] = [p.detach() for p in (*model.parameters(), *counted)]
        self.power, self.steps = power, 0
        self.mean = [tensor.clone() for tensor in self.live]

    def restart(self) -> None:
        """What was so far counts no more."""
        self.steps = 0

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights as they are now."""
        self.steps += 1
        share = (self.power + 1) / (self.steps + self.power)
        torch._foreach_lerp_(self.mean, self.live, share)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """For a while the model has the average in place of its own weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for live, mean in zip(self.live, self.mean, strict=True):
            aside = live.clone()
            live.copy_(mean)
            mean.copy_(aside)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        for mine, saved in zip(self.mean, state["mean"], strict=True):
            mine.copy_(saved)
