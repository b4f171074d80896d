"""Two-stage training: sizes and KL of the shared vectors, the variational head by hand, what moves and what stays."""

import json
import math

import pytest
import torch
from runs_helper import history, same, trained
from shared_files import VECTORS, needs
from torch import nn
from torch.nn import functional as F

import balcal
from balcal.core import BalcalError
from balcal.methods.tst import FrozenBody, TwoStage, Variational, mean_kl


@needs(VECTORS)
def test_head_sizes_of_the_vectors():
    entry = json.loads(VECTORS.read_text())["tst"]
    size, classes = entry["feature_dim"], entry["num_classes"]
    for spec, name in ((TwoStage(entry["latent"]), "tst"), (Variational(entry["latent"]), "vtst")):
        assert sum(w.numel() for w in spec(size, classes).parameters()) == entry[f"{name}_head_params"]


@needs(VECTORS)
def test_kl_of_the_vectors():
    entry = json.loads(VECTORS.read_text())["vtst"]
    mu, log_var = (torch.tensor(entry[name], dtype=torch.float64) for name in ("mu", "logvar"))
    assert float(mean_kl(mu, log_var)) == pytest.approx(entry["expected"], abs=1e-8)
    check = entry["logsigmoid_var_head_check"]
    log_var = F.logsigmoid(torch.tensor(check["pre_activation"], dtype=torch.float64))
    assert torch.allclose(log_var, torch.tensor(check["logvar"], dtype=torch.float64), atol=1e-8)
    assert torch.allclose(log_var.exp(), torch.tensor(check["variance"], dtype=torch.float64), atol=1e-8)


def test_kl_by_hand():
    mu, log_var = torch.randn(5, 3), -torch.rand(5, 3)
    total = 0.0
    for i in range(5):
        for k in range(3):
            m, s2 = float(mu[i, k]), math.exp(float(log_var[i, k]))
            total += (s2 + m * m - 1 - math.log(s2)) / 2
    assert float(mean_kl(mu, log_var)) == pytest.approx(total / 5 / 3, rel=1e-5)


@torch.no_grad()
def test_in_use_it_is_the_mean_over_its_own_draws():
    head = Variational(latent=4, samples=3)(6, 5).eval()
    f = torch.randn(7, 6)
    outputs = head(f, None)
    assert outputs.logits.shape == (3, 7, 5)
    assert outputs.weights.tolist() == pytest.approx([1 / 3] * 3)
    mean = torch.zeros(7, 5)
    for draw in head.draws:
        for i in range(7):
            mu = head.mean(f[i])
            variance = torch.sigmoid(head.spread(f[i]))
            mean[i] += torch.softmax(head.classifier(mu + variance.sqrt() * draw), 0) / 3
    assert torch.allclose(outputs.log_probs().exp(), mean, atol=1e-6)
    assert same(head(f, None).logits, outputs.logits), "the same image, the same answer"
    assert float(outputs.penalty) == pytest.approx(float(mean_kl(head.mean(f), F.logsigmoid(head.spread(f)))))


def test_in_training_it_draws_once_for_each_image():
    head = Variational(latent=4)(6, 5).train()
    f = torch.randn(1, 6).expand(7, 6)
    torch.manual_seed(3)
    first = head(f, None)
    assert first.logits.shape == (1, 7, 5)
    assert first.weights.tolist() == first.loss_weights.tolist() == [1.0]
    assert not torch.equal(first.logits[0, 0], first.logits[0, 1]), "each image its own"
    assert not torch.equal(head(f, None).logits, first.logits)
    torch.manual_seed(3)
    assert torch.equal(head(f, None).logits, first.logits)


def test_the_loss_is_cross_entropy_plus_kl():
    torch.manual_seed(0)
    model = balcal.wrap(nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4)), 4, "vtst")
    x, y = torch.randn(9, 12), torch.arange(9) % 4
    torch.manual_seed(1)
    rng = torch.Generator()
    loss = model.loss(x, y, rng)
    torch.manual_seed(1)
    outputs = model(x, branches=True)
    assert loss.item() == pytest.approx((F.cross_entropy(outputs.logits[0], y) + outputs.penalty).item())
    loss.backward()
    assert all(w.grad is not None for w in model.head.parameters())


def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["tst", "vtst"])
def test_the_body_stays_and_its_statistics_move_unless_told_otherwise(name, frozen):
    method = balcal.method(name)
    network = body()
    model = balcal.wrap(network, 4, balcal.Method(name, head=method.head, before_epoch=FrozenBody(frozen)))
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    head = model.head.classifier.weight.detach().clone()
    x = torch.randn(60, 12)
    data = [(x[i : i + 20], x[i : i + 20, :4].argmax(1)) for i in (0, 20, 40)]
    records = balcal.fit(model, data, data, epochs=6, lr=0.01, weight_decay=0.1, quiet=True)
    assert records[-1]["val_nll"] < records[0]["val_nll"]
    assert not torch.equal(model.head.classifier.weight, head)
    moved = {name for name, tensor in model.backbone.state_dict().items() if not torch.equal(tensor, before[name])}
    statistics = {name for name in before if "running" in name or "batches" in name}
    assert moved == (set() if frozen else statistics)
    assert all(w.requires_grad for w in model.parameters())
    model.train()
    assert all(m.training for m in model.modules())


def test_settings_reach_their_place(tmp_path):
    run = trained("vtst", tmp_path, settings=["head.latent=16", "head.samples=4", "before_epoch.freeze_bn=true"])
    model = balcal.load(run)
    assert model.head.draws.shape == (4, 16)
    assert model.method.before_epoch.freeze_bn
    for spec, name in (({"latent": 0}, "latent"), ({"samples": 0}, "samples")):
        with pytest.raises(BalcalError, match=rf"head\.{name} must be at least 1"):
            Variational(**spec)


def test_another_loss_in_the_second_stage(tmp_path):
    run = trained("tst+fl+ts", tmp_path)
    assert json.loads((run / "recipe.json").read_text())["parent"].startswith("digits/vanilla-seed0-")
    assert history(run)[-1]["val_nll"] < history(run)[0]["val_nll"]
    assert json.loads((run / "metrics+ts.json").read_text())["method"] == "tst+fl+ts"


def test_repeated_evaluation_gives_the_same_bits(tmp_path):
    run = trained("vtst", tmp_path)
    before = (run / "metrics.json").read_bytes(), (run / "predictions" / "test.npz").read_bytes()
    for path in (run / "predictions").iterdir():
        path.unlink()
    torch.manual_seed(99)
    trained("vtst", tmp_path)
    assert ((run / "metrics.json").read_bytes(), (run / "predictions" / "test.npz").read_bytes()) == before
