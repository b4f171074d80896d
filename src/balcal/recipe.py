"""A recipe holds everything that decides a result: task, method, seed. Frozen records, addressed by content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Annotated, Any, Literal

from balcal import core
from balcal.core import BalcalError, Record
from balcal.runtime.provenance import fingerprint
from balcal.runtime.values import SEED, above, at_least, check_settings, check_value, within

ROLES = ("loss", "mix", "head", "before_epoch", "tally", "select", "posthoc", "views", "join")
AFTER_TRAINING = ("select", "posthoc", "views")
"""Roles that come after training. `join` does too, but what is joined has a folder of its own."""

SETTINGS = "settings"
"""What a method changes if it fills no role and only brings settings of the plan."""

THE_REST = "*"
"""As a parent: the methods that this one is joined with."""

UNSET: Any = None
"""A role that a method leaves to the default; `Method.filled` puts the default in."""


@dataclass(frozen=True)
class Method:
    """What a method changes in plain training, one optional field per role.

    `a + b` is the union of what both change; if both change the same field, that is an error that names it.

    >>> (Method("a", loss=len) + Method("b", mix=len)).changes
    {'loss': 'a', 'mix': 'b'}
    """

    name: str = "vanilla"
    loss: core.Loss = UNSET
    mix: core.Mix = UNSET
    head: core.HeadSpec = UNSET
    before_epoch: core.BeforeEpoch = UNSET
    tally: core.Tally | None = None
    select: core.Select = UNSET
    posthoc: core.PostHoc = UNSET
    views: core.Views | None = None
    join: core.Join | None = None
    parent: str | None = None
    """the method whose finished run, of the same task and seed, this one starts from"""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """what it changes of a task's plan, unless the task or the user says otherwise"""
    about: str = field(default="", compare=False)
    """what it changes, in a few words"""
    when: str = field(default="", compare=False)
    """when to use it, in a sentence"""
    paper: str = field(default="", compare=False)
    venue: str = field(default="", compare=False)
    cost: str = field(default="none", compare=False)
    """what it takes beyond plain training"""
    listed: bool = field(default=True, compare=False, repr=False)
    """whether `balcal list methods` shows it without `--all`"""
    origin: tuple[tuple[str, str], ...] | None = field(default=None, compare=False, repr=False)
    """(role, name of the method that changed it)"""

    def __post_init__(self) -> None:
        if self.origin is None:
            set_here = [role for role in (*ROLES, "parent") if getattr(self, role) is not None]
            if self.settings and not set_here:
                set_here = [SETTINGS]
            object.__setattr__(self, "origin", tuple((role, self.name) for role in set_here))

    @property
    def changes(self) -> dict[str, str]:
        """The roles that differ from plain training, and who changed each."""
        return dict(self.origin or ())

    @property
    def brings(self) -> dict[str, Any]:
        """What it changes of a plan, by field.

        >>> Method("mine", settings={"plan.lr": 0.1, "task.augment": "none"}).brings
        {'lr': 0.1}
        """
        return {path.removeprefix("plan."): value for path, value in self.settings.items() if path.startswith("plan.")}

    @property
    def starts_from(self) -> str | None:
        """The name of the method whose run comes first, if any.

        >>> (Method("a", loss=len) + Method("b", parent=THE_REST)).starts_from
        'a'
        """
        if self.parent != THE_REST:
            return self.parent
        mine, after = self.changes["parent"], (*AFTER_TRAINING, "join")
        others = (name for role, name in self.changes.items() if role not in after and name != mine)
        return "+".join(dict.fromkeys(others)) or "vanilla"

    def __add__(self, other: Method) -> Method:
        for role in self.changes:
            if role in other.changes and role != SETTINGS:
                raise BalcalError(
                    f"`{self.name}` and `{other.name}` cannot be joined: both set `{role}`: "
                    f"{getattr(self, role)} and {getattr(other, role)}"
                )
        return replace(
            self,
            name=f"{self.name}+{other.name}",
            about=_joined("; ", self.about, other.about),
            when="",
            paper=_joined("; ", self.paper, other.paper),
            venue=_joined("; ", self.venue, other.venue),
            cost=_joined("; ", *(cost for cost in (self.cost, other.cost) if cost != "none")) or "none",
            origin=(*self.changes.items(), *other.changes.items()),
            **{role: getattr(other, role) for role in other.changes} | {SETTINGS: {**self.settings, **other.settings}},
        )

    def __str__(self) -> str:
        return self.name

    def card(self) -> dict[str, Any]:
        """A description of the method as plain data."""
        facts = ("about", "when", "paper", "venue", "cost")
        return {name: getattr(self, name) for name in facts} | {"changes": list(self.changes)}

    def remarks(self) -> list[str]:
        """One sentence for each combination of parts that has no effect."""
        idle: float | None = getattr(self.loss, "idle_within", None)
        if idle is None or self.head is None or (self.tally and self.tally.moves_bounds):
            return []
        return [
            f"`{self.changes['loss']}` has no effect on branch {number} of {len(self.head.logit_bounds)}: logits stay "
            f"within ±{bound:g} there, and up to ±{idle:g} its loss is plain cross-entropy"
            for number, bound in enumerate(self.head.logit_bounds, 1)
            if bound <= idle
        ]

    def advice(self, history: Sequence[Record]) -> str | None:
        """A sentence after a training, if the method had nothing to do in most epochs, or did too much."""
        return self.tally.advice(history) if self.tally and self.join is None else None

    def for_training(self) -> Method:
        """Without what is not part of training, so that `balcal+ts` finds the run of `balcal`.

        A method that changes training and brings its own `select` keeps it: which weights stay depends on it.
        """
        after = AFTER_TRAINING if self.join is None else ("posthoc", "views")
        trained = {name for role, name in self.changes.items() if role not in after}
        kept = self.changes.get("select") in trained
        return self.without("posthoc", "views", *(() if kept else ("select",)))

    def without(self, *roles: str) -> Method:
        """What is left if these roles are as in plain training."""
        origin = tuple((role, name) for role, name in self.changes.items() if role not in roles)
        mark = "".join(name for role, name in origin if role == "join" and name.endswith("*"))
        name = "+".join(dict.fromkeys(name for _, name in origin if name != mark)) or "vanilla"
        return replace(self, name=mark + name, origin=origin, **dict.fromkeys(roles, UNSET))

    def filled(self, defaults: Method) -> Method:
        """Every role filled: mine, or else the default's. What I change stays the same."""
        missing = {role: getattr(defaults, role) for role in ROLES if getattr(self, role) is None}
        return replace(self, **missing)


