"""What a user gives to `fit`: settings, which become a plan; loaders, held out from, weighted, and read as batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from balcal.core import BalcalError
from balcal.data.loaders import LoaderBatches, Reading, check_loader, counted, length_of, pairs
from balcal.data.splits import each_once, few_samples, hold_out, loader_like, same_order
from balcal.data.targets import class_weights
from balcal.model import Model
from balcal.recipe import Method, Plan
from balcal.registry import SPELLINGS
from balcal.runtime.devices import best_precision
from balcal.runtime.names import unknown
from balcal.runtime.values import as_tensor, at_least, check_value
from balcal.training.optimise import KINDS, check_one_spelling

ELSEWHERE = {
    **dict.fromkeys(("loss", "loss_fn", "criterion"), "the loss comes with the method, see method= of balcal.wrap"),
    "device": "a model is trained where it is, so call model.to(device) first",
}
NEEDS = (("momentum", "optimiser", "sgd"), ("nesterov", "optimiser", "sgd"), ("milestones", "schedule", "step"))
"""(a setting, what it needs, of which value)"""


def plan_of(
    method: Method,
    device: torch.device,
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    usual: Mapping[str, Any] | None = None,
    objects: bool = False,
    others: Iterable[str] = (),
) -> Plan:
    """The plan of a user's settings on top of what the method brings, checked; `given` are those with a name of their
    own where the user calls us, `usual` what holds if the user says nothing. `objects`: optimisers may be objects, too.
    `others`: further arguments of the function that the user calls, to be suggested.

    >>> plan_of(Method(), torch.device("cpu"), {"epochs": 3}, {"learning_rate": 0.1})
    Traceback (most recent call last):
    balcal.core.BalcalError: unknown setting `learning_rate`; did you mean `lr`? known: accumulate, average, ...
    """
    known = {f.name for f in fields(Plan)} - set(given)
    chosen = dict(settings)
    if "optimizer" in chosen:
        check_one_spelling(chosen)
        chosen["optimiser"] = chosen.pop("optimizer")
    if isinstance(chosen.get("optimiser"), torch.optim.Optimizer):
        raise BalcalError(
            f"here an optimiser goes by its name ({', '.join(KINDS)}), as the weights that it trains are new: objects "
            "are for balcal.fit"
        )
    for name in chosen:
        if name not in known:
            raise BalcalError(_unknown(name, known, {*given, *others}))
    try:
        plan = Plan(**method.brings | dict(usual or {}) | chosen | dict(given))
    except BalcalError as error:
        if not objects or "plan.optimiser" not in str(error):
            raise
        raise BalcalError(f"{error} (or pass an object: optimizer=torch.optim.NAME(model.parameters(), ...))") from None
    if sentence := without_effect(plan, chosen):
        raise BalcalError(sentence)
    return replace(plan, precision=best_precision(device)) if plan.precision == "auto" else plan


def _unknown(name: str, known: set[str], others: set[str]) -> str:
    if name in others:
        return f"`{name}` is no setting of its own here: pass {name}= as an argument"
    if name in ELSEWHERE:
        return f"there is no {name}= here: {ELSEWHERE[name]}"
    return unknown("setting", name, (known | others) - {"model", "network", "loader", "settings"}, SPELLINGS)


def without_effect(plan: Plan, chosen: Iterable[str]) -> str | None:
    """What to say of a setting that somebody has chosen and nothing reads.

    >>> without_effect(Plan(optimiser="adam", momentum=0.5), ["momentum", "lr"])
    'momentum has no effect with optimiser="adam": set optimiser="sgd" too, or leave it out'
    """
    for name, by, value in NEEDS:
        if name in chosen and getattr(plan, name) and getattr(plan, by) != value:
            return f'{name} has no effect with {by}="{getattr(plan, by)}": set {by}="{value}" too, or leave it out'
    return None


@dataclass(frozen=True, eq=False)
class OwnData:
    """Loaders, and how they are to be read."""

    train: Iterable[Any]
    val: Iterable[Any] | None
    target: Any = None
    ignore_index: int | None = None
    class_weight: str | Mapping[int, float] | Iterable[float] | None = None
    sample_weight: Any = None
    """one number for each sample of the training loader's data set"""
    steps_per_epoch: int | None = None

    def facts(self) -> list[str]:
        """What decides a training beside the data themselves, for its fingerprint; nothing if nothing is asked for."""
        said = (self.target, self.ignore_index, self.class_weight, self.steps_per_epoch)
        return [str(said)] if any(each is not None for each in said) else []

    def batches(
        self, model: Model, seed: int, say: Callable[[str], None]
    ) -> tuple[OwnData, LoaderBatches, LoaderBatches]:
        """The loaders in use, and the batches to train and to validate on."""
        steps = check_value("steps_per_epoch", self.steps_per_epoch, int | None, at_least(1))
        if steps is not None and (length := length_of(self.train)) is not None and length < steps:
            raise BalcalError(f"steps_per_epoch is {steps}, and the loader has {length} batches: leave it out")
        check_value("ignore_index", self.ignore_index, int | None)
        for loader in (self.train,) if self.val is None else (self.train, self.val):
            check_loader(loader)
        train, val, target = self.train, self.val, self.target
        if self.sample_weight is not None:
            train, target = with_weights(train, self.sample_weight, target), None
        rest = train
        if val is None:
            rest, val = hold_out(train, seed, say)
        device = model.head.weights.device
        reading = Reading(model.num_classes, target, self.ignore_index)
        weights = class_weights(
            self.class_weight, model.num_classes, lambda: (labels for _, labels in pairs(rest, reading, steps))
        )
        reading = replace(reading, class_weight=weights)
        checking = reading if self.val is None else replace(reading, target=self.target)
        learn = counted(LoaderBatches(rest, device, seed, reading, steps), say)
        check = counted(LoaderBatches(val, device, seed, checking), say)
        for name, batches in (("training", learn), ("validation", check)):
            if not len(batches):
                raise BalcalError(f"the {name} loader is empty")
        fitted = "posthoc" in model.method.changes or (
            model.method.tally is not None and model.method.tally.on == "val"
        )
        if fitted and (count := known_samples(val, checking)) and (sentence := few_samples(count, model.method.name)):
            say(sentence)
        return replace(self, train=rest, val=val), learn, check


