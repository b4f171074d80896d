"""What is run on the `-fast` tasks, and what each run is compared with: `fast.py` runs it, the pages show it."""

from __future__ import annotations

FIRST = ("vanilla", "balcal-logits", "balcal", "balcal-auto")
REST = ("ls", "mixup", "fl", "mit", "tst", "vtst", "acls", "flsd", "cpc", "plp", "mmce-w")
FEWER = ("ls", "mixup", "fl", "mit", "tst")
ALONE = ("etf-1", "etf-k", "balcal-beta", "balcal-noadapter")
FIXED = ("balcal-fixed", "balcal-fixedloss")
LOGITS = "head.fusion=logits"
USUAL = 0.95
"""delta of every other run"""
DELTAS = (0.91, 0.93, 0.97, 0.99)


def with_delta(name: str, delta: float) -> str:
    return name if delta == USUAL else f"{name} head.delta={delta:g}"


SWEPT = tuple(with_delta(name, delta) for delta in DELTAS for name in ("balcal-logits", "balcal"))
PARTS = (
    *(entry for name in (*ALONE[3:], *FIXED) for entry in (name, f"{name} {LOGITS}")),
    *ALONE[:3],
    *SWEPT,
)
"""methods with settings behind them: the paper's tables of variants and of gamma, and its figure of delta; one seed"""
METHODS = {
    "cifar10-fast": (*FIRST, *REST, "balcal-released", *PARTS),
    "cifar100-fast": (*FIRST, *FEWER, *SWEPT[:2]),  # the end of the paper's range that is nearest to the accuracy
    "svhn-fast": (*FIRST, *FEWER, *SWEPT[-2:]),
}
SEEDS = (0, 1, 2)
PLAIN = {"vanilla": "+last", "vanilla+ts": "+last+ts"}
"""what each run is compared with"""
WITH_PART = {
    "balcal-noadapter": ("balcal",),
    f"balcal-noadapter {LOGITS}": ("balcal-logits",),
    "balcal-fixed": ("balcal-fixedloss",),
    f"balcal-fixed {LOGITS}": (f"balcal-fixedloss {LOGITS}",),
    "balcal-fixedloss": ("balcal",),
    f"balcal-fixedloss {LOGITS}": ("balcal-logits",),
    "balcal-beta": ("balcal", "balcal-logits"),
}
"""BalCAL without a part -> what has the part, with which it is compared as well"""
OOD = {
    "cifar10-fast": ("svhn", "cifar100"),
    "cifar100-fast": ("svhn", "cifar10"),
    "svhn-fast": ("cifar10", "cifar100"),
}
"""as in the paper's tables"""
SHIFTED = {"cifar10-fast": ("vanilla", "plp", "tst", "vtst", "balcal", "balcal-logits", "balcal-auto")}
CORRUPTED = 2_000
"""runs of seed 0 that see the first so many test images corrupted: 15 kinds, 5 severities"""
