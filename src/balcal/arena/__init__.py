"""Methods × seeds on one task: trained or found, evaluated with and without temperature scaling, compared.

result = balcal.arena.run("digits", ["vanilla", "balcal"], jobs=2)
print(result.table("markdown"))
"""

from balcal.arena.entries import Search
from balcal.arena.records import Cell, Difference, TrainingRun
from balcal.arena.result import ArenaResult
from balcal.arena.running import run

__all__ = ["ArenaResult", "Cell", "Difference", "Search", "TrainingRun", "run"]
