"""The ablations of the paper: BalCAL with one part taken away.

etf-1, etf-k       the ETF classifier alone, beta = 1 or K
balcal-beta        the ETF classifier alone, beta re-solved after every epoch
balcal-noadapter   both classifiers on the same features
balcal-fixed       gamma is 0.5, in loss and fusion
balcal-fixedloss   gamma is 0.5 in the loss, solved in the fusion
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
            head=Balanced(adapter=None),
            tally=SolveGamma(),
            about="ablation: no adapter",
            cost=SECOND_HEAD,
        ),
        Method("balcal-fixed", head=Balanced(), about="ablation: gamma 0.5 in loss and fusion", cost=SECOND_HEAD),
        Method(
            "balcal-fixedloss",
            head=Balanced(loss_follows=False),
            tally=SolveGamma(),
            about="ablation: gamma 0.5 in the loss, solved in the fusion",
            cost=SECOND_HEAD,
        ),
        Method("balcal-beta", head=Etf(), tally=SolveBeta(), about="ablation: ETF classifier alone, beta re-solved"),
        Method("etf-1", head=Etf(), about="ablation: ETF classifier alone, beta = 1"),
        Method("etf-k", head=Etf(beta="K"), about="ablation: ETF classifier alone, beta = K"),
    )
}