def named_loaders(train: Any, val: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
    """The loaders of `fit`, which have two names each; the shorter ones are taken out of the settings."""
    found = []
    for name, given in (("train", train), ("val", val)):
        if given is not None and name in settings:
            raise BalcalError(f"{name}= and {name}_loader= mean the same: pass one of them")
        found.append(settings.pop(name, given))
    if found[0] is None:
        raise BalcalError("there is nothing to train on: pass a loader, balcal.fit(model, train_loader, val_loader)")
    return found[0], found[1]


def known_samples(loader: Iterable[Any], reading: Reading) -> int | None:
    """How many samples a loader has, if that is known without loading them."""
    if isinstance(loader, list | tuple):
        return sum(len(labels) for _, labels in pairs(loader, reading))
    return length_of(getattr(loader, "dataset", ()))


class WithWeights(Dataset[Any]):
    """Each sample with what it counts."""

    def __init__(self, dataset: Any, weights: Tensor) -> None:
        self.dataset, self.weights = dataset, weights

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row], self.weights[row]


@dataclass(frozen=True, eq=False)
class Collate:
    """The loader's own way of making a batch, and the weights as its third part."""

    own: Callable[[list[Any]], Any]
    target: Any

    def __call__(self, samples: list[Any]) -> Any:
        x, y, weights = Reading(target=self.target).parts(self.own([sample for sample, _ in samples]))
        if weights is not None:
            raise BalcalError("the batches have weights already: leave out sample_weight=")
        return x, y, torch.stack([weight for _, weight in samples])


def with_weights(loader: Iterable[Any], sample_weight: Any, target: Any) -> DataLoader[Any]:
    """The loader with a third part in its batches, one number for each sample of its data set."""
    if not isinstance(loader, DataLoader) or not each_once(loader) or loader.batch_size is None:
        raise BalcalError(
            "sample_weight= needs a DataLoader with an ordinary sampler: or give the weights in batches, (x, y, weight)"
        )
    weights = as_tensor(sample_weight, "sample_weight").float()
    samples = len(loader.dataset)  # type: ignore[arg-type]
    if weights.shape != (samples,):
        raise BalcalError(f"sample_weight has shape {tuple(weights.shape)}, and the data set {samples} samples")
    if not bool((weights.isfinite() & (weights >= 0)).all()) or not bool(weights.any()):
        raise BalcalError("sample_weight must be finite, none below 0, and not all 0")
    collate = Collate(loader.collate_fn, target)
    return loader_like(loader, WithWeights(loader.dataset, weights), collate_fn=collate, **same_order(loader))
