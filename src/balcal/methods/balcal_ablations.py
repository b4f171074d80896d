"""Ni, Zhao, Gao, Guo, Zha: Balancing Two Classifiers via A Simplex ETF Structure for Model Calibration. CVPR 2025.

The ablations of the paper: BalCAL with one part taken away.

etf-1, etf-k       the ETF classifier alone, beta = 1 or K
balcal-beta        the ETF classifier alone, beta re-solved after every epoch
balcal-noadapter   both classifiers on the same features
balcal-fixed       gamma is 0.5, in loss and fusion
balcal-fixedloss   gamma is 0.5 in the loss, solved in the fusion

Without an adapter the ETF classifier would read pooled features, which are not negative. They reach a confidence of
0.20 where the frame allows 0.2524 (K = 10, beta = 1), and the paper's own rows imply 0.2508. So a norm without relu
makes them signed. `head.adapter=none` leaves the norm out.
"""

from __future__ import annotations

from dataclasses import replace

from balcal.methods.balcal import SECOND_HEAD, Balanced, Etf, SolveBeta, SolveGamma
from balcal.recipe import Method

METHODS = {
    m.name: replace(m, paper="Ni, Zhao, Gao, Guo, Zha", venue="CVPR 2025")
    for m in (
        Method(
            "balcal-noadapter",
            head=Balanced(adapter="norm"),
            tally=SolveGamma(),
            about="ablation: no adapter, a norm in its place",
            when="To repeat the paper's ablation.",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-fixed",
            head=Balanced(),
            about="ablation: gamma 0.5 in loss and fusion",
            when="To repeat the paper's ablation. It is meant to fail: nothing sets its confidence right.",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-fixedloss",
            head=Balanced(loss_follows=False),
            tally=SolveGamma(),
            about="ablation: gamma 0.5 in the loss, solved in the fusion",
            when="To repeat the paper's ablation.",
            cost=SECOND_HEAD,
        ),
        Method(
            "balcal-beta",
            head=Etf(adapter="norm"),
            tally=SolveBeta(),
            about="ablation: ETF classifier alone, beta re-solved",
            when="To repeat the paper's ablation.",
        ),
        Method(
            "etf-1",
            head=Etf(adapter="norm"),
            about="ablation: ETF classifier alone, beta = 1",
            when="To repeat the paper's ablation. It is meant to fail: its confidence has a low ceiling.",
        ),
        Method(
            "etf-k",
            head=Etf(beta="K", adapter="norm"),
            about="ablation: ETF classifier alone, beta = K",
            when="To repeat the paper's ablation.",
        ),
    )
}
