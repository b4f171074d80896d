"""Each row against `vanilla+ts` in words: better, worse, or not told apart.

By the same intervals as in the arena (`metrics/over_seeds.py`): they hold what other seeds and what other test images
would do to the difference.
"""

from __future__ import annotations

import numpy as np

from balcal.build import as_method
from balcal.evaluation.judge import calibrated_predictions
from balcal.metrics.bins import bin_table
from balcal.metrics.bootstrap import noise_floor
from balcal.metrics.inputs import TopLabels, read_predictions
from balcal.metrics.over_seeds import chance_of_eces, chance_of_means, pairs
from balcal.paper.items import Ask, PaperCell
from balcal.paper.measure import Answers
from balcal.recipe import Recipe
from balcal.runs import Run

BASELINE = "vanilla+ts"
BETTER, WORSE, EVEN = "better", "worse", "not told apart"
BINS = 15


def against_baseline(cell: PaperCell, answers: Answers) -> str | None:
    """A cell of accuracy or ECE against that of `vanilla+ts` at the same place, on the seeds that both have.

    None where there is nothing to compare, and for `vanilla+ts` itself.
    """
    if cell.measure not in ("accuracy", "ece") or len(cell.asks) != 1 or cell.asks[0].method == BASELINE:
        return None
    both = [
        (answers.recipe(Ask(cell.asks[0].place, BASELINE), s), answers.recipe(cell.asks[0], s)) for s in answers.seeds
    ]
    tops = [[_top(first, answers), _top(second, answers)] for first, second in both if first and second]
    if not tops:
        return None
    models = [[run[number] for run in tops] for number in (0, 1)]
    if cell.measure == "accuracy":
        right = np.array([[top.right.double().numpy() for top in runs] for runs in models])
        found = pairs(right.mean(2), chance_of_means(right, counts=True))
        return _word(float(found.low[0, 1]), float(found.high[0, 1]), (WORSE, BETTER))
    eces = np.array([[bin_table(top, BINS).ece() for top in runs] for runs in models])
    highs = [[float(np.quantile(noise_floor(top, BINS, 400), 0.975)) for top in runs] for runs in models]
    found = pairs(eces, chance_of_eces(models, highs, bins=BINS))
    return _word(float(found.low[0, 1]), float(found.high[0, 1]), (BETTER, WORSE))


def _word(low: float, high: float, lower_and_higher: tuple[str, str]) -> str:
    """By an interval of the difference: what a lower figure means, and a higher one.

    >>> _word(-0.2, -0.1, (BETTER, WORSE)), _word(-0.2, 0.1, (BETTER, WORSE)), _word(0.1, 0.2, (BETTER, WORSE))
    ('better', 'not told apart', 'worse')
    """
    lower, higher = lower_and_higher
    return lower if high < 0 else higher if low > 0 else EVEN


def _top(recipe: Recipe, answers: Answers) -> TopLabels:
    def compute() -> TopLabels:
        _, test, _ = calibrated_predictions(Run(answers.out, recipe), as_method(recipe.method), answers.device)
        return read_predictions(test).top()

    top: TopLabels = answers.once(("top", recipe.method.name, recipe.address()), compute)
    return top
