"""A LightningModule uses a method by one callback, on real digits, with the real Lightning; skipped without it."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import balcal

pytestmark = pytest.mark.filterwarnings("ignore")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lightning", reason="Lightning is not here: pip install 'balcal[lightning]'")
    from lightning.pytorch import LightningModule, Trainer, seed_everything

    from balcal.adapters.lightning import Calibrated


class Digits(LightningModule):
    """As people write them: knows nothing of us."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.head = nn.Linear(64, 10)
        self.seen = []

    def forward(self, x):
        return self.head(self.body(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.seen.append(float(loss.detach()))
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_acc", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def loaders():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16 + np.random.default_rng(0).normal(0, 0.3, x.shape), dtype=torch.float32)
    y = torch.tensor(y)
    parts = [slice(0, 300), slice(300, 800), slice(800, None)]
    return [DataLoader(TensorDataset(x[p], y[p]), batch_size=100, shuffle=p.start == 0) for p in parts]


def trained(callbacks, tmp_path, epochs=20):
    seed_everything(0)
    module = Digits()
    train, val, _ = loaders()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = Trainer(max_epochs=epochs, callbacks=callbacks, default_root_dir=tmp_path, **quiet)
    trainer.fit(module, train, val)
    return module.eval(), trainer


@pytest.mark.parametrize("method", ["balcal", "balcal-auto"])
def test_a_callback_is_enough(method, tmp_path):
    callback = Calibrated(method)
    module, trainer = trained([callback], tmp_path)
    head = module.head.head
    assert 0 < head.gamma <= 1
    assert head.gamma != 0.5, "the dial was set"
    assert len(module.seen) == 20 * 3, "its own step ran"
    x, y = next(iter(DataLoader(loaders()[2].dataset, batch_size=1000)))
    with torch.no_grad():
        told = module(x)
    torch.testing.assert_close(told.logsumexp(1), torch.zeros(len(x)), atol=1e-5, rtol=0)
    assert balcal.verdict(log_probs=told, labels=y).accuracy > 0.6
    assert trainer.callback_metrics["gamma"] == pytest.approx(head.gamma)
    if method == "balcal-auto":
        x, y = loaders()[1].dataset.tensors
        with torch.no_grad():
            conf, hit = module(x).max(1)
        assert abs(float(conf.exp().mean()) - float((hit == y).float().mean())) < 0.02, "balanced on validation"
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = Digits()
    Calibrated(method).setup(trainer, again, "fit")
    again.load_state_dict(torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"])
    with torch.no_grad():
        assert torch.equal(again.eval()(x), module(x))


def test_names_stay_and_weights_from_before_still_load(tmp_path):
    plain = Digits()
    before = plain.state_dict()
    module = Digits()
    Calibrated("balcal").setup(None, module, "fit")
    assert {name for name in before if not name.startswith("head.")} <= set(module.state_dict())
    module.load_state_dict(before)
    x = torch.randn(5, 64)
    outputs = module.eval()(x)
    del outputs
    torch.testing.assert_close(module.head.head.classifier(module.body(x)), plain.eval()(x))
    with pytest.raises(balcal.BalcalError, match="needs a loop of ours"):
        Calibrated("balcal+mixup").setup(None, Digits(), "fit")


@pytest.mark.parametrize("method", ["balcal-auto", "vanilla+ts"])
def test_load_from_checkpoint(method, tmp_path):
    module, trainer = trained([Calibrated(method)], tmp_path, epochs=2)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = Digits.load_from_checkpoint(tmp_path / "a.ckpt").eval()
    x, y = loaders()[1].dataset.tensors
    with torch.no_grad():
        torch.testing.assert_close(again(x), module(x), atol=1e-6, rtol=0)
    if method == "vanilla+ts":
        from balcal.methods.parts.held_out import FEW
        from balcal.methods.temperature import solve_temperature

        module.head.posthoc = nn.Identity()
        with torch.no_grad():
            plain = module.head.head.classifier(module.body(x))
        expected = solve_temperature(plain.double(), y, prior=FEW)
        assert float(again.head.posthoc.temperature) == pytest.approx(expected, rel=1e-3)


class Penalised(Digits):
    """A penalty beside the cross-entropy."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y) + 100 * self.body[0].weight.square().sum()


def test_extra_losses_are_kept(tmp_path):
    norms = []
    for kind in (Digits, Penalised):
        seed_everything(0)
        module = kind()
        trainer = Trainer(
            max_epochs=3, callbacks=[Calibrated("balcal")], logger=False, enable_progress_bar=False,
            enable_model_summary=False, accelerator="cpu", enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(module, *loaders()[:2])
        norms.append(float(module.body[0].weight.detach().square().sum()))
    assert norms[1] < 0.5 * norms[0]


def test_manual_optimisation_is_refused():
    module = Digits()
    module.automatic_optimization = False
    with pytest.raises(balcal.BalcalError, match=r"optimises by itself.*use balcal\.wrap"):
        Calibrated("balcal").setup(None, module, "fit")


class Named(Digits):
    """Batches as dictionaries."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch["x"], batch["labels"]), batch_idx)


def fit(module, callback, *loaders):
    trainer = Trainer(
        max_epochs=1, callbacks=[callback], logger=False, enable_progress_bar=False, enable_model_summary=False,
        accelerator="cpu", enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, *loaders)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            "vanilla+ts",
            "`vanilla.ts` has seen no validation batch, so nothing has fitted its post-hoc map: pass a validation",
        ),
        ("balcal-auto", "`balcal-auto` has seen no validation batch, so nothing has fitted gamma"),
    ],
)
def test_without_validation_batches_nothing_is_fitted_and_that_is_said(method, words):
    with pytest.warns(UserWarning, match=words):
        fit(Digits(), Calibrated(method), loaders()[0])


def test_where_a_batch_has_its_labels():
    data = DataLoader([{"x": x, "labels": y} for x, y in loaders()[0].dataset], batch_size=100)
    with pytest.raises(balcal.BalcalError, match="a batch has no labels at 1: say where they are"):
        fit(Named(), Calibrated("balcal"), data)
    module = Named()
    fit(module, Calibrated("balcal", labels="labels"), data)
    assert len(module.seen) == 3
