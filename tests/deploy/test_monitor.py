"""The monitor cries wolf no more often than it says, over the whole stream, and finds a drift soon."""

import copy
import json

import numpy as np
import pytest
import torch

from balcal import Monitor, decisions
from balcal.core import BalcalError
from balcal.deploy.betting import FRACTIONS, MeanTest, lower_bound


def confident(rng, n):
    """As networks are: mostly sure, sometimes not. Mean 0.908, deviation 0.147."""
    return np.where(rng.random(n) < 0.8, rng.beta(30, 1, n), rng.beta(4, 2, n))


def wealth_by_hand(values, mean):
    """Every beginning of a drift by itself: its weight times the product of what came after."""
    rest = [1 / (1 + np.log2(1 + t)) for t in range(len(values) + 1)]
    total = rest[-1]
    for begin in range(1, len(values) + 1):
        after = [np.prod([1 + f / mean * (x - mean) for x in values[begin - 1 :]]) for f in FRACTIONS]
        total += (rest[begin - 1] - rest[begin]) * np.mean(after)
    return total


def test_wealth_is_the_sum_over_all_beginnings():
    x = np.random.default_rng(0).random(12)
    for n in (1, 5, 12):
        told = MeanTest("x", 0.5, 0.4).add(x[:n], wealth_by_hand(x[:n], 0.4) * (1 + 1e-9))
        assert not [at for direction, at, _ in told if direction == "up" and at == n]
        told = MeanTest("x", 0.5, 0.4).add(x[:n], wealth_by_hand(x[:n], 0.4) * (1 - 1e-9))
        assert next(at for direction, at, _ in told if direction == "up") <= n
        told = MeanTest("x", 0.5, 0.4).add(x[:n], wealth_by_hand(1 - x[:n], 0.5) * (1 - 1e-9))
        assert next(at for direction, at, _ in told if direction == "down") <= n


def test_false_alarms_over_the_whole_stream_are_at_most_alpha():
    """At the very edge of the null, looked at after each of 2,000 samples: 20 % nominal, 150 streams."""
    rng = np.random.default_rng(1)
    mean = 0.8 * 30 / 31 + 0.2 * 4 / 6
    wrong = sum(bool(MeanTest("x", mean, mean).add(confident(rng, 2000), 2 / 0.2)) for _ in range(150))
    assert wrong / 150 <= 0.2 + 2 * (0.2 * 0.8 / 150) ** 0.5
    assert wrong > 0, "and it does bet"


def test_false_alarms_with_a_reference():
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(20):
        c = confident(rng, 500)
        monitor = Monitor(c, rng.random(500) < c, alpha=0.2)
        c = confident(rng, 3000)
        wrong += bool(monitor.see(c) + monitor.learn(c, rng.random(3000) < c))
    assert wrong / 20 <= 0.2 + 2 * (0.2 * 0.8 / 20) ** 0.5


