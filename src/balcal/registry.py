"""Names to values: methods, backbones, data sets, tasks and metrics, found in the files of their folders."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, reduce
from operator import add
from types import ModuleType
from typing import Any

from pydantic import ValidationError
from torch import nn

from balcal.backbones.from_timm import PREFIX, from_timm
from balcal.core import BalcalError
from balcal.data.dataset import Dataset
from balcal.data.own_images import is_own_images, own_images, own_task
from balcal.methods.joining import Seeds
from balcal.methods.vanilla import VANILLA
from balcal.recipe import ROLES, THE_REST, Method, Recipe, Task
from balcal.runtime.devices import best_precision
from balcal.runtime.names import nearest, unknown
from balcal.runtime.values import adapter, as_python, check_value, declared, misfit

KINDS = {
    "methods": "METHODS",
    "backbones": "BACKBONES",
    "datasets": "DATASETS",
    "tasks": "TASKS",
    "metrics": "METRICS",
}
_FOLDERS = {"datasets": "data"}
FOR_PARENT = "parent."
PARENT_METHOD = "parent.method"


@cache
def table(kind: str) -> Mapping[str, Any]:
    """All entries of a kind, by name: the union of the tables at the end of the folder's files."""
    found: dict[str, Any] = {}
    for module in _files(kind):
        for name, entry in getattr(module, KINDS[kind], {}).items():
            if name in found:
                raise BalcalError(f"two files of balcal call something `{name}`; the second is {module.__name__}")
            found[name] = entry
    return dict(sorted(found.items()))


def home(kind: str, name: str) -> ModuleType:
    """The file that an entry stands in.

    >>> home("methods", "ts").__name__
    'balcal.methods.temperature'
    """
    return next(module for module in _files(kind) if name in getattr(module, KINDS[kind], {}))


