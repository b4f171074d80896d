"""Monitor a model in use: an alarm when confidence or calibration drifts by more than sampling explains.

The tests are sequential (`deploy/betting.py`): the probability of any false alarm is bounded over the whole stream,
however long it is and however often one looks. What is normal is estimated from a held-out reference; the uncertainty
of that estimate is part of the same alpha.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from balcal.core import BalcalError
from balcal.decisions import PredictionSets, Threshold
from balcal.deploy.betting import LONGEST, Floats, MeanTest, lower_bound
from balcal.runtime.values import as_tensor, check_choice, check_number, check_whole, plain_list, plain_record

LEAST = 100
"""samples that a reference needs"""
FOR_REFERENCE = 0.2
"""share of alpha for the uncertainty of the reference"""
LEAST_ALPHA = 1e-12
MOST_BANDS = 1000
ACCEPTED, SETS = "accepted accuracy", "set coverage"
"""names of watched promises"""


@dataclass(frozen=True)
class Alarm:
    """What drifted, in which direction, and at which sample that was certain enough."""

    what: str
    direction: Literal["up", "down"]
    at: int
    """samples that this test had seen"""
    recent: float
    """mean of the last few hundred values"""
    expected: tuple[float, float]

    @staticmethod
    def of(data: Any) -> Alarm:
        """From plain data, checked."""
        alarm = Alarm(**plain_record(data, Alarm))
        if not isinstance(alarm.what, str) or len(plain_list(alarm.expected, "expected")) != 2:
            raise BalcalError("an alarm says what drifted, and the two ends of what was expected")
        check_choice(alarm.direction, "direction", ("up", "down"))
        check_whole(alarm.at, "at", 1, LONGEST)
        low, high = (check_number(end, "expected", -1, 1) for end in alarm.expected)
        return Alarm(alarm.what, alarm.direction, alarm.at, check_number(alarm.recent, "recent", -1, 1), (low, high))

    def __str__(self) -> str:
        low, high = self.expected
        return (
            f"{self.what} went {self.direction}: {self.recent:+.3f} lately, [{low:+.3f}, {high:+.3f}] expected; "
            f"certain after {self.at:,} samples"
        )


class Monitor:
    """Takes confidences of predictions (`see`), and outcomes once they are known (`learn`); returns alarms.

    `confidences` and `correct` are of a held-out reference. `alpha` bounds the probability of any false alarm, ever.
    A drift of less than `tolerance` gives none. Calibration is tested overall and in `bands` of confidence. With
    `promise=`, a threshold of `balcal.decisions.threshold`, the accuracy of accepted samples is watched too, and with
    `sets=` how often prediction sets hold the label: an alarm says that a promise is broken.

    >>> rng = np.random.default_rng(0)
    >>> c = rng.beta(8, 1, 4000)
    >>> monitor = Monitor(c, rng.random(4000) < c)
    >>> monitor.see(rng.beta(8, 1, 5000))
    []
    >>> print(monitor.see(rng.beta(8, 1, 1000) - 0.05)[0])
    confidence went down: +0.87... lately, [+0.88..., +0.89...] expected; certain after 5,0... samples
    """

    def __init__(
        self,
        confidences: ArrayLike,
        correct: ArrayLike | None = None,
        alpha: float = 0.05,
        tolerance: float = 0.0,
        bands: int = 3,
        promise: Threshold | None = None,
        sets: PredictionSets | None = None,
    ) -> None:
        check_alpha(alpha)
        if not 0 <= check_number(tolerance, "tolerance") < 1:
            raise BalcalError(
                f"tolerance must be at least 0 and below 1, not {tolerance}: from 1 on nothing is a drift"
            )
        check_whole(bands, "the number of bands", 1, MOST_BANDS)
        c = _checked(confidences)
        if len(c) < LEAST:
            raise BalcalError(f"a reference of {len(c)} samples says too little: bring at least {LEAST}")
        right = None if correct is None else _outcomes(correct, c)
        inner = (
            np.unique(np.quantile(c, np.arange(1, bands) / bands)) if right is not None and bands > 1 else np.array([])
        )
        self.edges = [float(edge) for edge in inner if c.min() < edge < c.max()]
        self.alpha, self.alarms = alpha, list[Alarm]()
        parts: dict[str, Floats] = {"confidence": c}
        if right is not None:
            parts |= self._gaps(c, right)
        delta = alpha * FOR_REFERENCE / (2 * (len(parts) + (sets is not None)))
        self.promises = _promises(promise, sets, delta)
        self.watches = [
            MeanTest(
                name,
                max(0.0, lower_bound(x, delta) - tolerance * (1 if name == "confidence" else 0.5)),
                min(1.0, 1 - lower_bound(1 - x, delta) + tolerance * (1 if name == "confidence" else 0.5)),
            )
            for name, x in parts.items()
        ]
        self.watches += [MeanTest(name, low, 1.0) for name, (low, _) in self.promises.items()]

    @property
    def limit(self) -> float:
        """The wealth that gives an alarm, so that the probability of any false alarm is at most alpha."""
        return 2 * len(self.watches) / (self.alpha * (1 - FOR_REFERENCE))

    def see(self, confidences: ArrayLike) -> list[Alarm]:
        """Add confidences of predictions, in the order in which they were made; returns new alarms."""
        return self._fed({"confidence": _checked(confidences)})

    def learn(self, confidences: ArrayLike, correct: ArrayLike, covered: ArrayLike | None = None) -> list[Alarm]:
        """Add predictions whose labels are known: confidences, and whether they were right; returns new alarms.

        `covered` says whether each prediction set held the label, where these are watched.
        """
        if not any(watch.name.startswith("calibration") for watch in self.watches) and not self.promises:
            raise BalcalError(
                "this monitor's reference had no labels, so calibration is not watched: make it with "
                "Monitor(confidences, correct)"
            )
        c = _checked(confidences)
        right = _outcomes(correct, c)
        parts = self._gaps(c, right)
        if ACCEPTED in self.promises:
            parts[ACCEPTED] = right[c >= self.promises[ACCEPTED][1]]
        if (SETS in self.promises) != (covered is not None):
            raise BalcalError("pass covered= (whether each set held its label) just if the monitor was made with sets=")
        if covered is not None:
            parts[SETS] = _outcomes(covered, c)
        return self._fed(parts)

    def _gaps(self, c: Floats, right: Floats) -> dict[str, Floats]:
        """Outcome minus confidence, mapped from [-1, 1] to [0, 1]: overall, and in bands of confidence."""
        gaps = (right - c + 1) / 2
        parts = {"calibration": gaps}
        bounds = [0.0, *self.edges, 1.0]
        digits = next((d for d in range(3, 17) if len({f"{x:.{d}f}" for x in bounds}) == len(bounds)), None)
        for low, high in pairwise(bounds) if self.edges else ():
            inside = (c > low) & (c <= high) | (c == low) & (low == 0)
            ends = (repr(x) if digits is None else f"{x:.{digits}f}" for x in (low, high))
            parts["calibration from {} to {}".format(*ends)] = gaps[inside]
        return parts

    def _fed(self, parts: dict[str, Floats]) -> list[Alarm]:
        new = []
        for watch in self.watches:
            for direction, at, recent in watch.add(parts.get(watch.name, np.zeros(0)), self.limit):
                scaled = (recent, watch.low, watch.high)
                plain = watch.name == "confidence" or watch.name in self.promises
                mean, low, high = scaled if plain else (2 * x - 1 for x in scaled)
                new.append(Alarm(watch.name, direction, at, mean, (low, high)))
        self.alarms += new
        return new

    def as_dict(self) -> dict[str, Any]:
        """The state as plain data: a few hundred numbers, however long the stream was."""
        return {
            "alpha": self.alpha,
            "edges": self.edges,
            **({"promises": {name: list(each) for name, each in self.promises.items()}} if self.promises else {}),
            "watches": [asdict(watch) for watch in self.watches],
            "alarms": [asdict(alarm) for alarm in self.alarms],
        }

    @staticmethod
    def of(state: Mapping[str, Any]) -> Monitor:
        """From `as_dict`, also through JSON: goes on where it was."""
        try:
            return _restored(state)
        except BalcalError as error:
            raise BalcalError(f"this is not a monitor as `as_dict` gives it: {error}") from None


def _restored(state: Any) -> Monitor:
    names = {"alpha", "edges", "watches", "alarms"}
    if not isinstance(state, Mapping) or not names <= set(state):
        raise BalcalError(f"it must have {', '.join(sorted(names))}")
    monitor = Monitor.__new__(Monitor)
    check_alpha(state["alpha"])
    monitor.alpha = state["alpha"]
    monitor.edges = [check_number(edge, "edges", 0, 1) for edge in plain_list(state["edges"], "edges")]
    if any(low >= high for low, high in pairwise([0.0, *monitor.edges, 1.0])):
        raise BalcalError("its edges must rise between 0 and 1")
    monitor.watches = [MeanTest.of(watch) for watch in plain_list(state["watches"], "watches")]
    monitor.alarms = [Alarm.of(alarm) for alarm in plain_list(state["alarms"], "alarms")]
    monitor.promises = _restored_promises(state.get("promises", {}))
    known, nothing = [watch.name for watch in monitor.watches], np.zeros(0)
    all_of_them = ["confidence", *monitor._gaps(nothing, nothing), *monitor.promises]
    if known != all_of_them and (known != ["confidence", *monitor.promises] or monitor.edges):
        raise BalcalError("its watches are not those of its edges")
    return monitor


def _promises(promise: Threshold | None, sets: PredictionSets | None, delta: float) -> dict[str, tuple[float, float]]:
    """What is promised and from which confidence on, by name.

    Sets promise an average over all held-out sets that could have been drawn. With this one coverage may be a little
    lower, by a known law: an alarm is given if it is below what that law allows, but for `delta`.
    """
    found = {}
    if promise is not None:
        if promise.promise != "accuracy" or not isinstance(promise.threshold, float):
            raise BalcalError("a watched promise needs one threshold that promises an accuracy, and this has none")
        found[ACCEPTED] = (promise.target, promise.threshold)
    if sets is not None:
        found[SETS] = (min(1 - sets.alpha, sets.band(probability=1 - 2 * delta)[0]), 0.0)
    return found


def _restored_promises(state: Any) -> dict[str, tuple[float, float]]:
    if not isinstance(state, Mapping) or not set(state) <= {ACCEPTED, SETS}:
        raise BalcalError(f"its promises must be {ACCEPTED} or {SETS}")
    found = {}
    for name, pair in state.items():
        if len(plain_list(pair, name)) != 2:
            raise BalcalError(f"{name} must be what is promised, and from which confidence on")
        low, limit = (check_number(each, name, 0, 1) for each in pair)
        found[name] = (low, limit)
    return found


def check_alpha(alpha: Any) -> None:
    if not LEAST_ALPHA <= check_number(alpha, "alpha") < 1:
        raise BalcalError(f"alpha must lie between 0 and 1 ({LEAST_ALPHA:g} at least), not {alpha}")


def _checked(confidences: ArrayLike) -> Floats:
    c: Floats = np.atleast_1d(as_tensor(confidences, "the confidences").cpu().double().numpy())
    if c.ndim != 1 or not bool(np.all((c >= 0) & (c <= 1))):
        raise BalcalError(
            "confidences must be a list of numbers from 0 to 1: the largest probability of each prediction"
        )
    return c


def _outcomes(correct: ArrayLike, confidences: Floats) -> Floats:
    right: Floats = np.atleast_1d(as_tensor(correct, "correct").cpu().double().numpy())
    if right.shape != confidences.shape or not bool(np.isin(right, (0, 1)).all()):
        raise BalcalError(
            "correct must say true or false (1 or 0) for each confidence: whether the prediction was right"
        )
    return right
