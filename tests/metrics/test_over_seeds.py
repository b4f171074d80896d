"""Equal methods are ties: simulated with seed noise and sample noise. And the formula against other hands."""

import numpy as np
import pytest
from equal_models import simulate
from scipy.stats import binomtest, norm, ttest_rel

from balcal.metrics.over_seeds import Chance, chance_of_means, holm, pairs


def marked(trials, heats, seeds, rng, **noise):
    """In how many trials each figure tells at least two of these methods apart, corrected for all pairs."""
    hits = {}
    for _ in range(trials):
        for name, found in simulate(rng, heats, seeds, n=250, **noise).items():
            p = found.p[np.triu_indices(len(heats), 1)]
            hits[name] = hits.get(name, 0) + bool((holm(p) <= 0.05).any())
    return hits


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("seed_noise", [0.0, 0.3])
def test_equal_methods_tie(seeds, seed_noise):
    """Whether seeds differ much or not at all: a winner in at most 5 % of cases."""
    hits = marked(200, (1, 1), seeds, np.random.default_rng(seeds), seed_noise=seed_noise, eces=False)
    assert max(hits.values()) <= 0.05 * 200, hits


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_over_confident_methods_tie_in_ece_too(seeds):
    """`python tests/helpers/equal_models.py` has ten times the trials, and counts at most 5 % in each figure."""
    hits = marked(40, (1.3, 1.3), seeds, np.random.default_rng(seeds), seed_noise=0.3)
    for count in hits.values():
        assert binomtest(count, 40, 0.05, alternative="greater").pvalue > 0.01, hits


def test_four_equal_methods_tie():
    assert max(marked(100, (1.2,) * 4, 3, np.random.default_rng(0), eces=False).values()) <= 5


def test_one_seed_tells_equal_runs_apart_no_more_often_than_it_says():
    """Runs that differ by sample noise only. That seeds differ too, one seed cannot know: the arena names no winner."""
    rng = np.random.default_rng(1)
    hits = marked(200, (1, 1), 1, rng, seed_noise=0.0, eces=False)
    for count in hits.values():
        assert binomtest(count, 200, 0.05, alternative="greater").pvalue > 0.01, hits
    assert marked(60, (1, 1), 1, rng, seed_noise=0.5, eces=False)["nll"] > 0.15 * 60, "and this is why"


def test_a_better_method_is_found():
    hits = marked(30, (3, 1), 3, np.random.default_rng(2), seed_noise=0.1)
    assert min(hits[name] for name in ("nll", "ece", "adaptive_ece")) >= 24, hits
    assert hits["accuracy"] <= 2, "heat changes no prediction"


def certain(models):
    return Chance(np.zeros((models, models)), np.zeros((models, models)), np.zeros(models), (False,) * models)


def test_with_endless_samples_it_is_the_paired_t_test():
    figures = np.random.default_rng(3).normal(size=(2, 5))
    found, other = pairs(figures, certain(2)), ttest_rel(figures[1], figures[0])
    assert found.p[0, 1] == pytest.approx(other.pvalue, rel=1e-6)
    low, high = other.confidence_interval(0.95)
    assert (found.low[0, 1], found.high[0, 1]) == pytest.approx((low, high))
    assert (found.low[1, 0], found.high[1, 0]) == pytest.approx((-high, -low))


def test_with_one_seed_it_is_the_normal_test_on_samples():
    values = np.random.default_rng(4).normal(size=(2, 1, 300))
    found = pairs(values.mean(2), chance_of_means(values))
    d = values[1, 0] - values[0, 0]
    assert found.p[0, 1] == pytest.approx(2 * norm.sf(abs(d.mean()) / (d.std() / np.sqrt(300))), rel=1e-6)


def test_what_seeds_share_is_the_covariance_between_them():
    """An effect of samples that all seeds have in common stays, noise of a seed's own is divided among them."""
    values = np.random.default_rng(5).normal(size=(2, 4, 200))
    chance = chance_of_means(values)
    between = [np.cov(values[0, s], values[1, u], ddof=0)[0, 1] / 200 for s in range(4) for u in range(4) if s != u]
    assert chance.shared[0, 1] == pytest.approx(np.mean(between))
    mean = values.mean(1)
    assert chance.covariance == pytest.approx(np.cov(mean, ddof=0) / 200)


def test_missing_runs_and_endless_losses():
    values = np.random.default_rng(6).normal(size=(3, 3, 50))
    values[2, 0, 7] = np.inf
    figures = values.mean(2)
    figures[0, 1] = np.nan
    found = pairs(figures, chance_of_means(values))
    assert found.seeds[0, 1] == 2
    assert found.value[0, 1] == pytest.approx((figures[1] - figures[0])[[0, 2]].mean())
    assert np.isnan(found.p[0, 2])
    assert not np.isnan(found.p[0, 1])


def test_nobody_beats_what_cannot_be_told_from_perfect():
    chance = Chance(np.eye(2) * 1e-12, np.eye(2) * 1e-12, np.zeros(2), (True, False))
    figures = np.array([[0.02, 0.021, 0.02], [0.01, 0.011, 0.01]])
    assert pairs(figures, chance).p[0, 1] == 1
    assert pairs(figures[::-1], chance).p[0, 1] < 0.01, "but it may be better than another"


def test_equal_predictions_are_the_same_not_a_tie():
    values = np.random.default_rng(7).random((1, 3, 100)).repeat(2, axis=0)
    found = pairs(values.mean(2), chance_of_means(values, counts=True))
    assert found.low[0, 1] == found.high[0, 1] == 0
