"""Figures: what is drawn is read back from the artists and held against plain loops."""

import re
import zlib

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from page_samples import HISTORY, balcal_run, predictions, shift_table, small_arena

import balcal
from balcal.analysis import features as embedding
from balcal.analysis.features import fused_maps
from balcal.core import BalcalError
from balcal.evaluation.judge import load_chosen
from balcal.plots.features import run_features
from balcal.plots.numbers import confident_mistakes, perfect_band
from balcal.plots.style import OVER, UNDER
from balcal.runs import Run

plots = balcal.plots
TOLD = predictions()
P, Y = TOLD.probs.numpy(), TOLD.labels.numpy()
CONF, RIGHT = P.max(1), P.argmax(1) == Y


def artists(figure, name):
    return [a for axes in figure.axes for a in (*axes.patches, *axes.lines, *axes.collections) if a.get_gid() == name]


def line(figure, name):
    (found,) = artists(figure, name)
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def groups(bins):
    """(bin, members) by the edges themselves."""
    for b in range(bins):
        members = [i for i in range(len(Y)) if b / bins < CONF[i] <= (b + 1) / bins]
        if members:
            yield b, members


def test_reliability_diagram():
    figure = plots.reliability_diagram(TOLD, bins=10)
    bars, gaps, bands = (artists(figure, name) for name in ("accuracy", "gap", "band"))
    expected = list(groups(10))
    assert len(bars) == len(gaps) == len(bands) == len(expected)
    for (b, members), bar, gap, band in zip(expected, bars, gaps, bands, strict=True):
        acc, conf = RIGHT[members].mean(), CONF[members].mean()
        assert bar.get_height() == pytest.approx(acc)
        assert bar.get_x() + bar.get_width() / 2 == pytest.approx((b + 0.5) / 10)
        assert gap.get_height() == pytest.approx(conf - acc)
        assert gap.get_y() == pytest.approx(acc)
        assert to_hex(gap.get_facecolor()) == (OVER if conf > acc else UNDER)
        low, high = band.get_segments()[0][:, 1]
        draws = np.random.default_rng(b).binomial(len(members), conf, 20_000) / len(members)
        assert np.mean((draws >= low) & (draws <= high)) >= 0.945
        assert np.mean((draws > low) & (draws < high)) < 0.96
    shares = [bar.get_height() for bar in artists(figure, "share")]
    assert sum(shares) == pytest.approx(1)
    assert shares[expected[0][0]] == pytest.approx(len(expected[0][1]) / len(Y))


def test_arrays_go_by_name_and_bins_have_two_names():
    for name in ("reliability_diagram", "confidence_histogram", "risk_coverage", "class_calibration"):
        with pytest.raises(BalcalError, match=rf"pass arrays by name: {name}\(probs=..., labels=...\)"):
            getattr(plots, name)(P, Y)
    both = (plots.reliability_diagram(probs=P, labels=Y, **named) for named in ({"bins": 7}, {"n_bins": 7}))
    assert len({len(artists(figure, "accuracy")) for figure in both}) == 1
    with pytest.raises(BalcalError, match="two names of one number"):
        plots.reliability_diagram(probs=P, labels=Y, bins=7, n_bins=7)


def test_the_band_of_a_perfect_model():
    assert perfect_band(1, 0.5) == (0.0, 1.0)
    assert perfect_band(40, 1.0) == (1.0, 1.0)
    low, high = perfect_band(10_000, 0.8)
    assert (low, high) == pytest.approx((0.8 - 1.96 * 0.004, 0.8 + 1.96 * 0.004), abs=2e-4)


def test_confidence_histogram():
    figure = plots.confidence_histogram(probs=P, labels=Y, bins=4)
    for name, sign, chosen in (("right", 1, RIGHT), ("wrong", -1, ~RIGHT)):
        counts = [sum(b / 4 < c <= (b + 1) / 4 for c in CONF[chosen]) for b in range(4)]
        heights = [bar.get_height() for bar in artists(figure, name)]
        assert heights == pytest.approx([sign * n / chosen.sum() for n in counts])