def _files(kind: str) -> list[ModuleType]:
    if kind not in KINDS:
        raise BalcalError(unknown("kind", kind, KINDS))
    folder = importlib.import_module(f"balcal.{_FOLDERS.get(kind, kind)}")
    names = sorted(found.name for found in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."))
    return [importlib.import_module(name) for name in names]


def _named(kind: str, what: str, name: str) -> Any:
    if name not in table(kind):
        raise BalcalError(unknown(what, name, table(kind)))
    return table(kind)[name]


def method(name: str) -> Method:
    """The method of this `name`, or several joined by `+`, with every role filled; `5*` joins the runs of five seeds.

    >>> method("balcal+ts").changes
    {'head': 'balcal', 'tally': 'balcal', 'posthoc': 'ts'}
    """
    count, parts = _split_name(name)
    joined: Method = reduce(add, (_named("methods", "method", part) for part in parts))
    if count is not None:
        if joined.join is not None:
            raise BalcalError(f"`{name}` would join twice: `{count}*` and `{joined.changes['join']}`; leave one out")
        origin = (*joined.changes.items(), ("join", f"{count}*"))
        joined = replace(joined, name=f"{count}*{joined.name}", join=Seeds(count), origin=origin)
    return joined.filled(VANILLA)


def _split_name(name: str) -> tuple[int | None, list[str]]:
    """How many seeds are joined, if any, and the names between the `+`.

    >>> _split_name("5*vanilla+ts"), _split_name("ts")
    ((5, ['vanilla', 'ts']), (None, ['ts']))
    """
    count, star, rest = name.partition("*")
    joins = bool(star) and count.strip().isdecimal()
    return int(count) if joins else None, [part.strip() for part in (rest if joins else name).split("+")]


def backbone(name: str, channels: int = 3, weights: bool = True) -> nn.Module:
    """A network without a classifier, by name or as `timm:NAME`, for images with so many `channels`.

    `weights=False` if its weights are loaded anyway.

    >>> backbone("wrn-16-2").num_features
    128
    """
    if name.startswith(PREFIX):
        return from_timm(name, channels, weights)
    build: Callable[[int], nn.Module] = _named("backbones", "backbone", name)
    return build(channels)


def dataset(name: str) -> Dataset:
    """A data set by name, or the user's own: `folder:PATH`, `npz:PATH`."""
    if is_own_images(name):
        return own_images(name)
    found: Dataset = _named("datasets", "data set", name)
    return found


def task(name: str, scratch: bool = False) -> Task:
    """A task by name; for the user's own data, a task made for it, from `scratch` or with a pretrained encoder."""
    if is_own_images(name):
        return own_task(own_images(name), scratch)
    found: Task = _named("tasks", "task", name)
    return found


def recipe(task_name: str, method_name: str, seed: int = 0, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by names: the settings of each method, those that the task has tuned for it, then the overrides.

    `plan` and `task` overrides hold for a parent's run as well; `parent.plan.epochs=9` is for the parent alone, and
    `parent.method=fl` starts from the run of `fl`. `plan.precision=auto` is settled here.
    """
    overrides = [text.strip() for text in overrides]
    scratch = any(text.partition("=")[0].strip() in ("task.backbone", "backbone") for text in overrides)
    made = Recipe(task(task_name, scratch), method(method_name), seed)
    for part in _split_name(method_name)[1]:
        brought: Mapping[str, Any] = table("methods")[part].settings
        for path, value in {**brought, **made.task.tuned.get(part, {})}.items():
            made = override(made, path, value)
    overrides = tuple(_in_full(made, text) for text in overrides)
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals:
            raise BalcalError(f"`{text}` is not a setting: write it as name.field=value")
        if not path.startswith(FOR_PARENT):
            made = override(made, path.strip(), value.strip())
        elif made.method.starts_from is None:
            raise BalcalError(f"`{path}` cannot be set: method `{method_name}` does not start from another run")
        elif path.strip() == PARENT_METHOD:
            if made.method.parent == THE_REST:
                raise BalcalError(
                    f"`{path}` cannot be set: `{method_name}` starts from the run of what it is joined with"
                )
            made = replace(made, method=replace(made.method, parent=value.strip()))
    if (
        made.task.plan.precision == "auto"
    ):  # stands in recipe.json, so that another machine finds the run as it was made
        settled = f"plan.precision={best_precision()}"
        made, overrides = override(made, *settled.split("=")), (*overrides, settled)
    made = replace(made, overrides=overrides)
    return replace(made, parent=_parent_of(made))


def _in_full(recipe: Recipe, text: str) -> str:
    """A setting with its full name: `epochs=3` is `plan.epochs=3`. Others stay as they are."""
    path, equals, value = text.partition("=")
    return f"{full_name(recipe, path.strip())}={value}" if equals and "." not in path else text


SPELLINGS = {
    "learning_rate": "lr",
    "wd": "weight_decay",
    "amp": "precision",
    "verbose": "quiet",
    "steps": "steps_per_epoch",
    **dict.fromkeys(("grad_clip", "max_grad_norm", "gradient_clip_val", "max_norm"), "clip"),
    **dict.fromkeys(("num_epochs", "max_epochs", "n_epochs"), "epochs"),
}
"""what others call our settings"""


def full_name(recipe: Recipe, path: str) -> str:
    """The full name of a setting that is given by its last name, if only one part of the recipe has it.

    >>> full_name(recipe("digits", "balcal"), "delta"), full_name(recipe("digits", "balcal"), "plan.lr")
    ('head.delta', 'plan.lr')
    """
    roots = ("plan", "task", *ROLES)
    if "." in path or path in roots:
        return path
    names = [f"{root}.{name}" for root in roots for name in _settable(_part(recipe, root))]
    found = [name for name in names if name.split(".")[1] == path]
    if len(found) > 1:
        raise BalcalError(f"`{path}` may be {' or '.join(found)}: write one of them")
    if found:
        return found[0]
    near = SPELLINGS.get(path) or nearest(path, [name.split(".")[1] for name in names])
    hint = next((f"did you mean `{name}`?" for name in names if name.split(".")[1] == near), "see `balcal show METHOD`")
    raise BalcalError(f"unknown setting `{path}` of `{recipe.method.name}`; {hint}")


def _part(recipe: Recipe, root: str) -> Any:
    return {"task": recipe.task, "plan": recipe.task.plan}.get(root) or getattr(recipe.method, root)


def _parent_of(child: Recipe) -> Recipe | None:
    """The recipe of the run that comes first: the child's task and seed, and the settings that concern it."""
    name, changes = child.method.starts_from, child.method.changes
    if name is None:
        return None
    if "*" in name:
        raise BalcalError(f"`{name}` is the mean of several networks: a training starts from one, such as one of these")
    shared = {"plan", "task", *(role for role in changes if changes[role] in name.split("+"))}
    settings = [text for text in child.overrides if text.split(".")[0] in shared]
    alone = [text for text in child.overrides if text.startswith(FOR_PARENT)]
    settings += [text.removeprefix(FOR_PARENT) for text in alone if text.partition("=")[0].strip() != PARENT_METHOD]
    settings += child.method.before_epoch.parent_settings
    return recipe(child.task.name, name, child.seed, settings)


def override(recipe: Recipe, path: str, value: Any) -> Recipe:
    """The recipe with one field changed: `plan.lr`, `task.val_size`, `head.beta`, `tally.on`, ..."""
    root, name = _split(path)
    if root == "task":
        changed = _changed(recipe.task, root, name, value)
        _check_names(changed)
        return replace(recipe, task=changed)
    if root == "plan":
        return replace(recipe, task=replace(recipe.task, plan=_changed(recipe.task.plan, root, name, value)))
    role = getattr(recipe.method, root)
    if role is None:
        raise BalcalError(f"`{path}` cannot be set: method `{recipe.method.name}` has no {root}")
    return replace(recipe, method=replace(recipe.method, **{root: _changed(role, root, name, value)}))


def _check_names(task: Task) -> None:
    """Refuse an unknown data set or backbone before there is a folder for its run."""
    if not is_own_images(task.dataset):
        _named("datasets", "data set", task.dataset)
    if not task.backbone.startswith(PREFIX):
        _named("backbones", "backbone", task.backbone)


def has_setting(recipe: Recipe, path: str) -> bool:
    """Whether this recipe has such a setting; a path that none could have is an error.

    >>> has_setting(recipe("digits", "balcal"), "head.delta"), has_setting(recipe("digits", "vanilla"), "head.delta")
    (True, False)
    """
    if path.startswith(FOR_PARENT):
        return recipe.parent is not None and has_setting(recipe.parent, path.removeprefix(FOR_PARENT))
    if "." not in path:
        return any(path in _settable(_part(recipe, root)) for root in ("plan", "task", *ROLES))
    root, name = _split(path)
    return name in _settable(_part(recipe, root))


def _split(path: str) -> tuple[str, str]:
    root, _, name = path.partition(".")
    roots = ("plan", "task", *ROLES)
    if root not in roots:
        raise BalcalError(unknown("setting", root, roots))
    return root, name


def _settable(record: Any) -> list[str]:
    if not is_dataclass(record):
        return []
    return [f.name for f in fields(record) if f.compare and f.name not in ("name", "plan")]


def _changed(record: Any, root: str, name: str, value: Any) -> Any:
    settable = _settable(record)
    if name not in settable:
        if not settable:
            raise BalcalError(f"`{root}.{name}` cannot be set: {record} has no settings")
        raise BalcalError(unknown(f"setting of `{root}`", name, settable))
    wanted, allowed = declared(record)[name]
    typed = isinstance(value, str)
    if isinstance(value, str) and value.lower() in ("none", "null") and "'none'" not in str(wanted):
        value = None
    if isinstance(value, str) and "tuple" in str(wanted):
        value = [part for part in value.strip("()[] ").split(",") if part.strip()]
    setting = f"{root}.{name}"
    try:
        valid = adapter(wanted).validate_python(as_python(value), strict=not typed)
    except ValidationError as error:
        raise misfit(setting, str(value), error) from None
    return replace(record, **{name: check_value(setting, valid, wanted, allowed)})