def _joined(between: str, *texts: str) -> str:
    """The texts joined, each once."""
    return between.join(dict.fromkeys(filter(None, texts)))


@dataclass(frozen=True)
class Plan:
    """How to optimise: everything about the loop that is not the method and not the data."""

    epochs: Annotated[int, at_least(1)] = 30
    batch_size: Annotated[int, at_least(1)] = 128
    optimiser: Literal["sgd", "adam", "adamw"] = "adam"
    lr: Annotated[float, above(0)] = 1e-3
    momentum: Annotated[float, within("[0, 1)")] = 0.9
    nesterov: bool = False
    """whether the momentum of `sgd` looks one step ahead"""
    weight_decay: Annotated[float, at_least(0)] = 0.0
    decay_weights_only: bool = False
    """weight decay leaves norms and biases alone"""
    schedule: Literal["constant", "step", "cosine", "onecycle"] = "constant"
    """`onecycle` rises linearly during `warmup` and then falls linearly to zero"""
    milestones: Annotated[tuple[float, ...], within("(0, 1)")] = (0.5, 0.75)
    """`step` divides the rate by ten at these shares of the epochs"""
    warmup: Annotated[float, within("[0, 1]")] = 0.0
    """share of the epochs in which the rate rises linearly"""
    clip: Annotated[float | None, above(0, "be above 0, or none")] = None
    """largest norm of the gradient"""
    accumulate: Annotated[int, at_least(1)] = 1
    """batches per optimiser step"""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """`auto` becomes bf16 where the machine has bf16 instructions, else fp32, when a recipe is made"""
    compile: bool = False
    norm_momentum: Annotated[float | None, within("(0, 1]")] = None
    """share of a batch in the running statistics of batch norms; none: as the network has it, usually 0.1"""
    sum_loss: bool = False
    """the loss of a batch is the sum over its images in place of the mean; use it with `clip`"""
    average: Annotated[float | None, at_least(0, "be 0 or above, or none")] = None
    """the weights in use are a mean over the steps so far, the k-th counting as k to this power; none: the last ones"""
    average_or_last: bool = False
    """in the last epoch the average gives way to the last step's weights, if validation images prefer those"""
    keep: Annotated[Literal["best", "last", "all"] | int, at_least(1, "be best, last, all or a number from 1 on")] = (
        "best"
    )
    """whose weights stay on disk: the best epoch's; `last`: and those of the last and of the most accurate one; or
    every epoch's, or every n-th epoch's and the best one's"""

    def __post_init__(self) -> None:
        check_settings(self, "plan")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise BalcalError(f"plan.milestones must increase from one to the next, not {self.milestones}")

    def kept(self, epochs: int) -> set[int]:
        """Of the first so many epochs, those whose weights stay on disk however good or bad they are.

        >>> Plan(epochs=10, keep=4).kept(10), Plan(epochs=10, keep=4).kept(5), Plan().kept(10)
        ({1, 5, 9}, {1}, set())
        """
        every = self.keep_every
        return {epoch for epoch in range(epochs) if every and (self.epochs - 1 - epoch) % every == 0}

    @property
    def keep_every(self) -> int:
        """The weights of every so many epochs stay, counted from the last one; 0: of none.

        >>> Plan().keep_every, Plan(epochs=30, keep="last").keep_every, Plan(keep="all").keep_every
        (0, 30, 1)
        """
        named = {"best": 0, "last": self.epochs, "all": 1}
        return self.keep if isinstance(self.keep, int) else named[self.keep]


