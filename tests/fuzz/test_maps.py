"""Calibrators and monitors, whatever is passed; and settings of recipes, whatever is typed."""

import json
from dataclasses import fields

import numpy as np
from fuzzing import answers, distributions, law, mostly, numbers, odd, outcome, spoilt
from hypothesis import strategies as st

import balcal
from balcal import registry
from balcal.core import BalcalError
from balcal.recipe import ROLES
from balcal.runtime.provenance import describe

POSTHOC = [name for name, each in registry.table("methods").items() if set(each.changes) == {"posthoc"}]
SETTINGS = {
    "by": ["nll", "ece", "balance"],
    "loss": ["nll", "mse"],
    "penalty": [None, 0.1],
    "bins": [5],
    "pooled": [True],
}
KEEPS_ORDER = ("ts", "ts-uniform", "ets", "isotonic")


def checked(probs, shape):
    assert probs.shape == shape
    assert np.isfinite(probs).all()
    assert probs.min() >= 0
    assert np.abs(probs.sum(1) - 1).max() < 1e-6


@law(
    examples=100,
    method=st.sampled_from(POSTHOC),
    inputs=st.sampled_from(["probs", "log_probs", "logits"]),
    both=distributions(least=10, most=40, classes=3),
    scale=st.sampled_from([1.0, 1.0, 1.0, 1e-8, 50.0, 1e5, 1e20, 1e300]),
    shift=st.sampled_from([0.0, 0.0, 7.0, -1e9, 1e25]),
    data=st.data(),
)
def test_calibrators_are_right_or_refuse(method, inputs, both, scale, shift, data):
    p, y = both
    y[:3] = range(3)
    with np.errstate(divide="ignore"):
        table = {"probs": p, "log_probs": np.log(p), "logits": np.log(p) * scale + shift}[inputs]
    calibrator = balcal.Calibrator(method, inputs)
    fitted = outcome(calibrator.fit, data.draw(mostly(st.just(table), spoilt(table))), data.draw(answers(y, 3)))
    if fitted is None:
        return
    probs = outcome(calibrator.predict_proba, table)
    if probs is not None:
        checked(probs, table.shape)
        if method in KEEPS_ORDER:
            top = table.max(1, keepdims=True)
            alone = ((table == top).sum(1) == 1) & (np.sort(table, 1)[:, -2] < top[:, 0] - 1e-6 * abs(top[:, 0]))
            assert (probs.argmax(1) == table.argmax(1))[alone].all()
    probs = outcome(calibrator.predict_proba, data.draw(mostly(spoilt(table), odd)))
    if probs is not None:
        checked(probs, (len(probs), 3))
    with np.errstate(all="ignore"):
        far = outcome(calibrator.predict_proba, table * 1e20 if inputs == "logits" else table)
    if far is not None:
        checked(far, table.shape)


@law(
    method=mostly(st.sampled_from([name for name in POSTHOC if name not in ("gamma", "laplace")]), numbers),
    data=st.data(),
    both=distributions(least=30, most=40, classes=3),
)
def test_settings_of_calibrators_are_checked(method, data, both):
    p, y = both
    y[:3] = range(3)
    own = [f.name for f in fields(registry.method(method).posthoc)] if method in POSTHOC else []
    name = data.draw(mostly(st.sampled_from([*own, None]), numbers.filter(lambda x: not isinstance(x, (list, dict)))))
    value = data.draw(st.one_of(st.sampled_from(SETTINGS.get(name, [None])), numbers))
    calibrator = balcal.Calibrator(method, settings=None if name is None else {name: value})
    if outcome(calibrator.fit, p, y) is not None:
        checked(calibrator.predict_proba(p), p.shape)


confidences = st.lists(st.floats(0, 1), max_size=30)


