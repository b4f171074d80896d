"""What `balcal paper` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from balcal.arena.schedule import Resources, train_missing
from balcal.paper import ITEMS
from balcal.paper.budget import estimate
from balcal.paper.items import Item
from balcal.paper.measure import Answers, trainings
from balcal.paper.render import answer, in_markdown, write
from balcal.paper.tiers import Tier, tier
from balcal.runtime.devices import pick_device
from balcal.runtime.names import plain_lines


def list_items() -> list[dict[str, Any]]:
    return [
        {
            "item": item.id,
            "kind": item.kind,
            "title": item.title,
            "label": item.label,
            "paper_shows": item.shows,
            "published_numbers": sum(cell.published is not None for cell in item.cells),
            "notes": list(item.notes),
        }
        for item in ITEMS.values()
    ]


@dataclass(frozen=True)
class Printed:
    """What the verb prints: `data` with --json, otherwise `text`."""

    data: dict[str, Any]
    text: str


@dataclass(frozen=True)
class PaperRequest:
    """Some items, at some tier."""

    items: Sequence[Item]
    tier_name: str
    seed_count: int | None = None
    resources: Resources = field(default_factory=Resources)
    only_found: bool = False

    @property
    def tier(self) -> Tier:
        return tier(self.tier_name)

    @property
    def seeds(self) -> range:
        return range(self.seed_count or self.tier.seeds)

    def say(self, text: str) -> None:
        if not self.resources.quiet:
            print(plain_lines(text), file=sys.stderr)

    def estimate(self) -> Printed:
        """Runs, hours and disk of all items together; what items share counts once."""
        needed = trainings(self.items, self.tier, self.seeds)
        budget = estimate(needed, self.resources.runs, pick_device(self.resources.device), self.say)
        data = {"tier": self.tier.name, "items": [i.id for i in self.items], **budget.as_dict()}
        return Printed(data, "\n".join(budget.sentences()))

    def answer(self, to: Path) -> Printed:
        """Train what is missing, unless only found runs count; then write each item into a folder."""
        if not self.only_found:
            train_missing(trainings(self.items, self.tier, self.seeds), self.resources, title="paper")
        answers = Answers(self.tier, self.seeds, self.resources.runs, self.resources.device, self.only_found)
        results = {}
        for item in self.items:
            self.say(f"{item.id}: {item.title}")
            results[item.id] = answer(item, answers)
            write(item, results[item.id], to)
        data = {name: result.as_dict() for name, result in results.items()}
        texts = [*map(in_markdown, results.values()), f"written to {to}"]
        return Printed({"tier": self.tier.name, "folder": str(to), "items": data}, "\n".join(texts))
