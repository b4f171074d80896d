"""`laplace` against a derivation in NumPy, one weight at a time, and against laplace-torch where it is installed."""

import json
import warnings

import numpy as np
import pytest
import torch
from runs_helper import QUICK, trained
from torch import nn

import balcal
from balcal.core import BalcalError
from balcal.evaluation import judge
from balcal.registry import recipe
from balcal.runs import Run

pytestmark = pytest.mark.filterwarnings("ignore:.* held-out samples are few")


def network(bias=True):
    """Five numbers in, three classes out; trained a little."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=bias)).double()
    x, y = data(0)
    optimiser = torch.optim.Adam(net.parameters(), 0.05)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def data(seed, n=80):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=rng, dtype=torch.float64)
    return x, (x[:, :3] + 0.7 * torch.randn(n, 3, generator=rng, dtype=torch.float64)).argmax(1)


def fitted(bias=True, **settings):
    """(model, its network before it was wrapped)"""
    net, plain = network(bias), network(bias)
    model = balcal.wrap(net, 3, "vanilla").double()
    return balcal.calibrate(model, [data(1)], "laplace", train_loader=[data(0)], settings=settings), plain


def by_hand(plain, hessian):
    """(features of x with their one, the Gauss-Newton matrix of the training samples, the last layer as a vector)"""
    layer = plain[2]

    def features(x):
        f = plain[:2](x).detach().numpy()
        return f if layer.bias is None else np.hstack([f, np.ones((len(f), 1))])

    f, p = features(data(0)[0]), plain(data(0)[0]).softmax(1).detach().numpy()
    curvature = [np.diag(each) - np.outer(each, each) for each in p]
    if hessian == "full":
        whole = sum(np.kron(c, np.outer(one, one)) for c, one in zip(curvature, f, strict=True))
    else:
        whole = np.kron(sum(curvature), f.T @ f) / len(f)
    weights = layer.weight if layer.bias is None else torch.cat([layer.weight, layer.bias[:, None]], 1)
    return features, whole, weights.detach().numpy().ravel()


def covariances(plain, hessian, delta, x):
    """(N, 3, 3) of the logits."""
    features, whole, _ = by_hand(plain, hessian)
    sigma = np.linalg.inv(whole + delta * np.eye(len(whole)))
    jacobians = [np.kron(np.eye(3), one) for one in features(x)]
    return np.array([j @ sigma @ j.T for j in jacobians])


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def probit(plain, hessian, delta, x):
    z = plain(x).detach().numpy()
    v = np.array([np.diag(each) for each in covariances(plain, hessian, delta, x)])
    return softmax(z / np.sqrt(1 + np.pi * v / 8))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("hessian", ["kron", "full"])
def test_the_predictive_distribution_is_that_of_a_normal_last_layer(hessian, bias):
    x = 3 * data(2)[0]
    model, plain = fitted(bias, hessian=hessian, precision=0.5)
    expected = probit(plain, hessian, 0.5, x)
    assert np.abs(model(x).exp().detach().numpy() - expected).max() < 1e-9
    assert np.abs(expected - plain(x).softmax(1).detach().numpy()).max() > 0.02
    many, _ = fitted(bias, hessian=hessian, precision=0.5, predictive="samples", samples=5000)
    rng = np.random.default_rng(0)
    for number, v in enumerate(covariances(plain, hessian, 0.5, x[:8])):
        z = plain(x[number]).detach().numpy()
        mean = softmax(rng.multivariate_normal(z, v, 40_000)).mean(0)
        assert np.abs(many(x[number : number + 1])[0].exp().detach().numpy() - mean).max() < 0.02


def test_of_two_classifiers_whose_logits_are_fused_the_learnable_one_is_uncertain():
    model = balcal.wrap(network(), 3, "balcal-logits", quiet=True).double()
    model.head.set_gamma(0.7)
    x = data(2)[0]

    def read(x):
        outputs = model(x, branches=True)
        z = torch.einsum("b,bnk->nk", outputs.weights, outputs.logits).detach().numpy()
        return z, 0.7 * np.hstack([outputs.features.detach().numpy(), np.ones((len(x), 1))])

    (z, f), (seen, g) = read(data(0)[0]), read(x)
    whole = sum(np.kron(np.diag(p) - np.outer(p, p), np.outer(one, one)) for p, one in zip(softmax(z), f, strict=True))
    sigma = np.linalg.inv(whole + 2 * np.eye(len(whole)))
    v = np.array([np.diag(np.kron(np.eye(3), one) @ sigma @ np.kron(np.eye(3), one).T) for one in g])
    settings = {"hessian": "full", "precision": 2.0}
    balcal.calibrate(model, [data(1)], "laplace", train_loader=[data(0)], settings=settings)
    assert np.abs(model(x).exp().detach().numpy() - softmax(seen / np.sqrt(1 + np.pi * v / 8))).max() < 1e-7


@pytest.mark.parametrize("hessian", ["kron", "full"])
def test_the_prior_precision_is_the_best_of_all(hessian):
    grid = 10 ** np.linspace(-4, 5, 181)
    model, plain = fitted(hessian=hessian)
    x, y = data(1)
    nll = [-np.log(probit(plain, hessian, d, x)[np.arange(80), y]).mean() for d in grid]
    found = float(model.posthoc.prior_precision)
    own = -np.log(probit(plain, hessian, found, x)[np.arange(80), y]).mean()
    assert own <= min(nll) + 1e-9
    model, _ = fitted(hessian=hessian, prior="marginal")
    _, whole, weights = by_hand(plain, hessian)
    evidence = [
        len(whole) / 2 * np.log(d)
        - np.linalg.slogdet(whole + d * np.eye(len(whole)))[1] / 2
        - d * weights @ weights / 2
        for d in grid
    ]
    best = grid[np.argmax(evidence)]
    assert abs(np.log10(float(model.posthoc.prior_precision) / best)) < 0.05


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("hessian", "bias"), [("full", True), ("full", False), ("kron", False)])
def test_laplace_torch_says_the_same(hessian, bias):
    """With a bias its Kronecker factors treat weights and bias apart, ours together: see docs/decisions.md."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = pytest.importorskip("laplace", reason="laplace-torch is not here: make extras")
    from torch.utils.data import DataLoader, TensorDataset

    x, _ = data(2)
    model, plain = fitted(bias, hessian=hessian, precision=0.5)
    theirs = oracle.Laplace(
        plain, "classification", subset_of_weights="last_layer", hessian_structure=hessian, prior_precision=0.5
    )
    theirs.fit(DataLoader(TensorDataset(*data(0)), batch_size=80))
    expected = theirs(x, pred_type="glm", link_approx="probit").detach()
    assert float((model(x).exp() - expected).abs().max()) < 1e-6, "it has an identity matrix in float32"