@law(
    seed=st.integers(0, 2**32),
    shape=st.sampled_from([(8, 1), (1, 1), (0.1, 0.1), (50, 1e-3)]),
    labelled=st.booleans(),
    more=st.fixed_dictionaries(
        {},
        optional={
            "alpha": mostly(st.floats(0.001, 0.9), numbers),
            "tolerance": mostly(st.floats(0, 0.5), numbers),
            "bands": mostly(st.integers(1, 6), numbers),
        },
    ),
    stream=st.lists(mostly(confidences, odd), max_size=5),
    data=st.data(),
)
def test_monitors_go_on_after_a_journey_through_json(seed, shape, labelled, more, stream, data):
    rng = np.random.default_rng(seed)
    c = rng.beta(*shape, 150)
    monitor = outcome(balcal.Monitor, c, rng.random(150) < c if labelled else None, **more)
    if monitor is None:
        return
    twin = balcal.Monitor.of(json.loads(json.dumps(monitor.as_dict(), allow_nan=False)))
    for part in stream:
        right = data.draw(st.one_of(st.just(part), st.just([1] * len(part) if isinstance(part, list) else 1), odd))
        assert outcome(monitor.see, part) == outcome(twin.see, part)
        assert outcome(monitor.learn, part, right) == outcome(twin.learn, part, right)
        twin = balcal.Monitor.of(json.loads(json.dumps(twin.as_dict(), allow_nan=False)))
    assert twin.as_dict() == monitor.as_dict()


json_values = st.recursive(
    st.one_of(st.floats(0, 1), st.integers(0, 300), numbers), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


def paths_into(value, path=()):
    """Every path into plain data."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [each for step, inner in steps for each in paths_into(inner, (*path, step))]


MONITOR = balcal.Monitor(np.linspace(0.5, 1, 200), np.arange(200) % 4 > 0)
MONITOR.see(np.zeros(300))
STATE = json.dumps(MONITOR.as_dict())


@law(where=st.integers(0, 10**6), value=json_values, whole=mostly(st.just(False), st.just(True)))
def test_states_that_are_none_are_refused(where, value, whole):
    state = json.loads(STATE)
    paths = paths_into(state)
    *way, last = paths[where % len(paths)]
    inner = state
    for step in way:
        inner = inner[step]
    inner[last] = value
    monitor = outcome(balcal.Monitor.of, value if whole else state)
    if monitor is not None:
        assert isinstance(outcome(monitor.see, [0.5, 1.0]), list)
        json.dumps(monitor.as_dict(), allow_nan=False)


PRINTED = st.characters(exclude_categories=("C", "Z"))
FIELDS = (
    "epochs",
    "lr",
    "batch_size",
    "clip",
    "keep",
    "average",
    "milestones",
    "schedule",
    "bins",
    "penalty",
    "by",
    "beta",
)
words = st.one_of(
    st.text(PRINTED, max_size=8),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(
        ["none", "null", "true", "1e400", "-1", "0", "nan", "(1,2)", "[]", "K", "all", "best", "1_0", "0x1"]
    ),
)


@law(
    examples=120,
    task=mostly(st.sampled_from(sorted(registry.table("tasks"))), st.text(PRINTED, max_size=5)),
    method=mostly(st.sampled_from(sorted(registry.table("methods"))), st.text(PRINTED, max_size=5)),
    second=st.one_of(st.none(), st.sampled_from(sorted(registry.table("methods")))),
    paths=st.lists(
        st.tuples(
            mostly(st.sampled_from(("plan", "task", "parent.plan", "parent", *ROLES)), st.text(PRINTED, max_size=4)),
            mostly(st.sampled_from(FIELDS), st.text(PRINTED, max_size=4)),
            words,
        ),
        max_size=3,
    ),
)
def test_settings_of_recipes_are_checked(task, method, second, paths):
    typed = [f"{root}.{name}={value}" for root, name, value in paths]
    name = method if second is None else f"{method}+{second}"
    recipe = outcome(registry.recipe, task, name, 0, typed)
    if recipe is not None:
        json.dumps(describe(recipe), allow_nan=False)
        assert recipe.address() == registry.recipe(task, name, 0, typed).address()
        try:
            registry.recipe(task, name, 0, [*typed, "no such setting"])
        except BalcalError:
            return
        raise AssertionError("what is no setting is refused")
