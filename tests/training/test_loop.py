"""The loop: same recipe, same bits; what is logged; what is kept."""

import json
import signal
from copy import deepcopy

import pytest
import torch
from runs_helper import history, newest_state, same, trained, whole
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import balcal
from balcal.core import BalcalError
from balcal.data.loaders import LoaderBatches
from balcal.data.splits import hold_out
from balcal.methods.temperature import solve_temperature
from balcal.metrics.inputs import finite_scores
from balcal.recipe import Plan
from balcal.runtime.checkpoints import Memory
from balcal.runtime.progress import Progress
from balcal.training import loop as train
from balcal.training.fit import fit_batches
from balcal.training.optimise import rate


def test_same_recipe_same_bits_other_seed_other_bits(tmp_path):
    first, second = trained("balcal", tmp_path / "a"), trained("balcal", tmp_path / "b")
    assert first.name == second.name
    assert same(whole(first), whole(second))
    assert not same(whole(first)["history"], whole(trained("balcal", tmp_path / "a", seed=1))["history"])


def test_history_tells_what_the_method_did(tmp_path):
    records = history(trained("balcal", tmp_path))
    assert [r["epoch"] for r in records] == [0, 1, 2]
    for r in records:
        assert {"loss", "val_nll", "val_acc", "val_ece", "val_conf", "gamma", "conf", "acc", "gap", "branch"} <= set(r)
        assert r["branch"] in ("root", "standard", "closest")
    assert history(trained("vanilla", tmp_path))[0].keys() == {"epoch", "loss"} | {
        f"val_{name}" for name in ("acc", "nll", "nll_ts", "conf", "ece")
    }


def test_checkpoint_holds_the_gamma_its_figures_were_computed_with(tmp_path):
    run = trained("balcal-auto", tmp_path, settings=["plan.keep=all"])
    for path, record in zip(sorted((run / "checkpoints").glob("weights-*.pt")), history(run), strict=True):
        weights = torch.load(path, weights_only=True)
        assert float(weights["head.weights"][0]) == pytest.approx(record["gamma"], rel=1e-6)


@pytest.mark.parametrize(
    ("method", "looks", "passes"),
    [("balcal-mean", [0, 1], 1), ("balcal-auto", [0, 1, 1], 1), ("balcal-beta", [0, 1], 2)],
)
def test_validation_is_gone_through_once_where_logits_do_not_move(method, looks, passes, tmp_path, monkeypatch):
    """And twice where a dial changes them, or where there are too many to keep: with the same figures.

    In the last epoch `balcal-auto` looks at it for the last step's weights as well.
    """
    asked, really = [], train.forward
    monkeypatch.setattr(train, "forward", lambda session: asked.append(session.epoch) or really(session))
    settings = ["tally.on=val", "plan.epochs=2"]
    once = history(trained(method, tmp_path / "once", settings=settings))
    assert asked == [epoch for epoch in looks for _ in range(passes)]
    monkeypatch.setattr(train, "KEPT", 0)
    asked.clear()
    assert history(trained(method, tmp_path / "twice", settings=settings)) == once
    assert asked == [epoch for epoch in looks for _ in range(2)]


def test_a_timid_network_is_made_bolder_unasked(tmp_path):
    """Strong mixing: without gamma above 1 all that can be done is to leave the learnable classifier alone."""
    settings = ["mix.alpha=2", "plan.epochs=4"]
    names = ("mixup", "balcal-val+mixup", "balcal-auto+mixup")
    plain, bounded, free = (history(trained(name, tmp_path, settings=settings))[-1] for name in names)
    assert max(record["val_conf"] - record["val_acc"] for record in (plain, bounded)) < -0.1
    assert bounded["gamma"] == 1
    assert free["gamma"] > 1
    assert free["branch"] == "sharpened"
    assert free["val_conf"] == pytest.approx(free["val_acc"], abs=0.01)
    assert free["val_nll"] < 0.7 * min(plain["val_nll"], bounded["val_nll"])