def test_on_a_run_it_is_fitted_once_and_each_member_has_its_own(tmp_path, monkeypatch):
    run = trained("vanilla+laplace", tmp_path)
    kept = list((run / "maps").glob("laplace-e*.pt"))
    assert len(kept) == 1
    figures = json.loads((run / "metrics+laplace.json").read_text())
    assert figures["posthoc"]["prior_precision"] > 0
    trained("vanilla+laplace", tmp_path, seed=1)
    monkeypatch.setattr(judge, "fit_posthoc", lambda *_: pytest.fail("it was fitted before"))
    joined = Run.at(trained("2*vanilla+laplace", tmp_path))
    images = torch.randn(6, 1, 8, 8)
    alone = [balcal.load(Run(tmp_path, recipe("digits", "vanilla", s, QUICK)).path, posthoc="laplace") for s in (0, 1)]
    both = balcal.load(joined.path, posthoc="laplace")
    mean = sum(model(images).exp() for model in alone) / 2
    torch.testing.assert_close(both(images).exp(), mean, atol=1e-6, rtol=1e-5)
    card = balcal.export(alone[0], images, tmp_path / "model.pt2")
    assert card["verified"]["largest_difference"] < 1e-5
    for path in kept:
        path.write_bytes(b"damaged")
    with pytest.raises(pytest.fail.Exception, match="it was fitted before"):
        balcal.load(run, posthoc="laplace")


def test_what_it_needs_it_says(tmp_path):
    x, y = data(1)
    with pytest.raises(BalcalError, match="needs a network and its training data, not only predictions"):
        balcal.Calibrator("laplace", "logits").fit(network()(x).detach().numpy(), y.numpy())
    with pytest.raises(BalcalError, match="also needs the training data: pass train_loader="):
        balcal.calibrate(balcal.wrap(network().float(), 3, "vanilla"), [data(1)], "laplace")
    for model in (balcal.wrap(network(), 3, "balcal", quiet=True), balcal.join([network(), network()], 3)):
        with pytest.raises(BalcalError, match="needs a network with a linear classifier"):
            balcal.calibrate(model.double(), [data(1)], "laplace", train_loader=[data(0)])
    model, _ = fitted()
    fresh = balcal.wrap(network(), 3, "vanilla").double()
    again = balcal.load(balcal.save(model, tmp_path / "model.pt"), network=fresh)
    assert torch.equal(again(x), model(x))
