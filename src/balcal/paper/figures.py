"""The paper's figures as data: which runs each needs. `curves.py` computes what they show, `drawing.py` draws it."""

from __future__ import annotations

from balcal.paper import published
from balcal.paper.ablations import ALPHA, ALPHAS, mixed
from balcal.paper.items import BESIDE, LOGITS, NAMES, TRAINED_BESIDE, Ask, Item, PaperCell, Series
from balcal.paper.tiers import CIFAR10, THREE, Tier

EVERYBODY = {row: NAMES[row] for row in published.MAIN}


def _motivation(tier: Tier) -> Series:
    return {
        "Vanilla": Ask(CIFAR10, "vanilla"),
        "BalCAL": Ask(CIFAR10, "balcal"),
        f"BalCAL{LOGITS}": Ask(CIFAR10, "balcal-logits"),
        "vanilla+ts": Ask(CIFAR10, "vanilla+ts"),
        "Mixup": mixed("mixup", CIFAR10, 1.0),
        "Mixup + BalCAL": mixed("ours", CIFAR10, 1.0),
        f"Mixup + BalCAL{LOGITS}": mixed("ours", CIFAR10, 1.0, logits=True),
        "balcal-auto": Ask(CIFAR10, "balcal-auto"),
    }


MOTIVATION = Item(
    "motivation",
    "figure",
    "fig:motivation",
    "The motivation: over- and under-confidence",
    "Plain training is over-confident, Mixup can be under-confident, BalCAL repairs both.",
    series=_motivation,
    notes=("which alpha Mixup has in it is not said; here 1.0, at which the paper's Mixup is under-confident",),
)

BETA = Item(
    "beta",
    "figure",
    "figure beta",
    "Beta and the confidence of an ETF classifier",
    "Confidence grows with beta, accuracy hardly moves.",
    series=lambda tier: {f"{beta:g}": Ask(CIFAR10, "etf-1", (f"head.beta={beta:g}",)) for beta in tier.betas},
    notes=("the picture is not in the source: its betas are not known",),
)


def _three_ways(tier: Tier) -> Series:
    ways = {"Mixup": "mixup", "MIT": "mit", "Mixup+Ours": "ours", f"Mixup+Ours{LOGITS}": "ours"}
    swept = {
        f"{name} {alpha:g}": mixed(way, CIFAR10, alpha, name.endswith(LOGITS))
        for name, way in ways.items()
        for alpha in ALPHAS
    }
    return {"Vanilla": Ask(CIFAR10, "vanilla")} | swept


ALPHA_ECE = Item(
    "alpha-ece",
    "figure",
    "fig:mixup",
    "How ECE depends on the strength of mixing, CIFAR-10",
    "Mixup is sensitive to alpha, MIT and Mixup + BalCAL are not.",
    cells=(
        PaperCell("Vanilla", "Vanilla", "ece", (Ask(CIFAR10, "vanilla"),), published.MAIN["Vanilla"][1]),
        *(
            cell
            for cell in ALPHA.cells
            if cell.row.startswith(f"{CIFAR10} ") and cell.measure == "ece" and not cell.row.endswith(LOGITS)
        ),
    ),
    series=_three_ways,
    notes=("the curves are the ECEs of the alpha table",),
)


def _shifted(tier: Tier) -> Series:
    methods = {name: NAMES[name] for name in (*EVERYBODY, *BESIDE) if NAMES[name] in (tier.shifted or NAMES.values())}
    return {f"{place}: {name}": Ask(place, method) for place in tier.shifted_at for name, method in methods.items()}


SHIFT = Item(
    "shift",
    "figure",
    "fig:shift",
    "ECE as the test images get worse",
    "BalCAL has the lowest ECE under strong shift, most of all on CIFAR-100.",
    series=_shifted,
    notes=(
        "the text says the 15 corruptions of Hendrycks & Dietterich; the released code has 13 for CIFAR-10 and 18 for "
        "CIFAR-100, and divides by 13 both times",
        "ECE under shift has 10 bins in the released code; here 15 everywhere",
    ),
)

DELTA = Item(
    "delta",
    "figure",
    "fig:delta",
    "Delta and ECE; gamma over the epochs",
    "ECE is low for delta from 0.91 to 0.99; gamma is high at first, then falls and settles.",
    series=lambda tier: {
        f"{method} {delta:g}": Ask(tier.swept, method, (f"head.delta={delta:g}",))
        for method in ("balcal", "balcal-logits")
        for delta in tier.deltas
    },
)

TSNE = Item(
    "tsne",
    "figure",
    "fig:tsne",
    "t-SNE of the last layer's features, CIFAR-10",
    "BalCAL's classes are denser and further apart.",
    series=lambda tier: {name: Ask(CIFAR10, NAMES[name]) for name in ("Vanilla", "MIT", "Ours", *TRAINED_BESIDE)},
    notes=("which images, how many and which perplexity is not said; here the first test images and 30",),
)

TSNE_MORE = Item(
    "tsne-more",
    "figure",
    "fig:tsne2",
    "t-SNE of more methods, CIFAR-10",
    "BalCAL's classes are denser and further apart.",
    series=lambda tier: {name: Ask(CIFAR10, NAMES[name]) for name in (*EVERYBODY, *TRAINED_BESIDE)},
    notes=("which methods the picture has is not known; here those of the main table",),
)

CAM = Item(
    "cam",
    "figure",
    "fig:cam",
    "Class activation maps of both classifiers",
    "The learnable classifier looks at broader regions, the ETF classifier at details.",
    series=lambda tier: {"BalCAL": Ask(CIFAR10, "balcal"), f"BalCAL{LOGITS}": Ask(CIFAR10, "balcal-logits")},
    notes=("which method draws the maps is not said; here gradient-weighted ones, see `balcal.analysis.features`",),
)

ALPHA_CONFIDENCE = Item(
    "alpha-confidence",
    "figure",
    "fig:mixup2",
    "How confidence depends on the strength of mixing",
    "Confidence falls fast with alpha, below accuracy.",
    series=lambda tier: {f"{place} {a:g}": mixed("mixup", place, a) for place in THREE for a in ALPHAS},
)

DISTANCE = Item(
    "distance",
    "figure",
    "fig:distance",
    "Cosine and L2 distance between the two classifiers' prototypes, over the epochs",
    "The cosine distance falls on CIFAR-10 and SVHN, and on CIFAR-100 falls and then rises; the L2 distance grows.",
    series=lambda tier: (
        {place: Ask(place, "balcal") for place in THREE}
        | {f"{place}{LOGITS}": Ask(place, "balcal-logits") for place in THREE}
    ),
    epochs=True,
    notes=("what a prototype is is not said; here a classifier's vector of a class, see `balcal.analysis.collapse`",),
)

COLLAPSE = Item(
    "collapse",
    "figure",
    "",
    "Neural collapse over the epochs: NC1 to NC4",
    "Not drawn in the paper, which only recalls the four conditions of Papyan et al. 2020.",
    series=lambda tier: {
        "Vanilla": Ask(CIFAR10, "vanilla"),
        "BalCAL": Ask(CIFAR10, "balcal"),
        f"BalCAL{LOGITS}": Ask(CIFAR10, "balcal-logits"),
    },
    epochs=True,
)

FIGURES = (
    MOTIVATION,
    BETA,
    ALPHA_ECE,
    SHIFT,
    DELTA,
    TSNE,
    TSNE_MORE,
    CAM,
    ALPHA_CONFIDENCE,
    DISTANCE,
    COLLAPSE,
)