def test_best_epoch_by_validation_nll_is_kept_and_named(tmp_path):
    run = trained("vanilla", tmp_path)
    best, late = (min(history(run), key=lambda r: r[figure])["epoch"] for figure in ("val_nll", "val_nll_ts"))
    assert json.loads((run / "metrics.json").read_text())["epoch"] == best
    assert {p.name[:13] for p in (run / "checkpoints").glob("weights-*")} == {f"weights-e{e:04d}" for e in (best, late)}


def test_late_asks_a_finished_run_for_the_epoch_that_calibrates_best(tmp_path):
    settings = ["plan.epochs=20", "task.train_size=60", "plan.lr=0.03"]  # enough to overfit
    run = trained("vanilla", tmp_path, settings=settings)
    assert trained("late+ts", tmp_path, settings=settings) == run
    early, late = (json.loads((run / f"metrics{x}.json").read_text())["epoch"] for x in ("", "+late+ts"))
    records = history(run)
    assert late == min(records, key=lambda r: r["val_nll_ts"])["epoch"] > early, "else this says nothing"
    predictions = balcal.runs.Run.at(run).load_predictions(f"val-e{late:04d}")
    assert float(predictions.log_probs.gather(1, predictions.labels[:, None]).mean()) == pytest.approx(
        -records[late]["val_nll"], 1e-5
    )
    tempered = finite_scores(predictions.log_probs.double()) / solve_temperature(
        predictions.log_probs, predictions.labels
    )
    nll = float(torch.nn.functional.cross_entropy(tempered, predictions.labels))
    assert records[late]["val_nll_ts"] == pytest.approx(nll, rel=1e-3)


def test_ts_reuses_the_run_without_retraining(tmp_path):
    run = trained("balcal", tmp_path)
    before = {p: p.stat().st_mtime_ns for p in (run / "checkpoints").iterdir()}
    assert trained("balcal+ts", tmp_path) == run
    assert {p: p.stat().st_mtime_ns for p in (run / "checkpoints").iterdir()} == before
    plain, scaled = (json.loads((run / f"metrics{x}.json").read_text()) for x in ("", "+ts"))
    assert scaled["method"] == "balcal+ts"
    assert scaled["posthoc"]["temperature"] != 1.0
    assert scaled["test"]["accuracy"] == plain["test"]["accuracy"]
    assert scaled["test"]["nll"] != plain["test"]["nll"]


def test_a_loaded_run_predicts_what_it_recorded(tmp_path):
    run = trained("balcal-logits", tmp_path)
    torch.manual_seed(77)
    model = balcal.load(run)
    from balcal.data.batches import MemoryBatches, Pixels
    from balcal.evaluation.judge import load_splits
    from balcal.evaluation.predict import predict_batches
    from balcal.registry import dataset, task

    pixels = Pixels.of(dataset("digits"), torch.device("cpu"))
    predictions = predict_batches(model, MemoryBatches(load_splits(task("digits")).test, pixels, 128))
    recorded = balcal.runs.Run.at(run).load_predictions("test")
    assert torch.equal(predictions.log_probs, recorded.log_probs)
    assert model.head.fusion == "logits"
    scaled = balcal.load(run, posthoc="ts")
    assert float(scaled.posthoc.temperature) != 1.0
    assert (run.rename(tmp_path / "elsewhere")).exists()
    assert torch.equal(balcal.load(tmp_path / "elsewhere").head.etf, model.head.etf), "a run may be moved"


@pytest.mark.parametrize(
    "method", ["etf-1", "etf-k", "balcal-k", "balcal-beta", "balcal-noadapter", "balcal-fixedloss"]
)
def test_every_variant_learns(method, tmp_path):
    records = history(trained(method, tmp_path, settings=["plan.epochs=6"]))
    assert records[-1]["val_acc"] > 0.5
    assert records[-1]["val_nll"] < records[0]["val_nll"]


def test_conv_adapter_learns(tmp_path):
    records = history(trained("balcal", tmp_path, settings=["head.adapter=conv", "plan.epochs=6", "head.delta=0.3"]))
    assert records[-1]["val_acc"] > 0.5


