"""Tao, Dong, Liu, Sun, Xu: Calibrating a Deep Neural Network with Its Predecessors. IJCAI 2023.

Predecessor combination search. The blocks of a network overfit at different times, so each block may come from another
epoch of the same run:

    candidate c:  for each block b an epoch e_b, drawn from those that were kept;  everything else from the last epoch
    each candidate is trained for one epoch, gently, and validated
    chosen:       the lowest validation NLL among candidates whose accuracy is at most `floor` below the first one's

This is PCS (random search): epochs are drawn uniformly, from (seed, candidate) alone. The first candidate is the parent
as it was chosen, so the search never ends with less than that, fine-tuned. An epoch of the run is a candidate:
plan.epochs says how many there are. Buffers (BatchNorm statistics, BalCAL's gamma and frame) go with their block.
Blocks are the backbone's `blocks()`, or the children of other networks, and the head as a whole; a norm that stands
alone is of the last epoch.

`pcs` searches among the epochs of `vanilla`; `balcal+pcs` among those of `balcal`, and gamma is then solved anew for
each candidate. The parent's run keeps every epoch; before_epoch.every=5 keeps and draws every fifth, counted from the
last, and the chosen one. select.figure=val_ece searches by ECE.

Paper and released code differ: the paper fits a predictor of scores to 100 random candidates and follows its gradient;
the released search cannot run as it is, and the random search beside it looks at test figures. Their blocks are
coarser (3 or 4 stages and the classifier), and the stem is of the last epoch. Fine-tuning: SGD, learning rate 1e-4 in
the code and 1e-3 in its example, momentum 0.9, weight decay 1e-4, gradients clipped at 2; we take those, with 1e-4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from balcal.backbones.tapped import blocks_of
from balcal.core import BalcalError, BeforeEpoch, Classifier, Record
from balcal.methods.vanilla import Lowest
from balcal.recipe import THE_REST, Method
from balcal.runtime.values import at_least, check_settings

Weights = Mapping[str, Tensor]


def stitch(last: Weights, blocks: Mapping[str, Weights]) -> dict[str, Tensor]:
    """Entries below a block's name from the block's own epoch, all others from the last one.

    >>> one, two = {"a.w": 1, "b.w": 1, "c.w": 1}, {"a.w": 2, "b.w": 2, "c.w": 2}
    >>> stitch(two, {"b": one, "c": two})
    {'a.w': 2, 'b.w': 1, 'c.w': 2}
    """
    stitched = dict(last)
    for block, weights in blocks.items():
        stitched |= {name: tensor for name, tensor in weights.items() if name.startswith(f"{block}.")}
    return stitched


def block_names(backbone: nn.Module) -> list[str]:
    """Where the model keeps its blocks, bottom to top, the head last. A norm by itself is none."""
    names = {id(module): name for name, module in backbone.named_modules(prefix="backbone")}
    blocks = [block for block in blocks_of(backbone) if any(weight.ndim > 1 for weight in block.parameters())]
    return [*(names[id(block)] for block in blocks), "head"]


@dataclass(frozen=True)
class Stitch(BeforeEpoch):
    """Begin every epoch with blocks of different epochs of the parent's run."""

    every: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        check_settings(self, "before_epoch")

    @property
    def parent_settings(self) -> tuple[str, ...]:
        return ("plan.keep=all" if self.every == 1 else f"plan.keep={self.every}",)

    def __call__(self, model: Classifier, epoch: int, epochs: int) -> bool:
        parent, blocks = model.parent, block_names(model.backbone)
        if parent is None:
            raise BalcalError(
                "pcs combines the epochs of a finished run: use `balcal train TASK pcs`, "
                "or set model.parent to something with `epochs`, `chosen` and `weights(epoch)`"
            )
        picks = [parent.epochs[i] for i in torch.randint(len(parent.epochs), (len(blocks),)).tolist()]
        picks = picks if epoch else [parent.chosen] * len(blocks)
        found = {each: parent.weights(each) for each in sorted({parent.epochs[-1], *picks})}
        model.load_state_dict(
            stitch(found[parent.epochs[-1]], {block: found[e] for block, e in zip(blocks, picks, strict=True)})
        )
        return True


@dataclass(frozen=True)
class WithinFloor:
    """The lowest figure among candidates that are about as accurate as the first."""

    figure: Literal["val_nll", "val_ece"] = "val_nll"
    floor: Annotated[float, at_least(0)] = 0.01

    def __post_init__(self) -> None:
        check_settings(self, "select")

    def __call__(self, history: Sequence[Record]) -> int:
        """The first candidate is always among them.

        >>> figures = [(0.9, 3.0), (0.89, 2.0), (0.8, 1.0)]
        >>> WithinFloor()([{"val_acc": acc, "val_nll": nll} for acc, nll in figures])
        1
        """
        least = history[0]["val_acc"] - self.floor - 1e-9  # 0.9 - 0.01 is a little more than 0.89
        able = [epoch for epoch, record in enumerate(history) if record["val_acc"] >= least]
        return able[Lowest(self.figure)([history[epoch] for epoch in able])]


METHODS = {
    "pcs": Method(
        "pcs",
        before_epoch=Stitch(),
        select=WithinFloor(),
        parent=THE_REST,
        settings={
            "plan.optimiser": "sgd",
            "plan.lr": 1e-4,
            "plan.momentum": 0.9,
            "plan.weight_decay": 1e-4,
            "plan.clip": 2.0,
            "plan.schedule": "constant",
        },
        about="PCS (random search): blocks of different epochs of one run, stitched",
        when="A run whose epochs were all kept, and time for a search.",
        paper="Tao, Dong, Liu, Sun, Xu",
        venue="IJCAI 2023",
        cost="a run, all its epochs kept; one epoch per candidate",
    )
}
