"""The paper as data: every table and figure, the runs it needs, the printed numbers, and ours beside theirs.

Left out: `fig:overall`, which draws the method and shows no result.
"""

from __future__ import annotations

from balcal.core import BalcalError
from balcal.paper.figures import FIGURES
from balcal.paper.items import Item
from balcal.paper.tables import TABLES
from balcal.runtime.names import unknown

ITEMS = {item.id: item for item in (*TABLES, *FIGURES)}


def item(name: str) -> Item:
    if name not in ITEMS:
        raise BalcalError(unknown("item of the paper", name, ITEMS))
    return ITEMS[name]