def test_accumulated_batches_make_the_same_step(tmp_path):
    """Four batches of 16 are one of 64: the gradient is the same up to rounding."""
    big = trained("vanilla", tmp_path, settings=["plan.batch_size=64", "plan.epochs=1"])
    small = trained("vanilla", tmp_path, settings=["plan.batch_size=16", "plan.accumulate=4", "plan.epochs=1"])
    a, b = newest_state(big)["model"], newest_state(small)["model"]
    drift = max(float((a[k] - b[k]).abs().max()) for k in a)
    assert 0 < drift < 0.02  # Adam divides by tiny gradients, and order within a batch differs in the last bits
    assert history(small)[0]["loss"] == pytest.approx(history(big)[0]["loss"], abs=0.02)


def test_clipping_bounds_the_step(tmp_path):
    sgd = ["plan.optimiser=sgd", "plan.momentum=0", "plan.lr=1", "plan.epochs=1", "plan.schedule=constant"]
    run = trained("vanilla", tmp_path, settings=[*sgd, "plan.clip=1e-6"])
    start = trained("vanilla", tmp_path, settings=[*sgd, "plan.clip=1e-9"])
    a, b = newest_state(run)["model"], newest_state(start)["model"]
    moved = sum(float((a[k] - b[k]).square().sum()) for k in a) ** 0.5
    assert 0 < moved < 16 * 1e-6 * 1.01, "15 steps of length at most 1e-6"


def test_bf16_and_augmentation_run(tmp_path):
    run = trained("balcal", tmp_path, settings=["plan.precision=bf16", "task.augment=crop+flip", "plan.epochs=1"])
    assert newest_state(run)["model"]["head.weights"].dtype == torch.float32
    assert history(run)[0]["val_nll"] < 2.5


