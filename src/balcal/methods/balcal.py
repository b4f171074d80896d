"""Ni, Zhao, Gao, Guo, Zha: Balancing Two Classifiers via A Simplex ETF Structure for Model Calibration. CVPR 2025.

Beside the learnable classifier s = W z + b stands a fixed one on a simplex ETF M, behind an adapter A:

    e = beta unit(A(z)) M
    p = gamma softmax(s) + (1 - gamma) softmax(e)             (fusion of probabilities, the paper's)
    L = gamma Loss(s, y) + (1 - gamma) Loss(e, y)

After every epoch gamma solves  conf(gamma) = delta acc(gamma). With beta = 1 the ETF head is under-confident and
tempers an over-confident classifier; with beta = K it is over-confident and sharpens an under-confident one.

`balcal-logits` fuses softmax(gamma s + (1 - gamma) e), as the released code does. `balcal-released` follows that code
further: gamma starts at 0.8, the adapter is a residual convolution on the map before the last norm, the epoch is the
one with the lowest sum of both heads' validation losses, and batch norms have a momentum of 0.01. It still does not
rescale the frame by the labels of a batch, draw the frame from positive numbers, or leave the images unshuffled.

`balcal-auto` is ours. It fuses
logits, too. Gamma is solved on the validation split, with delta = 1, and may exceed 1. The weights in use are an
average over the steps of training, or those of the last step if they do better on the validation split. Nothing is left
to tune, whether the network is over-confident or under-confident. `balcal_trials.py` has what we tried on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, TypeVar

from torch import Tensor

from balcal.core import BalcalError, Classifier, Head, Outputs, Record, Split, Sums, Tally
from balcal.methods.parts import gamma_search as balance
from balcal.methods.parts.two_heads import Balanced, BalancedHead, Etf, EtfHead
from balcal.methods.weights_in_use import OR_LAST, LowestHeadLosses
from balcal.recipe import Method
from balcal.runtime.values import at_least, check_settings

__all__ = ["METHODS", "Balanced", "BalancedHead", "Etf", "EtfHead", "SolveBeta", "SolveFreely", "SolveGamma"]

Points = Annotated[int, at_least(2, most=100_000)]
"""number of candidates in a grid"""
UNDER_CONFIDENT = 0.02
"""by how much mean confidence may be below the accuracy on validation images before delta is called low"""

H = TypeVar("H", bound=Head)


def _head(model: Classifier, kind: type[H], dial: str) -> H:
    if not isinstance(model.head, kind):
        raise BalcalError(f"only a {kind.__name__} has a {dial} to solve, this model has a {type(model.head).__name__}")
    return model.head


@dataclass(frozen=True)
class SolveGamma(Tally):
    """Re-solve gamma after every epoch, on the training batches as they were seen or on the validation split."""

    only_weights: ClassVar[bool] = True
    on: Split = "train"
    points: Points = 129
    guard: Annotated[float, at_least(0)] = 0.01

    def __post_init__(self) -> None:
        check_settings(self, "tally")

    def start(self, model: Classifier) -> Sums:
        return balance.start_sums(self.points, model.head.weights.device)

    def add(self, sums: Sums, outputs: Outputs, labels: Tensor, weights: Tensor | None = None) -> None:
        add = balance.add_gamma_logits if outputs.fusion == "logits" else balance.add_gamma_probs
        standard, etf = outputs.logits.detach()
        add(sums, standard, etf, labels, weights)

    def finish(self, sums: Sums, model: Classifier) -> Record:
        head = _head(model, BalancedHead, "gamma")
        curve = balance.Curve.of(sums, balance.gamma_grid(self.points, sums["conf"]))
        solution = balance.solve_gamma(curve, float(head.delta), self.guard)
        head.set_gamma(solution.value)
        return solution.record("gamma")

    def advice(self, history: Sequence[Record]) -> str | None:
        where = "training" if self.on == "train" else "validation"
        idle = idle_sentence(history, lambda record: record.get("branch") == "standard", where)
        return idle or (low_delta_sentence(history[-1]) if history and self.on == "train" else None)


@dataclass(frozen=True)
class SolveFreely(SolveGamma):
    """The same where gamma may exceed 1, for fused logits: see `balance.solve_freely`.

    On training batches, whose accuracy is above that of other images, it aims at `seen` times that accuracy: the middle
    of what the paper recommends for delta.
    """

    seen: ClassVar[float] = 0.95
    on: Split = "val"
    points: Points = 33
    bold_points: Points = 17

    def start(self, model: Classifier) -> Sums:
        bold = balance.start_sums(self.bold_points, model.head.weights.device)
        return super().start(model) | {f"bold_{name}": values for name, values in bold.items()}

    def add(self, sums: Sums, outputs: Outputs, labels: Tensor, weights: Tensor | None = None) -> None:
        super().add(sums, outputs, labels, weights)
        balance.add_scale(self._bold(sums), outputs.logits[0].detach(), labels, balance.bold_grid, weights)

    def finish(self, sums: Sums, model: Classifier) -> Record:
        head, bold = _head(model, BalancedHead, "gamma"), self._bold(sums)
        tempered = balance.Curve.of(sums, balance.gamma_grid(self.points, sums["conf"]))
        sharpened = balance.Curve.of(bold, balance.bold_grid(self.bold_points, bold["conf"]))
        delta = float(head.delta) * (1.0 if self.on == "val" else self.seen)
        solution = balance.solve_freely(tempered, sharpened, delta, self.guard, float(sums["count"]))
        head.set_gamma(solution.value)
        return solution.record("gamma")

    @staticmethod
    def _bold(sums: Sums) -> Sums:
        return {name.removeprefix("bold_"): values for name, values in sums.items() if name.startswith("bold_")}


@dataclass(frozen=True)
class SolveBeta(Tally):
    """Re-solve beta of an ETF head after every epoch: the dynamic-beta ablation.

    It counts a factor on the epoch's beta, so it needs only logits.
    """

    moves_bounds: ClassVar[bool] = True
    on: Split = "train"
    points: Points = 129

    def __post_init__(self) -> None:
        check_settings(self, "tally")

    def start(self, model: Classifier) -> Sums:
        return balance.start_sums(self.points, model.head.weights.device)

    def add(self, sums: Sums, outputs: Outputs, labels: Tensor, weights: Tensor | None = None) -> None:
        balance.add_scale(sums, outputs.logits[0].detach(), labels, weights=weights)

    def finish(self, sums: Sums, model: Classifier) -> Record:
        head = _head(model, EtfHead, "beta")
        curve = balance.Curve.of(sums, balance.scale_grid(self.points, sums["conf"]))
        solution = balance.solve_scale(curve, float(head.delta))
        head.beta.mul_(solution.value).clamp_(1e-3, 1e4)
        return solution.record("scale") | {"beta": float(head.beta)}

    def advice(self, history: Sequence[Record]) -> str | None:
        ends = sum(record.get("branch") in ("lowest", "highest") for record in history)
        if 2 * ends <= len(history):
            return None
        return (
            f"beta was at the end of its range in {ends} of {len(history)} epochs, so confidence did not meet delta × "
            "accuracy: train longer, or choose another head.delta"
        )


def idle_sentence(history: Sequence[Record], idle: Callable[[Record], bool], where: str) -> str | None:
    """What to say of a training in which gamma was 1 in most epochs: the fixed classifier had no share.

    >>> idle_sentence([{"gamma": 1.0}, {"gamma": 1.0}, {"gamma": 0.9}], lambda r: r["gamma"] == 1, "validation")[:44]
    'BalCAL was active in 1 of 3 epochs only: con'
    """
    count = sum(map(idle, history))
    if 2 * count <= len(history):
        return None
    rare = f"active in {len(history) - count} of {len(history)} epochs only"
    advice = (
        "train longer or on fewer images, or lower head.delta, or use balcal-auto, which solves on validation images"
        if where == "training"
        else "the network is not over-confident there, and there was nothing to correct"
    )
    return (
        f"BalCAL was {rare if count < len(history) else 'not active'}: confidence on the {where} images stayed below "
        f"delta × accuracy, so gamma was 1 and the learnable classifier predicted alone; {advice}"
    )


def low_delta_sentence(last: Record) -> str | None:
    """What to say where delta is so low that the network is under-confident on other images.

    >>> low_delta_sentence({"gamma": 0.5, "val_acc": 0.96, "val_conf": 0.91})[:78]
    'delta is low here: in the last epoch mean confidence on validation images is 9'
    >>> low_delta_sentence({"gamma": 0.5, "val_acc": 0.96, "val_conf": 0.95})
    >>> low_delta_sentence({"gamma": 1.0, "val_acc": 0.96, "val_conf": 0.91})  # not because of delta
    >>> low_delta_sentence({"gamma": 0.5})  # no validation images
    """
    acc, conf = last.get("val_acc", math.nan), last.get("val_conf", math.nan)
    if not (last.get("gamma", 1.0) < 1 and acc - conf > UNDER_CONFIDENT):
        return None
    return (
        f"delta is low here: in the last epoch mean confidence on validation images is {conf:.1%}, and {acc:.1%} of "
        "them are classified correctly; raise head.delta (the paper goes up to 0.99), or use balcal-auto, which solves "
        "on validation images"
    ).replace("%", " %")


_MORE = "beside the learnable classifier a fixed ETF one; gamma re-solved every epoch"
SECOND_HEAD = "a second, small head"

METHODS = {
    m.name: replace(m, paper="Ni, Zhao, Gao, Guo, Zha", venue="CVPR 2025")
    for m in (
        Method(
            "balcal",
            head=Balanced(),
            tally=SolveGamma(),
            about=f"{_MORE}; probability fusion",
            when="To compare with the paper: fused probabilities, gamma from training images.",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-k",
            head=Balanced(beta="K"),
            tally=SolveGamma(),
            about=f"{_MORE}; beta = K lifts confidence",
            when="Under-confident networks, as with `mixup`, in the paper's way; `balcal-auto` needs no such choice.",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-logits",
            head=Balanced(fusion="logits"),
            tally=SolveGamma(),
            about=f"{_MORE}; logit fusion",
            when="As `balcal`, with fused logits as in the released code. Better in our runs on small networks.",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-released",
            head=Balanced(fusion="logits", gamma=0.8, adapter="released"),
            tally=SolveGamma(),
            select=LowestHeadLosses(),
            settings={"plan.norm_momentum": 0.01},
            about=f"{_MORE}; as in the released code: logit fusion, convolutional adapter, its choice of the epoch",
            when="To compare with the numbers of the authors' code.",
            cost="a second head with two convolutions",
        ),
        Method(
            "balcal-auto",
            head=Balanced(fusion="logits", delta=1.0),
            tally=SolveFreely(),
            settings=OR_LAST,
            about="ours: logit fusion, gamma solved on the validation split, averaged weights; nothing to tune",
            when="You can train anew. The default of `balcal.wrap`; nothing to set.",
            cost=f"{SECOND_HEAD}; an addition of the weights per step; one more validation at the end",
        ),
    )
}
