"""`wrap` on networks that nobody here wrote: the classifier is found, or a sentence says what to do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import balcal
from balcal.core import BalcalError

X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Reversed(nn.Module):
    """Registered in another order than used, a hidden layer by the name of a classifier, all with four outputs."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.classifier = nn.Linear(12, 4)
        self.fc = nn.Linear(192, 12)

    def forward(self, x):
        return self.last(self.classifier(self.fc(x.flatten(1)).relu()).relu())


class Untraceable(Reversed):
    def forward(self, x):
        return super().forward(x if bool(x.sum() > -1e9) else -x)


class Auxiliary(nn.Module):
    """(logits, auxiliary logits), the second computed last."""

    def __init__(self):
        super().__init__()
        self.stem, self.main, self.aux = nn.Linear(192, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.stem(x.flatten(1)).relu()
        return self.main(hidden), self.aux(hidden)


class Named(Auxiliary):
    def forward(self, x):
        main, aux = super().forward(x)
        return {"aux": aux, "logits": main}


class Pair(nn.Module):
    """Two inputs, by position or by name."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.out = nn.Linear(5, 8), nn.Linear(3, 8), nn.Linear(8, 4)

    def forward(self, left, right):
        return self.out((self.left(left) + self.right(right)).relu())


def convolutional(*after, before=()):
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), *before, nn.Conv2d(8, 4, 1), *after)


POOL = nn.AdaptiveAvgPool2d(1)
NETWORKS = {
    "reversed": (Reversed, X),
    "auxiliary": (Auxiliary, X),
    "named": (Named, X),
    "a 1x1 convolution, then the mean": (lambda: convolutional(POOL, nn.Flatten()), X),
    "the mean, then a 1x1 convolution": (lambda: convolutional(nn.Flatten(), before=(POOL,)), X),
    "by position": (Pair, (torch.randn(6, 5), torch.randn(6, 3))),
    "by name": (Pair, {"left": torch.randn(6, 5), "right": torch.randn(6, 3)}),
}


def logits(network, x):
    given = network(**x) if isinstance(x, dict) else network(*x) if isinstance(x, tuple) else network(x)
    given = given.get("logits") if isinstance(given, dict) else given[0] if isinstance(given, tuple) else given
    return given.flatten(1)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_layer_that_gives_the_logits_stays_the_classifier(kind, sampled):
    make, x = NETWORKS[kind]
    network = make().eval()
    before = logits(network, x)
    model = balcal.wrap(network, 4, sample=x if sampled else None).eval()
    torch.testing.assert_close(model(x, branches=True).logits[0], before, rtol=1e-4, atol=1e-5)
    model(x).sum().backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "aux" not in name)


def test_a_sample_settles_what_tracing_cannot():
    network = Untraceable()
    before = network(X)
    model = balcal.wrap(network, 4, sample=X)
    torch.testing.assert_close(model(X, branches=True).logits[0], before)
    assert model.backbone.path == "last"


def test_a_sample_settles_lazy_layers_and_leaves_statistics_alone():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.BatchNorm1d(16), nn.ReLU(), nn.LazyLinear(4))
    with pytest.raises(BalcalError, match="layer `1` does not know its size before the first batch: pass sample="):
        balcal.wrap(lazy, 4)
    model = balcal.wrap(lazy, 4, sample=X)
    assert model(X).shape == (6, 4)
    assert model.training
    fresh = balcal.wrap(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 4)), 4, sample=X)
    assert not fresh.backbone.network[1].running_mean.any()


@pytest.mark.parametrize("tail", [(), (nn.Flatten(0),)])
def test_one_logit_is_two_classes(tail):
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 1), *tail)
    positive = network(X).flatten().sigmoid()
    model = balcal.wrap(network, 2, "vanilla")
    torch.testing.assert_close(model(X).exp()[:, 1], positive)


def test_the_path_of_a_classifier_overrules():
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 30))
    assert balcal.wrap(network, 4, classifier="3")(X).shape == (6, 4)
    for path, words in {
        "7": "has no layer `7`; it has 1, 3",
        "2": "names a linear layer or a 1x1 convolution, and `2` is a ReLU",
        "1": "does not end with its layer `1`",
    }.items():
        network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 30))
        with pytest.raises(BalcalError, match=words):
            balcal.wrap(network, 4, classifier=path)
        assert network(X).shape == (6, 30)
    unused = Auxiliary()
    unused.spare = nn.Linear(8, 4)
    with pytest.raises(BalcalError, match="does not use its layer `spare`"):
        balcal.wrap(unused, 4, classifier="spare", sample=X)
    with pytest.raises(BalcalError, match="exclude each other"):
        balcal.wrap(network, 4, classifier="3", features=network[:2], num_features=16)
    with pytest.raises(BalcalError, match="pass both, or neither"):
        balcal.wrap(network, 4, num_features=16)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Softmax(1)),
        convolutional(nn.ReLU(), POOL, nn.Flatten()),
    ],
)
def test_a_failed_wrap_leaves_the_network_as_it_was(network):
    before, names = network(X), list(network.state_dict())
    with pytest.raises(BalcalError, match="does not end with its layer"):
        balcal.wrap(network, 4, sample=X)
    assert torch.equal(network(X), before)
    assert list(network.state_dict()) == names
    with pytest.raises(BalcalError, match="does not end with its layer"):
        balcal.wrap(network, 4)(X)


class After(nn.Module):
    """A linear layer, and what somebody does with its output."""

    def __init__(self, then):
        super().__init__()
        self.stem, self.fc, self.other, self.then = nn.Linear(192, 4), nn.Linear(4, 4), nn.Linear(192, 4), then

    def forward(self, x):
        x = x.flatten(1)
        return self.then(self, x, self.fc(self.stem(x)))


FOLLOWED = {
    "a softmax": lambda self, x, z: z.softmax(1),
    "log_softmax": lambda self, x, z: F.log_softmax(z, dim=1),
    "a sigmoid": lambda self, x, z: torch.sigmoid(z),
    "a scale": lambda self, x, z: z * 2,
    "a sum of two classifiers": lambda self, x, z: z + self.other(x),
    "itself once more": lambda self, x, z: self.fc(z),
}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("kind", FOLLOWED)
def test_what_follows_the_classifier_is_noticed_when_wrapping(kind, sampled):
    """Not at the first batch; and a layer that is used twice is not taken for one that is used once."""
    network = After(FOLLOWED[kind]).eval()
    before, names = network(X), list(network.state_dict())
    with pytest.raises(BalcalError, match=r"does not end with its layer|layer `fc` more than once.*pass features="):
        balcal.wrap(network, 4, sample=X if sampled else None)
    assert torch.equal(network(X), before)
    assert list(network.state_dict()) == names


def test_logits_may_stand_behind_another_output():
    network = After(lambda self, x, z: (x * 2, z))
    before = network(X)[1]
    torch.testing.assert_close(balcal.wrap(network, 4, "vanilla")(X), F.log_softmax(before, 1))


class AfterUntraceable(After):
    def forward(self, x):
        return super().forward(x if bool(x.sum() > -1e9) else -x)


@pytest.mark.parametrize("kind", FOLLOWED)
def test_what_cannot_be_traced_is_noticed_at_the_first_batch(kind):
    model = balcal.wrap(AfterUntraceable(FOLLOWED[kind]), 4, classifier="fc", quiet=True)
    with pytest.raises(BalcalError, match=r"does not end with its layer|more than once"):
        model(X)


def test_errors_of_the_network_itself_stay_as_they_are():
    model = balcal.wrap(Reversed(), 4, quiet=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(X[:, :1])
    assert model(X).shape == (6, 4)


def test_a_linear_layer_is_a_network():
    layer = nn.Linear(192, 4)
    x = X.flatten(1)
    model = balcal.wrap(layer, 4, "vanilla")
    torch.testing.assert_close(model(x), F.log_softmax(layer(x), 1))
    balcal.fit(model, [(x, torch.arange(6) % 4)], [(x, torch.arange(6) % 4)], epochs=1, quiet=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_classes": "4"}, "num_classes='4'"),
        ({"num_classes": 4.0}, "num_classes=4.0"),
        ({"num_classes": None}, "num_classes=None"),
        ({"method": None}, "a method is given by its name"),
        ({"features": 3, "num_features": 2}, "features= takes a function"),
        ({"classifier": ""}, "classifier= names a linear layer"),
        ({"sample": torch.zeros(2, 7)}, "sample= does not go through the network .mat1"),
        ({"sample": "x"}, "sample= does not go through the network"),
    ],
)
def test_arguments_of_wrap_that_cannot_be(arguments, words):
    network = Reversed()
    names = list(network.state_dict())
    with pytest.raises(BalcalError, match=words):
        balcal.wrap(network, **{"num_classes": 4} | arguments)
    assert list(network.state_dict()) == names


def test_wrapping_twice_says_so():
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 4))
    model = balcal.wrap(network, 4)
    with pytest.raises(BalcalError, match="is wrapped already"):
        balcal.wrap(network, 4)
    with pytest.raises(BalcalError, match=r"a model of balcal\.wrap already"):
        balcal.wrap(model, 4)


def test_a_compiled_network():
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    before = network(X)
    model = balcal.wrap(torch.compile(network, backend="eager"), 4, "vanilla")
    torch.testing.assert_close(model(X), F.log_softmax(before, 1))
    assert "backbone.network.1.weight" not in model.state_dict()


def added(model, network_parameters):
    return sum(weight.numel() for weight in model.parameters()) - network_parameters


def test_the_adapter_adds_at_most_a_twentieth_or_32_units(capsys):
    wide = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 1200), nn.ReLU(), nn.Linear(1200, 600), nn.ReLU(), nn.Linear(600, 4)
    )
    before = sum(weight.numel() for weight in wide.parameters())
    model = balcal.wrap(wide, 4)
    assert 0.04 * before < added(model, before) < 0.0501 * before
    said = capsys.readouterr()
    assert not said.out
    words = f"adds {added(model, before):,} parameters (5.0% of the network's {before:,})"
    assert said.err == f"balcal: `balcal-auto` {words}\n"
    thin = balcal.wrap(nn.Sequential(nn.Linear(3, 600), nn.ReLU(), nn.Linear(600, 4)), 4)
    assert thin.head.adapter.branch[0].out_features == 32
    asked = balcal.wrap(nn.Sequential(nn.Linear(3, 600), nn.ReLU(), nn.Linear(600, 4)), 4, width=7, quiet=True)
    assert asked.head.adapter.branch[0].out_features == 7
    small = balcal.wrap(nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 4)), 4, quiet=True)
    assert small.head.adapter.branch[0].out_features == 20, "half of the features, as ever"
    capsys.readouterr()
    balcal.wrap(nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 4)), 4, "vanilla")
    assert not capsys.readouterr().err
    network = nn.Sequential(nn.Linear(3, 40), nn.ReLU(), nn.Linear(40, 4))
    with pytest.raises(BalcalError, match="width= is for BalCAL's adapter, and `vanilla` has none"):
        balcal.wrap(network, 4, "vanilla", width=7)
    assert network(torch.randn(2, 3)).shape == (2, 4)


@pytest.mark.parametrize(("of_network", "of_inputs"), [("double", "double"), ("double", "float"), ("float", "double")])
@pytest.mark.parametrize("make", [Reversed, lambda: convolutional(POOL, nn.Flatten())], ids=["linear", "convolution"])
def test_a_head_has_the_precision_of_its_network(make, of_network, of_inputs, tmp_path):
    """And inputs take it on: numpy makes float64."""
    x, y = getattr(X, of_inputs)(), torch.tensor([0, 1, 2, 3, 0, 1])
    network = getattr(make(), of_network)()
    model = balcal.wrap(network, 4, "balcal-auto+ts", sample=x, quiet=True)
    assert {weight.dtype for weight in (*model.head.parameters(), model.head.weights)} == {getattr(torch, of_network)}
    balcal.fit(model, [(x, y)] * 2, [(torch.cat([x] * 2), torch.cat([y] * 2))], epochs=2, quiet=True)
    again = balcal.load(balcal.save(model, tmp_path / "model.pt"), network=getattr(make(), of_network)())
    assert torch.equal(again(x), model.eval()(x))
    assert balcal.predict(model, [(x.numpy(), y)]).probs.sum(1).allclose(torch.ones(6))
    found = balcal.retrofit(getattr(make(), of_network)(), [(torch.cat([x] * 20), torch.cat([y] * 20))], tolerance=1)
    assert found.model.head.weights.dtype is getattr(torch, of_network)
    assert balcal.export(model, x, tmp_path / "model.pt2")["verified"]["largest_difference"] < 1e-5


def test_a_network_in_half_precision_has_a_head_in_float32():
    x, y = X[:4].repeat(3, 1, 1, 1), torch.arange(12) % 4
    network = Reversed().bfloat16()
    model = balcal.wrap(network, 4, sample=x, quiet=True)
    assert {weight.dtype for weight in (*model.head.parameters(), model.head.weights)} == {torch.float32}
    before = network.fc.weight.clone()
    balcal.fit(model, [(x, y)], [(x, y)], epochs=2, lr=0.1, quiet=True)
    assert network.fc.weight.dtype is torch.bfloat16
    assert not torch.equal(network.fc.weight, before)
    coarse = balcal.wrap(Reversed().half(), 4, quiet=True)
    with pytest.raises(
        BalcalError, match=r"float16, such as backbone\.\S+, are too coarse to be trained: wrap network"
    ):
        balcal.fit(coarse, [(x, y)], [(x, y)], epochs=1, quiet=True)
    for weight in coarse.backbone.parameters():
        weight.requires_grad_(False)
    assert len(balcal.fit(coarse, [(x, y)], [(x, y)], epochs=1, quiet=True)) == 1
