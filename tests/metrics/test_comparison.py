"""Two models on the same samples: the paired bootstrap against a known truth, and what cannot be compared."""

import json

import numpy as np
import pytest
import torch
from samples import draw, known, over_confident, predictions_of

from balcal import metrics
from balcal.core import BalcalError, Predictions
from balcal.metrics.bins import bin_table


def test_paired_differences_hold_the_truth_and_call_a_tie_a_tie():
    """One network, two temperatures: same answers, other confidences."""
    rng = np.random.default_rng(4)

    def pair(n):
        cool = known(rng, n, over_confident, (4, 1), least=0.4)
        odds = (cool.conf / (1 - cool.conf + 1e-12)) ** 1.5
        return cool, type(cool)(odds / (1 + odds), cool.right)

    truth = np.subtract(*(bin_table(top, 15).ece() for top in reversed(pair(2_000_000))))
    held = 0
    for trial in range(120):
        cool, hot = pair(1500)
        found = metrics.compare(predictions_of(cool), predictions_of(hot), resamples=200, seed=trial)
        held += found.ece.low <= truth <= found.ece.high
        assert found.accuracy.bounds == (0, 0)
    assert held / 120 >= 0.92
    assert "accuracy the same, NLL worse, ECE worse" in found.sentence()
    same = metrics.compare(predictions_of(cool), predictions_of(cool))
    assert same.ece.value == same.nll.value == 0
    assert "ECE the same" in str(same)
    assert metrics.Comparison.of(json.loads(json.dumps(found.as_dict()))) == found
    with pytest.raises(BalcalError, match="not of the same samples"):
        metrics.compare(predictions_of(cool), predictions_of(pair(1500)[0]))


def test_what_cannot_be_compared_is_said():
    p, y = draw(0)
    predictions = Predictions(torch.from_numpy(p).log(), torch.from_numpy(y))
    with pytest.raises(BalcalError, match="expected predictions, got ndarray"):
        metrics.compare(predictions, p)
    with pytest.raises(BalcalError, match="names must be those of the two models"):
        metrics.compare(predictions, predictions, names=("a",))
    one = Predictions(predictions.log_probs[:1], predictions.labels[:1])
    other = Predictions(predictions.log_probs[:1].flip(1), predictions.labels[:1])
    with pytest.raises(BalcalError, match="resampling cannot say how sure it is: compare the models on more"):
        metrics.compare(one, other)
    same = Predictions(torch.tensor([[0.9, 0.1]] * 5).log(), torch.zeros(5, dtype=torch.long))
    less = Predictions(torch.tensor([[0.8, 0.2]] * 5).log(), same.labels)
    with pytest.raises(BalcalError, match="the difference is the same in all of 5 samples"):
        metrics.compare(same, less)
    for wrong in (None, [], {}, 3, {"names": 3}, {"samples": 3}):
        with pytest.raises(BalcalError, match="this is not a comparison"):
            metrics.Comparison.of(wrong)