def test_five_points_of_confidence_are_found_within_a_thousand_samples():
    """After 10,000 quiet samples, alpha 5 %, a reference of 2,000: in 19 of 20 streams at least."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(20):
        monitor = Monitor(confident(rng, 2000))
        assert not monitor.see(confident(rng, 10_000))
        alarms = monitor.see(np.clip(confident(rng, 1000) - 0.05, 0, 1))
        found.append([(a.what, a.direction) for a in alarms] == [("confidence", "down")])
        assert all(a.expected[0] > a.recent for a in alarms)
    assert sum(found) >= 19


def test_accuracy_that_falls_in_one_band_is_found_there():
    rng = np.random.default_rng(4)
    c = confident(rng, 10_000)
    monitor = Monitor(c, rng.random(10_000) < c)
    c = confident(rng, 5000)
    low = c <= monitor.edges[0]
    alarms = monitor.learn(c, rng.random(5000) < np.where(low, c - 0.15, c))
    assert f"calibration from 0.000 to {monitor.edges[0]:.3f}" in {a.what for a in alarms}
    assert {a.direction for a in alarms} == {"down"}
    assert not monitor.see(c), "confidence itself is as it was"
    assert "went down" in str(alarms[0])


def test_memory_is_constant_and_survives_a_restart():
    rng = np.random.default_rng(5)
    c = confident(rng, 1000)
    one, two = Monitor(c, rng.random(1000) < c), None
    fresh = len(json.dumps(one.as_dict()))
    stream = np.clip(confident(rng, 4000) - 0.03, 0, 1)
    right = rng.random(4000) < stream - 0.1
    two = Monitor.of(json.loads(json.dumps(one.as_dict())))
    one.see(stream)
    one.learn(stream, right)
    for i in range(0, 4000, 37):
        two.see(stream[i : i + 37])
        two.learn(stream[i : i + 37], right[i : i + 37])
        if i == 37 * 40:
            two = Monitor.of(json.loads(json.dumps(two.as_dict())))
    assert sorted((a.what, a.direction, a.at) for a in one.alarms) == sorted(
        (a.what, a.direction, a.at) for a in two.alarms
    )
    assert one.alarms
    for a, b in zip(one.watches, two.watches, strict=True):
        np.testing.assert_allclose(a.wealth, b.wealth, rtol=1e-9)
        assert a.recent == pytest.approx(b.recent)
    assert len(json.dumps(one.as_dict())) < 2 * fresh + 2000


def test_the_bound_of_a_mean_holds_as_often_as_it_says():
    rng = np.random.default_rng(6)
    above = sum(lower_bound((rng.random(200) < 0.9).astype(float), 0.2) > 0.9 for _ in range(200))
    assert above / 200 <= 0.2


def test_mistakes_get_one_sentence():
    c = np.full(200, 0.9)
    with pytest.raises(BalcalError, match="confidences must be a list of numbers from 0 to 1"):
        Monitor(c).see([1.2])
    with pytest.raises(BalcalError, match="correct must say true or false"):
        Monitor(c, np.arange(200) % 3)
    with pytest.raises(BalcalError, match="bring at least 100"):
        Monitor(c[:50])
    with pytest.raises(BalcalError, match="alpha must lie between"):
        Monitor(c, alpha=0)
    assert Monitor(c, np.ones(200)).learn(0.9, 1) == []


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"tolerance": np.nan}, "tolerance must be a finite number, not nan"),
        ({"tolerance": -0.1}, "tolerance must be at least 0 and below 1"),
        ({"tolerance": 1}, "from 1 on nothing is a drift"),
        ({"tolerance": "0.1"}, "tolerance must be a finite number"),
        ({"alpha": np.nan}, "alpha must be a finite number"),
        ({"alpha": 1e-300}, "alpha must lie between"),
        ({"bands": 0}, "the number of bands must be at least 1"),
        ({"bands": 2.5}, "the number of bands must be a whole number"),
        ({"bands": 10**9}, "the number of bands must be at most"),
    ],
)
def test_settings_are_checked(bad, complaint):
    with pytest.raises(BalcalError, match=complaint):
        Monitor(np.full(200, 0.9), np.ones(200), **bad)


def test_outcomes_without_a_reference_of_outcomes_are_refused():
    with pytest.raises(BalcalError, match=r"reference had no labels, .* make it with Monitor\(confidences, correct\)"):
        Monitor(np.full(200, 0.9)).learn([0.9], [1])
    with pytest.raises(BalcalError, match="reference had no labels"):
        Monitor.of(Monitor(np.full(200, 0.9)).as_dict()).learn([0.9], [1])


def test_tensors_with_gradients_lists_and_masks():
    c = torch.full((200,), 0.9, requires_grad=True)
    monitor = Monitor(c, torch.ones(200, dtype=torch.bool))
    assert monitor.see(c) == monitor.learn(c, c > 0.5) == monitor.see([0.9]) == []
    hidden = np.ma.masked_array(np.full(200, 0.9), mask=np.arange(200) == 3)
    for call in (lambda: Monitor(hidden), lambda: monitor.see(hidden), lambda: monitor.learn(c, hidden > 0.5)):
        with pytest.raises(BalcalError, match="masked"):
            call()
    for bad in ("high", [[0.5], [0.5, 0.5]], [0.5, None], [[0.5]], [np.nan], [0.5j], {}):
        with pytest.raises(BalcalError):
            monitor.see(bad)
        with pytest.raises(BalcalError):
            monitor.learn([0.5], bad)
    assert monitor.watches[0].seen == 201


def spoilt(told, path, value):
    """A copy with one place replaced."""
    told = json.loads(json.dumps(told))
    *way, last = path
    place = told
    for step in way:
        place = place[step]
    place[last] = value
    return told


WHOLE = {"alpha", "edges", "watches", "alarms"}


@pytest.mark.parametrize(
    "told", [{}, None, [], 3, "a", {"alpha": 0.05}, dict.fromkeys(WHOLE), {key: [] for key in WHOLE}]
)
def test_what_is_no_monitor_is_refused(told):
    with pytest.raises(BalcalError, match="this is not a monitor as `as_dict` gives it"):
        Monitor.of(told)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["alpha"], float("nan")),
        (["alpha"], 2),
        (["alpha"], "0.05"),
        (["edges"], None),
        (["edges"], [0.5, 0.4]),
        (["edges"], []),
        (["edges", 0], float("nan")),
        (["watches"], []),
        (["watches", 0], None),
        (["watches", 0], {}),
        (["watches", 0, "name"], "confidences"),
        (["watches", 0, "low"], float("nan")),
        (["watches", 0, "low"], 1.5),
        (["watches", 0, "high"], -1),
        (["watches", 0, "wealth"], None),
        (["watches", 0, "wealth"], [[], []]),
        (["watches", 0, "wealth", 0, 3], float("inf")),
        (["watches", 0, "wealth", 1, 3], None),
        (["watches", 0, "seen"], -1),
        (["watches", 0, "seen"], 1.5),
        (["watches", 0, "seen"], 10**15),
        (["watches", 0, "recent"], "0.9"),
        (["watches", 0, "rung"], ["left"]),
        (["watches", 0, "rung"], "up"),
        (["alarms"], {}),
        (["alarms", 0], {"what": "confidence"}),
        (["alarms", 0, "direction"], "left"),
        (["alarms", 0, "expected"], [0.5]),
        (["alarms", 0, "expected"], [0.5, float("nan")]),
        (["alarms", 0, "at"], "soon"),
        (["alarms", 0, "what"], 5),
    ],
)
def test_one_wrong_place_is_enough(path, value):
    rng = np.random.default_rng(7)
    c = confident(rng, 1000)
    monitor = Monitor(c, rng.random(1000) < c)
    assert monitor.see(np.zeros(300))
    told = monitor.as_dict()
    assert Monitor.of(json.loads(json.dumps(told))).as_dict() == json.loads(json.dumps(told)) | {
        "alarms": told["alarms"]
    }
    with pytest.raises(BalcalError, match="this is not a monitor as `as_dict` gives it"):
        Monitor.of(spoilt(told, path, value))


def test_bands_that_lie_close_together_are_all_watched():
    """Edges that are equal to three digits once shared a name, and one of the bands was not watched."""
    rng = np.random.default_rng(8)
    c = 1 - 1e-3 * rng.random(4000)
    monitor = Monitor(c, rng.random(4000) < c, bands=6)
    assert len(monitor.edges) == 5
    assert len({watch.name for watch in monitor.watches}) == len(monitor.watches) == 8
    monitor.learn(c, np.ones(4000))
    seen = [watch.seen for watch in monitor.watches[2:]]
    assert sum(seen) == 4000
    assert min(seen) > 500


def promised(rng, n=4000):
    """A calibrated model of two classes with a threshold and sets, and its reference."""
    conf = 0.5 + 0.5 * rng.beta(4, 0.6, n)
    right = rng.random(n) < conf
    data = {"probs": np.stack([conf, 1 - conf], axis=1), "labels": (~right).astype(int)}
    return conf, right, decisions.threshold(**data, accuracy=0.95), decisions.prediction_sets(**data, alpha=0.1)


def test_a_broken_promise_is_noticed_and_a_kept_one_is_not():
    rng = np.random.default_rng(11)
    c, right, found, sets = promised(rng)
    monitor = Monitor(c, right, promise=found, sets=sets)
    fine = 0.5 + 0.5 * rng.beta(4, 0.6, 5000)
    outcome = rng.random(5000) < fine
    assert monitor.learn(fine, outcome, covered=rng.random(5000) < 0.9) == []
    monitor = Monitor.of(json.loads(json.dumps(monitor.as_dict())))
    worse = rng.random(5000) < fine - 0.12
    alarms = {alarm.what: alarm for alarm in monitor.learn(fine, worse, covered=rng.random(5000) < 0.8)}
    assert alarms["accepted accuracy"].direction == alarms["set coverage"].direction == "down"
    assert alarms["accepted accuracy"].expected == (0.95, 1.0)
    assert alarms["accepted accuracy"].recent < 0.95
    only = Monitor(c, promise=found)
    assert [alarm.what for alarm in only.learn(fine, worse)] == ["accepted accuracy"]
    with pytest.raises(BalcalError, match="pass covered="):
        only.learn(fine, worse, covered=worse)
    with pytest.raises(BalcalError, match="needs one threshold that promises an accuracy"):
        Monitor(c, promise=decisions.threshold(probs=[[0.9, 0.1]] * 9, labels=[0] * 9))
    spoilt = only.as_dict() | {"promises": {"accepted accuracy": [0.95]}}
    with pytest.raises(BalcalError, match="from which confidence on"):
        Monitor.of(spoilt)


def test_sets_of_an_unlucky_draw_are_no_broken_promise():
    """Coverage of sets that were fitted on 400 samples may well be 88 %: they promise an average over draws."""
    rng = np.random.default_rng(13)
    c, _, _, sets = promised(rng, 400)
    monitor = Monitor(c, sets=sets)
    stream = np.full(3000, 0.9)
    assert monitor.learn(stream, stream > 0, covered=rng.random(3000) < 0.88) == []
    (alarm,) = monitor.learn(stream, stream > 0, covered=rng.random(3000) < 0.75)
    assert alarm.what == "set coverage"
    assert 0.8 < alarm.expected[0] < 0.87


def test_promises_give_few_false_alarms():
    """At the very edge of what is promised: 200 streams of 2,000."""
    rng, false = np.random.default_rng(12), 0
    c, _, found, sets = promised(rng)
    fresh = Monitor(c, promise=found, sets=sets)
    for _ in range(200):
        monitor, stream = copy.deepcopy(fresh), np.full(2000, 0.99)
        false += bool(monitor.learn(stream, rng.random(2000) < 0.95, covered=rng.random(2000) < 0.9))
    assert false / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
