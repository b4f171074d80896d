"""What we tried on the way to `balcal-auto`. None of it won: `balcal list methods` shows it only with `--all`.

    balcal-val    fuses logits and solves gamma on the validation split, with delta = 1 and gamma at most 1.
                  Why: on training images an overfitted network is nearly always right, so delta corrects little.
                  It ties with `vanilla+ts` on CIFAR-10; averaged weights are what it lacks.
    balcal-mean   `balcal-auto` that always uses the averaged weights.
                  Under strong mixing the average lags behind: 0.6 points of accuracy below `mixup` on CIFAR-10. Since
                  then `balcal-auto` also tries the last step's weights on the validation split.
    balcal-half   `balcal-mean` with half of the loss for each classifier, whatever gamma is.
                  Why: while gamma is above 1 the fixed classifier has no share of the loss and falls behind.
                  It ties with `balcal-mean` in accuracy and NLL on all five tasks.

They keep their names and their run addresses, so that results can be reproduced. The evidence: docs/research/auto.md
(what was tried, on validation images) and docs/research/auto-final.md (test images, by a rule fixed beforehand).
"""

from __future__ import annotations

from balcal.methods.balcal import SECOND_HEAD, Balanced, SolveFreely, SolveGamma
from balcal.methods.weights_in_use import AVERAGE
from balcal.recipe import Method

METHODS = {
    m.name: m
    for m in (
        Method(
            "balcal-val",
            head=Balanced(fusion="logits", delta=1.0),
            tally=SolveGamma(on="val"),
            about="ours, tried: logit fusion, gamma solved on the validation split",
            when="To repeat our experiments, or `balcal-auto` without averaged weights.",
            paper="Ni, Zhao, Gao, Guo, Zha",
            venue="CVPR 2025",
            cost=SECOND_HEAD,
            listed=False,
        ),
        Method(
            "balcal-mean",
            head=Balanced(fusion="logits", delta=1.0),
            tally=SolveFreely(),
            settings=AVERAGE,
            about="ours, tried: balcal-auto that always uses the averaged weights",
            when="To repeat our experiments. `balcal-auto` took its place.",
            paper="Ni, Zhao, Gao, Guo, Zha",
            venue="CVPR 2025",
            cost=f"{SECOND_HEAD}; an addition of the weights per step",
            listed=False,
        ),
        Method(
            "balcal-half",
            head=Balanced(fusion="logits", delta=1.0, loss_follows=False),
            tally=SolveFreely(),
            settings=AVERAGE,
            about="ours, tried: balcal-mean with half of the loss for each classifier",
            when="To repeat our experiments. It ties with `balcal-mean`.",
            paper="Ni, Zhao, Gao, Guo, Zha",
            venue="CVPR 2025",
            cost=f"{SECOND_HEAD}; an addition of the weights per step",
            listed=False,
        ),
    )
}
