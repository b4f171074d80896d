"""Every method of the paper and each of them under BalCAL, on `fashion`, with and without `ts`: an arena.

python results/scripts/methods.py        two processes of one thread each; finished runs are found again
python results/scripts/methods.py --methods vanilla,tst --seeds 2 --set plan.epochs=1 --runs trial --out trial.csv
"""

from __future__ import annotations

import sys

from folders import DATA

from balcal.cli import main

LOSSES = ("ls", "fl", "flsd", "dualfocal", "mmce", "mmce-w", "acls", "cpc", "mbls", "ecp", "mdca", "esd")
METHODS = (
    *("vanilla", "averaged", *LOSSES, "mixup", "mit", "plp", "tst", "vtst", "pcs"),
    *("balcal", "balcal-k", "balcal-logits", "balcal-val", "balcal-mean", "balcal-auto"),
    *("balcal-beta", "balcal-noadapter", "balcal-fixed", "balcal-fixedloss", "etf-1", "etf-k"),
    *(f"balcal+{name}" for name in ("ls", "fl", "flsd", "acls", "cpc", "mmce-w", "mbls", "dualfocal")),
    *("balcal-k+mixup", "balcal+mit", "balcal+plp", "balcal+pcs"),
)
USUAL = {
    "--methods": ",".join(METHODS),
    "--seeds": "3",
    "--jobs": "2",
    "--format": "runs",
    "--out": str(DATA / "methods.csv"),
}

if __name__ == "__main__":
    given = sys.argv[1:]
    usual = [part for option, value in USUAL.items() if option not in given for part in (option, value)]
    sys.argv = ["balcal", "arena", "fashion", *usual, *given]
    main()