def test_risk_coverage():
    figure = plots.risk_coverage(TOLD)
    order = np.argsort(-CONF, kind="stable")
    taken = np.arange(1, len(Y) + 1)
    x, y = line(figure, "risk")
    assert x == pytest.approx(taken / len(Y))
    assert y == pytest.approx(np.cumsum(~RIGHT[order]) / taken)
    assert line(figure, "claimed")[1] == pytest.approx(np.cumsum(1 - CONF[order]) / taken)


def test_class_calibration():
    figure = plots.class_calibration(TOLD, classes=["ant", "bee", "cat", "dog"])
    axes = figure.axes[0]
    names = {label.get_text(): int(tick) for label, tick in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    for k, name in enumerate(("ant", "bee", "cat", "dog")):
        mine = P.argmax(1) == k
        assert line(figure, "accuracy")[0][names[name]] == pytest.approx(RIGHT[mine].mean())
        assert line(figure, "confidence")[0][names[name]] == pytest.approx(CONF[mine].mean())
    with pytest.raises(BalcalError, match="4 classes, but 1 names"):
        plots.class_calibration(TOLD, classes=["ant"])


def test_gamma_and_loss_curves():
    figure = plots.gamma_curve(HISTORY)
    epochs, gamma = line(figure, "gamma")
    assert epochs.tolist() == [1, 2, 3, 4]
    assert gamma == pytest.approx([1.0, 0.9, 0.8, 0.7])
    assert line(figure, "target")[1] == pytest.approx([r["conf"] - r["gap"] for r in HISTORY])
    assert line(figure, "conf")[1] == pytest.approx([r["conf"] for r in HISTORY])
    figure = plots.loss_curve(HISTORY)
    assert line(figure, "loss")[1] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert line(figure, "val_nll")[1] == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert line(figure, "val_nll_ts")[1] == pytest.approx([0.8, 0.7, 0.6, 0.5])
    with pytest.raises(BalcalError, match="no gamma and no beta"):
        plots.gamma_curve([{"epoch": 0, "loss": 1.0}])


def test_the_target_of_a_real_run_is_delta_times_accuracy():
    run = Run.at(balcal_run())
    target = line(plots.gamma_curve(run.path), "target")[1]
    assert target == pytest.approx([run.recipe.method.head.delta * record["acc"] for record in run.history()])


def test_shift_curve():
    table = shift_table()
    figure = plots.shift_curve({"mine": table})
    assert line(figure, "ece")[1] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.10])
    assert line(figure, "accuracy")[1] == pytest.approx([0.7] * 5)
    (band,) = artists(figure, "ece interval")
    corners = band.get_paths()[0].vertices
    for row in table["by_severity"]:
        ys = {round(y, 9) for x, y in corners if x == row["severity"]}
        assert {round(end, 9) for end in row["ece_interval"]} <= ys
    with pytest.raises(BalcalError, match="not evaluated under shift yet"):
        plots.shift_curve(balcal_run())


def test_outside_histogram():
    other = predictions(5, k=4)
    figure = plots.outside_histogram({"inside": TOLD, "outside": other}, bins=5)
    for name, told in (("inside", TOLD), ("outside", other)):
        (stairs,) = artists(figure, name)
        conf = told.probs.numpy().max(1)
        assert stairs.get_data().values == pytest.approx(
            [np.mean((conf > b / 5) & (conf <= (b + 1) / 5)) for b in range(5)]
        )
    with pytest.raises(BalcalError, match="predictions of OOD sets"):
        plots.outside_histogram({"inside": TOLD})


def test_mistakes_are_the_surest_wrong_answers():
    found = confident_mistakes(TOLD, 5)
    wrong = sorted((i for i in range(len(Y)) if not RIGHT[i]), key=lambda i: -CONF[i])[:5]
    assert [i for i, _, _ in found] == wrong
    assert all(says == P[i].argmax() and conf == pytest.approx(CONF[i]) for i, says, conf in found)


def test_tsne_keeps_neighbours_and_colours():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 30)
    features = rng.normal(size=(60, 8)) + 20 * labels[:, None]
    figure = plots.tsne(features=features, labels=labels, classes=["low", "high"])
    parts = [np.asarray(artists(figure, f"class {k}")[0].get_offsets()) for k in (0, 1)]
    assert np.concatenate(parts) == pytest.approx(embedding.tsne(features)[np.argsort(labels, kind="stable")])
    centres = [part.mean(0) for part in parts]
    for k, part in enumerate(parts):
        own, other = (np.linalg.norm(part - centres[j], axis=1) for j in (k, 1 - k))
        assert (own < other).all()


