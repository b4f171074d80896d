"""Timings on a busy machine mean little; ratios of turns taken one after the other mean something."""

from __future__ import annotations

import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch


def take_turns(
    turns: dict[str, Callable[[], None]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    rest: float = 0.0,
) -> dict[str, list[float]]:
    """Seconds of each, in alternation and in a new random order every round, after two rounds that do not count.

    With one thread, `time.process_time` is a clock that other programs on the machine do not disturb. `rest`: seconds
    before each turn. Libraries with threads of their own need some: these wait at full speed for a while.
    """
    order, seconds = random.Random(0), {name: [] for name in turns}
    for number in range(-2, rounds):
        for name in order.sample(list(turns), len(turns)):
            time.sleep(rest)
            begun = clock()
            turns[name]()
            if number >= 0:
                seconds[name].append(clock() - begun)
    return seconds


def ratio(seconds: dict[str, list[float]], a: str, b: str) -> dict[str, Any]:
    """Median time of a relative to that of b, with a bootstrap interval over rounds."""
    rounds, draw = range(len(seconds[a])), random.Random(0)

    def of(rows: Iterable[int]) -> float:
        rows = list(rows)
        return statistics.median(seconds[a][i] for i in rows) / statistics.median(seconds[b][i] for i in rows)

    spread = sorted(of(draw.choices(rounds, k=len(rounds))) for _ in range(400))
    return {"ratio": round(of(rounds), 4), "95 %": [round(spread[9], 4), round(spread[389], 4)], "rounds": len(rounds)}


def report(name: str, command: str, figures: dict[str, Any]) -> None:
    """Print, and keep beside the command that made it."""
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "platform": platform.platform()}
    result = {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine, **figures}
    path = Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
