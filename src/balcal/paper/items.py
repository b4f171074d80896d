"""What an item (a table or a figure) of the paper is: what it shows, which runs it needs, what the paper printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from balcal import registry
from balcal.paper.published import Number, Numbers
from balcal.paper.tiers import Tier
from balcal.recipe import Recipe

NAMES = {
    "Vanilla": "vanilla",
    "ACLS": "acls",
    "LS": "ls",
    "Mixup": "mixup",
    "mixup": "mixup",
    "MIT": "mit",
    "FL": "fl",
    "FLSD": "flsd",
    "CPC": "cpc",
    "PLP": "plp",
    "MMCE": "mmce-w",
    "TST": "tst",
    "VTST": "vtst",
    "DualFocal": "dualfocal",
    "PCS": "pcs",
    "Ours": "balcal",
}
"""What the paper calls a method, and what it is called here."""
BESIDE = ("balcal-logits", "balcal-auto", "vanilla+ts")
"""Methods in our tables that the paper has no numbers of. `Ours` fuses probabilities, as the paper writes, and
`balcal-logits` logits, as the released code does: the published numbers are of one of them, most likely the second."""
TRAINED_BESIDE = ("balcal-logits", "balcal-auto")
NAMES |= {name: name for name in BESIDE}
LOGITS = ", logits"
"""ends the name of a row or curve of ours that fuses logits where the one before it fuses probabilities"""


@dataclass(frozen=True)
class Measure:
    """A kind of number that the paper prints."""

    label: str
    better: Literal["higher", "lower"]
    unit: str
    about: str
    times: float = 100.0
    """factor from the value that we compute to the one that it prints"""


MEASURES = {
    "accuracy": Measure("ACC", "higher", "%", "share of test images that are classified correctly"),
    "ece": Measure("ECE", "lower", "%", "expected calibration error, 15 bins"),
    "adaptive_ece": Measure("AECE", "lower", "%", "the same with bins of equal mass"),
    "ts_ece": Measure("ECE (TS)", "lower", "%", "ECE after temperature scaling, fitted on held-out images by NLL"),
    "ts_grid_ece": Measure("ECE (TS by ECE)", "lower", "%", "the same by ECE on a grid, as the released code fits it"),
    "auroc": Measure("AUROC", "higher", "%", "by the largest probability; each OOD set alone, then their mean"),
    "fpr95": Measure("FPR95", "lower", "%", "share of OOD images above the threshold that 95 % of test images pass"),
    "ood_confidence": Measure("Conf", "lower", "%", "mean confidence on an OOD set"),
    "ood_entropy": Measure("Entropy", "higher", "nats x 100", "mean entropy on an OOD set"),
    "seconds": Measure("Cost", "lower", "s", "seconds per training epoch", times=1.0),
}


@dataclass(frozen=True)
class Ask:
    """A method at a place of the paper (a data set, a network): something to train."""

    place: str
    method: str
    settings: tuple[str, ...] = ()

    def recipe(self, tier: Tier, seed: int) -> Recipe | None:
        """None where the tier has nothing that stands for the place."""
        stand = tier.places.get(self.place)
        if stand is None:
            return None
        method = f"{self.method}+{tier.select}" if tier.select else self.method
        return registry.recipe(stand.task, method, seed, (*stand.settings, *self.settings))

    def with_posthoc(self, name: str) -> Ask:
        return Ask(self.place, f"{self.method}+{name}", self.settings)


@dataclass(frozen=True)
class PaperCell:
    """One number of a table: which measure of which runs, and what the paper has there."""

    row: str
    column: str
    """the heading above it, without the measure"""
    measure: str
    asks: tuple[Ask, ...]
    """usually one; the mean over several"""
    published: Number | None
    against: tuple[str, ...] = ()
    """OOD sets"""


Series = Mapping[str, Ask]


@dataclass(frozen=True)
class Item:
    """A table or a figure of the paper."""

    id: str
    kind: Literal["table", "figure"]
    label: str
    """in the paper's source; empty where it has no such figure"""
    title: str
    shows: str
    """what the paper says that one sees"""
    cells: tuple[PaperCell, ...] = ()
    """of a table; of a figure, the numbers that the paper prints elsewhere"""
    series: Callable[[Tier], Series] = field(default=lambda tier: {}, compare=False)
    """of a figure: what is trained for it, by name"""
    epochs: bool = False
    """whether it looks at the weights of every epoch"""
    notes: tuple[str, ...] = ()
    """what is known to be odd about it"""

    def asks(self, tier: Tier) -> list[Ask]:
        """Everything that has to be trained, each thing once; nothing for what is only timed."""
        trained = [ask for cell in self.cells if cell.measure != "seconds" for ask in cell.asks]
        return list(dict.fromkeys([*trained, *self.series(tier).values()]))

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(heading, measure)"""
        return list(dict.fromkeys((cell.column, cell.measure) for cell in self.cells))


MakeCell = Callable[[str], PaperCell]
"""from a row's name to the cell of one column, without its number"""


def column(
    heading: str, measure: str, place: str, against: tuple[str, ...] = (), names: Mapping[str, str] = NAMES
) -> MakeCell:
    """The row's method at a place. `names`: methods by rows."""
    return lambda row: PaperCell(row, heading, measure, (Ask(place, names[row]),), None, against)


def columns(places: Iterable[str], measures: Iterable[str], names: Mapping[str, str] = NAMES) -> list[MakeCell]:
    return [column(place, measure, place, names=names) for place in places for measure in measures]


def logits_too(rows: Iterable[str]) -> list[str]:
    """The names of rows that fuse logits.

    >>> logits_too(["fixed fixed"])
    ['fixed fixed, logits']
    """
    return [f"{row}{LOGITS}" for row in rows]


def filled(rows: Numbers, makes: list[MakeCell], beside: Iterable[str] = ()) -> tuple[PaperCell, ...]:
    """The paper's rows with their numbers; below them rows of ours, without."""
    made = [(make(row), number) for row, numbers in rows.items() for make, number in zip(makes, numbers, strict=True)]
    return (
        *(replace(cell, published=number) for cell, number in made),
        *(make(row) for row in beside for make in makes),
    )