def test_features_of_a_run_are_what_its_classifier_reads():
    run = Run.at(balcal_run())
    features, labels = run_features(run, 50)
    model = load_chosen(run, run.recipe.method, torch.device("cpu")).eval()
    with torch.no_grad():
        told = model.head(torch.from_numpy(features).float(), None).log_probs()
    stored = run.load_predictions("test")
    assert labels.tolist() == stored.labels[:50].tolist()
    assert told.numpy() == pytest.approx(stored.log_probs[:50].numpy(), abs=1e-5)


def test_activation_maps_by_hand():
    """By finite differences: what a little more of a channel, everywhere, does to the log-probability."""
    run = Run.at(balcal_run())
    model = load_chosen(run, run.recipe.method, torch.device("cpu")).double().eval()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    maps, picked, confidence = fused_maps(model, x)
    with torch.no_grad():
        feature_map = model.backbone.forward_features(x)

        def told(moved):
            return model.head(model.backbone.forward_head(moved, pre_logits=True), moved).log_probs()

        base = told(feature_map)
        assert picked.tolist() == base.argmax(1).tolist()
        assert confidence == pytest.approx(base.exp().max(1).values)
        rows, step = torch.arange(2), 1e-6
        seen = torch.zeros(2, *feature_map.shape[2:], dtype=torch.float64)
        for channel in range(feature_map.shape[1]):
            moved = [feature_map.clone(), feature_map.clone()]
            moved[0][:, channel] += step
            moved[1][:, channel] -= step
            slope = (told(moved[0])[rows, picked] - told(moved[1])[rows, picked]) / (2 * step)
            seen += slope[:, None, None] / seen[0].numel() * feature_map[:, channel]
    seen = seen.clamp(min=0)
    assert maps == pytest.approx(seen, abs=1e-3 * float(seen.max()))
    figure = plots.cam(run, samples=[3, 5])
    images = [image for axes in figure.axes for image in axes.images if image.get_gid() == "map"]
    assert len(images) == 2
    assert all(image.get_array().max() <= 1 for image in images)


def test_differences_of_an_arena(tmp_path):
    _, result = small_arena()
    figure = plots.differences(result)
    for name, times in (("accuracy", 100), ("ece", 100), ("nll", 1)):
        for entry in ("vanilla", "balcal", "balcal+ts"):
            told = result.compare("vanilla+ts", entry)[name]
            ends, _ = line(figure, f"{name} {entry}")
            assert ends == pytest.approx([times * told.low, times * told.high])
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    means = {entry: np.mean(result.values(entry, "nll")) for entry in shown}
    assert shown == sorted(means, key=means.get, reverse=True), "the lowest is on top"
    with pytest.raises(BalcalError, match="unknown column `acc`; did you mean `accuracy`"):
        plots.differences(result.save(tmp_path / "arena.json"), ("acc",))


def test_runs_arrays_and_names_may_be_drawn():
    run = balcal_run()
    assert len(plots.reliability_diagram({"a": run, "b": run}).axes) == 4
    assert plots.reliability_diagram(run).axes[0].get_title() == "balcal"
    with pytest.raises(BalcalError, match="not both"):
        plots.reliability_diagram(TOLD, probs=P)
    with pytest.raises(BalcalError, match="mapping is empty"):
        plots.reliability_diagram({})


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_figures_are_saved_with_their_fonts(tmp_path, ending):
    path = tmp_path / f"figure.{ending}"
    plots.loss_curve(HISTORY).save(path)
    content = path.read_bytes()
    if ending == "png":
        assert content.startswith(b"\x89PNG")
    elif ending == "svg":
        assert b"<text" not in content, "letters are paths: they look the same everywhere"
    else:
        parts = [content]
        for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.S):
            try:
                parts.append(zlib.decompress(stream))
            except zlib.error:
                continue
        whole = b"".join(parts)
        assert b"/FontFile2" in whole
        assert b"/Type3" not in whole
