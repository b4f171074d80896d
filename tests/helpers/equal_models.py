"""Simulated runs of methods: seed noise, sample noise, and both together, without training anything.

python tests/helpers/equal_models.py        how often two equal methods seem to differ, in 400 trials each (a minute)
"""

import numpy as np
import torch

from balcal.metrics.bins import bin_table, equal_mass
from balcal.metrics.bootstrap import noise_floor
from balcal.metrics.inputs import TopLabels
from balcal.metrics.over_seeds import chance_of_eces, chance_of_means, floor_by_mass, pairs


def simulate(rng, heats, seeds, n=400, classes=4, seed_noise=0.25, sample_noise=0.5, eces=True):
    """Differences of all pairs of methods, by figure. `heats` say how over-confident each method is.

    Labels are drawn from true logits. Each run sees these logits with noise, times a factor of its own.
    """
    truth = 2 * rng.normal(size=(n, classes))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    shape = (len(heats), seeds, n, classes)
    factor = np.array(heats)[:, None] * np.exp(seed_noise * rng.normal(size=shape[:2]))
    logits = factor[..., None, None] * (truth + sample_noise * rng.normal(size=shape))
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    probs = np.exp(logits)
    right = probs.argmax(-1) == labels
    nll = -np.take_along_axis(logits, np.broadcast_to(labels[:, None], (*shape[:3], 1)), -1)[..., 0]
    brier = ((probs - np.eye(classes)[labels]) ** 2).sum(-1)
    found = {
        "accuracy": pairs(right.mean(2), chance_of_means(right.astype(float), counts=True)),
        "nll": pairs(nll.mean(2), chance_of_means(nll)),
        "brier": pairs(brier.mean(2), chance_of_means(brier)),
    }
    return found | (_eces(probs.max(-1), right) if eces else {})


def _eces(conf, right):
    tops = [
        [TopLabels(*map(torch.from_numpy, run)) for run in zip(*method, strict=True)]
        for method in zip(conf, right, strict=True)
    ]

    def each(figure):
        return np.array([[figure(top) for top in method] for method in tops])

    high = each(lambda top: np.quantile(noise_floor(top, resamples=100), 0.975))
    by_mass = each(lambda top: np.quantile(floor_by_mass(top, resamples=100), 0.975))
    return {
        "ece": pairs(each(lambda top: bin_table(top, 15).ece()), chance_of_eces(tops, high, resamples=60)),
        "adaptive_ece": pairs(
            each(lambda top: equal_mass(top, 15).ece()), chance_of_eces(tops, by_mass, equal_mass=True, resamples=60)
        ),
    }


def main(trials=400):
    for heat, seed_noise, seeds in ((1.3, 0.3, 2), (1.3, 0.3, 3), (1.3, 0.3, 5), (2, 0.2, 3)):
        rng, hits = np.random.default_rng(100 + seeds), {}
        for _ in range(trials):
            for name, found in simulate(rng, (heat, heat), seeds, n=250, seed_noise=seed_noise).items():
                hits[name] = hits.get(name, 0) + (found.p[0, 1] <= 0.05)
        shares = ", ".join(f"{name} {count / trials:.1%}" for name, count in hits.items())
        print(f"heat {heat}, seed noise {seed_noise}, {seeds} seeds: {shares}", flush=True)


if __name__ == "__main__":
    main()
