"""What `balcal paper` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from balcal.arena.schedule import Resources, train_missing
from balcal.paper import ITEMS
from balcal.paper.budget import Budget, estimate
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
class Asked:
    """Some items, at some tier."""

    items: Sequence[Item]
    tier_name: str
    seed_count: int | None = None
    shop: Resources = field(default_factory=Resources)
    only_found: bool = False

    @property
    def tier(self) -> Tier:
        return tier(self.tier_name)

    @property
    def seeds(self) -> range:
        return range(self.seed_count or self.tier.seeds)

    def say(self, text: str) -> None:
        if not self.shop.quiet:
            print(plain_lines(text), file=sys.stderr)

    def estimate(self) -> dict[str, Any]:
        """Runs, hours and disk of everything together; what items share counts once."""
        needed = trainings(self.items, self.tier, self.seeds)
        budget: Budget = estimate(needed, self.shop.runs, pick_device(self.shop.device), self.say)
        return {"tier": self.tier.name, "items": [i.id for i in self.items], **budget.as_dict()}

    def answer(self, to: Path) -> dict[str, Any]:
        """Train what is missing, unless it may be; then write each item into a folder."""
        if not self.only_found:
            train_missing(trainings(self.items, self.tier, self.seeds), self.shop, title="paper")
        answers = Answers(self.tier, self.seeds, self.shop.runs, self.shop.device, self.only_found)
        told = {}
        for item in self.items:
            self.say(f"{item.id}: {item.title}")
            told[item.id] = answer(item, answers)
            write(item, told[item.id], to)
        return {"tier": self.tier.name, "folder": str(to), "items": told}

    def in_words(self, told: dict[str, Any]) -> str:
        if "hours" in told:
            budget = Budget(*(told[name] for name in ("runs", "missing", "hours", "gigabytes", "timed", "untimed")))
            return "\n".join(budget.sentences())
        texts = [in_markdown(one) for one in told["items"].values()]
        return "\n".join([*texts, f"written to {told['folder']}"])
