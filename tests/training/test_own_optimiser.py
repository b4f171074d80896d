"""`fit` with a user's own optimiser and scheduler, and settings that do not exist: used, or refused; never ignored."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import balcal
from balcal.core import BalcalError

rng = torch.Generator().manual_seed(3)
Y = torch.randint(3, (48,), generator=rng)
X = torch.randn(48, 6, generator=rng)
X[torch.arange(48), Y] += 2
LOADER = DataLoader(TensorDataset(X, Y), batch_size=16)


def model(method="vanilla"):
    torch.manual_seed(0)
    return balcal.wrap(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)), 3, method)


def fitted(wrapped=None, **settings):
    wrapped = wrapped or model()
    balcal.fit(wrapped, LOADER, LOADER, **{"epochs": 4, "quiet": True} | settings)
    return wrapped


def weights(wrapped):
    return torch.cat([p.detach().flatten() for p in wrapped.parameters()])


@pytest.mark.parametrize("name", ["optimizer", "optimiser"])
def test_an_optimiser_object_is_the_one_that_trains(name):
    own = model()
    fitted(own, **{name: torch.optim.SGD(own.parameters(), 0.1, momentum=0.5)}, schedule="cosine")
    named = fitted(**{name: "sgd"}, lr=0.1, momentum=0.5, schedule="cosine")
    assert torch.equal(weights(own), weights(named))
    assert not torch.equal(weights(own), weights(fitted()))


@pytest.mark.parametrize(
    ("make", "settings", "steps"),
    [
        (lambda o: lr_scheduler.StepLR(o, 1, 0.5), {}, 4),
        (lambda o: lr_scheduler.StepLR(o, 1, 0.5), {"scheduler_every": "step"}, 12),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12), {}, 12),
    ],
)
def test_a_scheduler_steps_after_each_epoch_or_each_step(make, settings, steps):
    own = model()
    optimiser = torch.optim.SGD(own.parameters(), 0.1)
    scheduler = make(optimiser)
    before = scheduler.last_epoch
    fitted(own, optimizer=optimiser, scheduler=scheduler, **settings)
    assert scheduler.last_epoch - before == steps
    if isinstance(scheduler, lr_scheduler.StepLR):
        assert optimiser.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**steps)


def test_a_plateau_is_one_of_the_validation_nll():
    own = model()
    optimiser = torch.optim.SGD(own.parameters(), 1e-12)
    fitted(own, optimizer=optimiser, scheduler=lr_scheduler.ReduceLROnPlateau(optimiser, patience=0, factor=0.5))
    assert optimiser.param_groups[0]["lr"] == pytest.approx(1e-12 * 0.5**3)


def test_optimiser_and_scheduler_are_resumed(tmp_path):
    def parts():
        own = model("balcal-auto")
        optimiser = torch.optim.SGD(own.parameters(), 0.1, momentum=0.9)
        return own, optimiser, lr_scheduler.ExponentialLR(optimiser, 0.7)

    whole, optimiser, scheduler = parts()
    fitted(whole, optimizer=optimiser, scheduler=scheduler)
    broken, optimiser, scheduler = parts()
    steps = []

    def dies(*_):
        steps.append(1)
        if len(steps) == 8:
            raise KeyboardInterrupt

    optimiser.register_step_post_hook(dies)
    with pytest.raises(KeyboardInterrupt):
        fitted(broken, optimizer=optimiser, scheduler=scheduler, out=tmp_path)
    again, optimiser, scheduler = parts()
    fitted(again, optimizer=optimiser, scheduler=scheduler, out=tmp_path)
    assert torch.equal(weights(again), weights(whole))
    other = model("balcal-auto")
    with pytest.raises(BalcalError, match="another"):
        fitted(other, optimizer=torch.optim.SGD(other.parameters(), 0.2, momentum=0.9), out=tmp_path)


def sgd(wrapped):
    return torch.optim.SGD(wrapped.parameters(), 0.1)


OTHER = model()
NET = nn.Linear(6, 3)
WRONG = [
    (lambda m: {"optimizer": "SGD"}, "optimiser='SGD'. does not fit.*; did you mean `sgd`\\? .or pass an object"),
    (lambda m: {"optimiser": "lbfgs"}, "optimiser='lbfgs'. does not fit.* .or pass an object"),
    (lambda m: {"optimizer": torch.optim.SGD}, "an object of torch.optim made of model.parameters.., not type"),
    (lambda m: {"optimizer": torch.optim.LBFGS(m.parameters())}, "LBFGS computes the loss several times"),
    (lambda m: {"optimizer": sgd(m), "optimiser": "sgd"}, "mean the same"),
    (lambda m: {"optimizer": sgd(m), "lr": 0.1}, "brings its own lr"),
    (
        lambda m: {"optimizer": torch.optim.SGD(m.backbone.parameters(), 0.1)},
        "not hold 2 of the model's 4 .*head.class",
    ),
    (lambda m: {"optimizer": torch.optim.SGD([*m.parameters(), *NET.parameters()], 0.1)}, "2 weights of another model"),
    (lambda m: {"scheduler": lr_scheduler.ConstantLR(sgd(m))}, "needs optimizer="),
    (lambda m: {"optimizer": sgd(m), "scheduler": lr_scheduler.ConstantLR(sgd(m))}, "for another optimiser"),
    (lambda m: {"optimizer": sgd(m), "scheduler": 3}, "takes an object of torch.optim.lr_scheduler, not int"),
    (lambda m: {"scheduler": "onecylce"}, "did you mean `onecycle`"),
    (lambda m: {"scheduler_every": "step"}, "there is none"),
    (lambda m: {"learning_rate": 0.1}, "did you mean `lr`"),
    (lambda m: {"batch_size": 3}, "the loader decides"),
    (lambda m: {"precision": "fp16"}, "does not fit"),
    (lambda m: {"clip": -1}, "clip must be above 0"),
    (lambda m: {"lr": "0.1"}, "valid number"),
    (lambda m: {"keep": "lst"}, "did you mean `last`"),
    (lambda m: {"schedule": "OneCycle"}, "did you mean `onecycle`"),
    (lambda m: {"momentum": 0.5}, 'momentum has no effect with optimiser="adam": set optimiser="sgd" too'),
    (lambda m: {"nesterov": True}, "nesterov has no effect"),
    (lambda m: {"milestones": [0.5]}, 'milestones has no effect with schedule="constant"'),
    (lambda m: {"class_weights": "balanced"}, "did you mean `class_weight`"),
    (lambda m: {"sample_weights": [1.0]}, "did you mean `sample_weight`"),
    (lambda m: {"epoch": 3}, "did you mean `epochs`"),
    (lambda m: {"max_epochs": 3}, "did you mean `epochs`"),
    (lambda m: {"max_grad_norm": 1.0}, "did you mean `clip`"),
    (lambda m: {"criterion": nn.CrossEntropyLoss()}, "the loss comes with the method"),
    (lambda m: {"device": "cpu"}, "call model.to.device. first"),
    (lambda m: {"val": LOADER}, "val= and val_loader= mean the same"),
    (lambda m: {"track": "csv"}, "`csv` does not say where to"),
    (lambda m: {"steps_per_epoch": 30}, "steps_per_epoch is 30, and the loader has 3 batches"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_cannot_be_used_is_refused_before_training(settings, words):
    wrapped = model()
    before = weights(wrapped)
    with pytest.raises(BalcalError, match=words):
        fitted(wrapped, **settings(wrapped))
    assert torch.equal(weights(wrapped), before)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"schedule": "onecycle", "warmup": 0.5}, {"scheduler": "onecycle", "warmup": 0.5}),
        ({"keep": "last"}, {}),
        ({"optimiser": None}, {"optimizer": "adam"}),
    ],
)
def test_what_can_be_used_is(settings, same):
    assert torch.equal(weights(fitted(**settings)), weights(fitted(**same)))
    assert torch.equal(weights(fitted(**settings)), weights(fitted())) == ("warmup" not in settings)


def test_loaders_have_two_names():
    """Those of the contract, and those of old."""
    short, long = model(), model()
    balcal.fit(short, train=LOADER, val=LOADER, epochs=2, quiet=True)
    balcal.fit(long, train_loader=LOADER, val_loader=LOADER, epochs=2, quiet=True)
    assert torch.equal(weights(short), weights(long))
    with pytest.raises(BalcalError, match=r"nothing to train on: pass a loader"):
        balcal.fit(model(), epochs=2)


def test_retrofit_and_the_estimator_have_the_same_plan():
    network = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    with pytest.raises(BalcalError, match="unknown setting `clp`; did you mean `clip`"):
        balcal.retrofit(network, LOADER, LOADER, clp=1.0)
    with pytest.raises(BalcalError, match=r"did you mean `sgd`\?$"):
        balcal.retrofit(network, LOADER, LOADER, optimizer="SGD")
    for use in (
        lambda own: balcal.retrofit(network, LOADER, LOADER, optimizer=own),
        lambda own: balcal.BalCALClassifier(settings={"optimiser": own}).fit(X.numpy(), Y.numpy()),
    ):
        with pytest.raises(BalcalError, match=r"goes by its name .sgd, adam, adamw., as the weights .* are new"):
            use(sgd(network))
    with pytest.raises(BalcalError, match="unknown setting `clp`; did you mean `clip`"):
        balcal.BalCALClassifier(settings={"clp": 1.0}).fit(X.numpy(), Y.numpy())
    for settings, words in (
        ({"epochs": 3}, "`epochs` is no setting of its own here: pass epochs= as an argument"),
        ({"momentum": 0.5}, "momentum has no effect"),
        ({"precision": "fp16"}, "does not fit"),
        ({"clip": -1}, "clip must be above 0"),
    ):
        with pytest.raises(BalcalError, match=words):
            balcal.BalCALClassifier(settings=settings).fit(X.numpy(), Y.numpy())
        if "epochs" not in settings:
            with pytest.raises(BalcalError, match=words):
                balcal.retrofit(network, LOADER, LOADER, **settings)
    slow = balcal.BalCALClassifier(settings={"optimizer": "sgd", "momentum": 0.0}, lr=1e-9, epochs=1, random_state=0)
    fast = balcal.BalCALClassifier(settings={"optimizer": "sgd", "momentum": 0.0}, lr=1e-1, epochs=9, random_state=0)
    assert slow.fit(X.numpy(), Y.numpy()).score(X.numpy(), Y.numpy()) < fast.fit(X.numpy(), Y.numpy()).score(X, Y)