def test_compile_compiles_what_the_model_calls(tmp_path, monkeypatch):
    """With the eager backend, which needs no compiler: the graphs are captured, and the numbers stay."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    settings = ["plan.epochs=1", "plan.compile=true"]
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f: compiled(f, backend=backend))
    fast = trained("balcal", tmp_path, settings=settings)
    assert graphs
    plain = trained("balcal", tmp_path, settings=settings[:1])
    assert history(fast)[0]["val_nll"] == pytest.approx(history(plain)[0]["val_nll"], abs=1e-5)


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
def test_optimisers(optimiser, tmp_path):
    lr = {"sgd": 0.1}.get(optimiser, 3e-3)
    run = trained(
        "vanilla", tmp_path, settings=[f"plan.optimiser={optimiser}", f"plan.lr={lr}", "plan.weight_decay=1e-4"]
    )
    assert history(run)[-1]["val_nll"] < history(run)[0]["val_nll"]


def test_rates():
    warm = Plan(lr=2.0, warmup=0.1, schedule="constant")
    assert [rate(warm, p) for p in (0.0, 0.05, 0.1, 0.9)] == [0.0, 1.0, 2.0, 2.0]


# fit: their model, their loaders


def loaders(workers=0):
    rng = torch.Generator().manual_seed(5)
    y = torch.randint(4, (240,), generator=rng)
    x = torch.randn(240, 3, 8, 8, generator=rng)
    x[torch.arange(240), 0, y, y] += 3
    data = TensorDataset(x, y)
    train = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers)
    return train, DataLoader(data, batch_size=100), x, y


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


@pytest.mark.filterwarnings("ignore:all .* calibration samples are right")
def test_fit_predict_verdict():
    train, val, _, y = loaders()
    model = balcal.wrap(net(), 4, "balcal+ts")
    before = torch.get_rng_state()
    records = balcal.fit(model, train, val, epochs=8, lr=1e-2, quiet=True)
    assert torch.equal(torch.get_rng_state(), before), "the caller's randomness is left alone"
    assert len(records) == 8
    assert float(model.posthoc.temperature) != 1.0, "+ts is fitted on the validation loader"
    predictions = balcal.predict(model, val)
    assert predictions.log_probs.shape == (240, 4)
    assert torch.equal(predictions.labels, y)
    judged = balcal.verdict(predictions)
    assert judged.accuracy > 0.9
    best = min(r["val_nll"] for r in records)
    assert judged.nll <= best + 1e-6, "the best epoch's weights, then a temperature"
    assert "accuracy" in str(judged)
    assert balcal.predict(model, val).log_probs.equal(predictions.log_probs)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_fit_does_not_depend_on_the_number_of_workers():
    found = []
    for workers in (0, 2):
        train, val, _, _ = loaders(workers)
        model = balcal.wrap(net(), 4, "balcal")
        balcal.fit(model, train, val, epochs=2, seed=3, quiet=True)
        found.append(balcal.predict(model, val).log_probs)
    assert torch.equal(*found)


def test_without_a_validation_loader_some_are_held_out_and_that_is_said(capsys):
    train, _, _, _ = loaders()
    seen: list[int] = []

    class Numbered(TensorDataset):
        def __getitem__(self, index):
            seen.append(index)
            return super().__getitem__(index)

    numbered = DataLoader(Numbered(*train.dataset.tensors), batch_size=32, shuffle=True)
    rest, held = hold_out(numbered, seed=0)
    assert len({*rest.dataset.indices} | {*held.dataset.indices}) == 240
    assert len(held.dataset) == 48
    model = balcal.wrap(net(), 4, "balcal-auto")
    records = balcal.fit(model, numbered, epochs=2, lr=1e-2)
    assert "48 of 240 training samples are held out" in capsys.readouterr().err
    assert sorted(seen[:192]) == rest.dataset.indices
    assert sorted(seen[192:240]) == held.dataset.indices
    assert records[-1]["branch"] in ("root", "standard", "closest", "sharpened", "boldest")


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ([(torch.zeros(2, 192), torch.tensor([0, 1]))], "no DataLoader with an ordinary sampler"),
        (DataLoader(TensorDataset(torch.zeros(9, 192), torch.zeros(9).long()), batch_size=3), "9 samples are too few"),
    ],
)
def test_where_nothing_can_be_held_out_a_sentence_asks_for_a_loader(loader, words):
    with pytest.raises(BalcalError, match=f"{words}.*: pass val_loader="):
        balcal.fit(balcal.wrap(net(), 4), loader, epochs=1, quiet=True)


def test_fit_resumes_from_its_folder(tmp_path):
    train, val, _, _ = loaders()
    model, again = balcal.wrap(net(), 4, "balcal"), balcal.wrap(net(), 4, "balcal")
    records = balcal.fit(model, train, val, epochs=4, out=tmp_path, quiet=True)
    assert balcal.fit(again, train, val, epochs=4, out=tmp_path, quiet=True) == records
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    with pytest.raises(BalcalError, match="belongs to another recipe"):
        balcal.fit(again, train, val, epochs=5, out=tmp_path, quiet=True)


class Remembered(Memory):
    """Saves after each step, and gives back what was saved."""

    state = None

    def load_state(self):
        return self.state

    def save_state(self, state):
        self.state = deepcopy(state)

    def save_is_due(self):
        return True


@pytest.mark.parametrize("rows", ["one sum for all", "two processes", "as it is"])
def test_a_state_in_mid_epoch_resumes_whoever_saved_it(rows, monkeypatch):
    """An earlier version, which kept one float32 sum for all processes; or two processes, of which one is left."""
    data, _, _, _ = loaders()
    batches = LoaderBatches(list(data), torch.device("cpu"), 0)

    def trained(store):
        model = balcal.wrap(net(), 4, "balcal")
        return fit_batches(model, batches, batches, Plan(epochs=1), 0, Progress("", quiet=True), store)

    whole, store, steps, really = trained(Memory()), Remembered(), [], train.set_rate

    def breaks(*arguments):
        steps.append(1)
        if len(steps) == 5:
            raise InterruptedError
        really(*arguments)

    monkeypatch.setattr(train, "set_rate", breaks)
    with pytest.raises(InterruptedError):
        trained(store)
    monkeypatch.undo()
    assert store.state["step"] == 4
    counted = {"seen": store.state["seen"]} | store.state["sums"]
    if rows == "one sum for all":
        counted = {name: tensor[0] for name, tensor in counted.items()}
        counted["seen"] = counted["seen"].float()
    elif rows == "two processes":
        counted = {name: torch.cat([0.25 * tensor, 0.75 * tensor]) for name, tensor in counted.items()}
    store.state |= {"seen": counted.pop("seen"), "sums": counted}
    resumed = trained(store)
    assert resumed[0].pop("branch") == whole[0].pop("branch")
    assert resumed == (whole if rows == "as it is" else [pytest.approx(whole[0], rel=1e-6)])


@pytest.mark.parametrize("kind", ["int32", "uint8", "lists", "arrays"])
def test_labels_of_any_whole_kind_will_do(kind):
    _, _, x, y = loaders()
    given = {"int32": y.int(), "uint8": y.to(torch.uint8), "lists": y.tolist(), "arrays": y.numpy()}[kind]
    images = x.numpy() if kind == "arrays" else x
    model = balcal.wrap(net(), 4, "balcal")
    balcal.fit(model, [(images, given)], [(images, given)], epochs=1, quiet=True)
    assert torch.equal(balcal.predict(model, [(images, given)]).labels, y)
    if kind in ("int32", "uint8"):
        assert model.loss(x, given).isfinite()


def test_without_a_folder_ctrl_c_is_just_ctrl_c(request):
    """Nothing is saved, so nothing may say that it is."""
    train, val, _, _ = loaders()

    def interrupted():
        yield from train
        signal.raise_signal(signal.SIGINT)

    class Loader:
        __iter__ = staticmethod(interrupted)
        __len__ = staticmethod(lambda: len(train))

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, usual))
    with pytest.raises(KeyboardInterrupt):
        balcal.fit(balcal.wrap(net(), 4, "balcal"), Loader(), val, epochs=2, quiet=True)


def test_fit_errors_teach():
    train, val, x, y = loaders()
    model = balcal.wrap(net(), 4, "balcal")
    with pytest.raises(BalcalError, match="unknown setting `learning_rate`"):
        balcal.fit(model, train, val, learning_rate=1)
    with pytest.raises(BalcalError, match="the validation loader is empty"):
        balcal.fit(model, train, [], epochs=1)
    with pytest.raises(BalcalError, match="label 7 in batch 1 of epoch 1 is out of range"):
        balcal.fit(model, [(x, y.clone().fill_(7))], val, epochs=1, quiet=True)
    with pytest.raises(BalcalError, match="soft labels in batch 1 must be rows of probabilities"):
        balcal.fit(model, [(x, torch.zeros(240, 4))], val, epochs=1, quiet=True)
    for bad in (float("nan"), float("inf")):
        spoilt = x.clone()
        spoilt[17, 1, 2, 3] = bad
        with pytest.raises(BalcalError, match="image 17 of batch 1 of epoch 1 has NaN or infinite values"):
            balcal.fit(model, [(spoilt, y)], val, epochs=1, quiet=True)
    assert all(w.isfinite().all() for w in model.parameters()), "bad numbers never reach the weights"
    with pytest.raises(BalcalError, match="loss is no longer finite: lower the learning rate"):
        balcal.fit(model, train, val, epochs=30, optimiser="sgd", lr=1e6, quiet=True)
    with pytest.raises(BalcalError, match=r"must give pairs \(inputs, labels\)"):
        balcal.fit(model, [x], val, epochs=1, quiet=True)


def test_fit_says_when_the_method_had_nothing_to_do(capsys):
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    loader = [(part, part.argmax(1)) for part in x.split(16)]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    records = balcal.fit(balcal.wrap(network, num_classes=8, method="balcal"), loader, loader, epochs=4, lr=0.01)
    assert [record["gamma"] for record in records].count(1.0) >= 3, "confidence is far below accuracy so early"
    assert capsys.readouterr().err.count("confidence on the training images stayed below delta × accuracy") == 1