@dataclass(frozen=True)
class Task:
    """What a method is trained on: data set, backbone, plan."""

    name: str
    dataset: str
    backbone: str
    plan: Plan
    val_size: Annotated[int, at_least(1)]
    """training images held out for validation, drawn per class"""
    calibrate_size: Annotated[int, at_least(0)] = 0
    """further images held out for post-hoc calibration alone; 0: the validation split serves for that too"""
    train_size: Annotated[int | None, at_least(1, "be at least 1, or none")] = None
    """of what is left, so many images to train on, drawn per class; none: all"""
    side: Annotated[int | None, at_least(1, "be at least 1, or none")] = None
    """pixels per side that images are resized to; none: as many as they have"""
    pixels: Literal["half"] | None = None
    """`half`: pixels are normalised by mean and deviation 0.5; none: by those of the data set"""
    split_seed: Annotated[int, SEED] = 1
    augment: Literal["none", "flip", "crop", "crop+flip"] = "none"
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """settings of methods, by name, that were chosen on this task's validation split"""
    about: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_settings(self, "task")

    @property
    def folder(self) -> str:
        """The task's name as a folder name.

        >>> Task("folder:/data/my pets@64", "folder:/data/my pets@64", "wrn-16-2", Plan(), 10).folder
        'folder-my-pets-64'
        """
        kind, colon, path = self.name.partition(":")
        return re.sub(r"[^\w.-]+", "-", f"{kind}-{PurePath(path).name}") if colon else self.name


@dataclass(frozen=True)
class Recipe:
    """Task, method and seed. The same recipe gives the same bits."""

    task: Task
    method: Method
    seed: int = 0
    parent: Recipe | None = None
    """the recipe of the run that this one starts from"""
    overrides: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_value("seed", self.seed, int, SEED))

    def for_training(self) -> Recipe:
        method = self.method.for_training()
        dropped = [role for role in AFTER_TRAINING if role not in method.changes]
        kept = tuple(o for o in self.overrides if o.split(".")[0] not in dropped)
        return replace(self, method=method, parent=self.parent and self.parent.for_training(), overrides=kept)

    def address(self) -> str:
        """Where the run of this recipe is stored: the same recipe finds the same run."""
        training = self.for_training()
        name = training.method.name.replace("*", "x")  # a shell would take the star for any letters
        return f"{self.task.folder}/{name}-seed{self.seed}-{fingerprint(training)}"
