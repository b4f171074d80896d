"""Foreign models, one after the other: wrap, train two epochs, predict, save, load, export. Prints a table.

    python examples/zoo.py              # all that is installed: plain torch; transformers and timm where they are
    python examples/zoo.py lstm bert    # some

Weights are random and data are noise: what is shown is that it works, not how well.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import balcal

N, K = 24, 3
IMAGES, ROWS, WORDS = torch.randn(N, 3, 32, 32), torch.randn(N, 12), torch.randint(2, 30, (N, 10))
PAIR = (ROWS[:, :7], ROWS[:, 7:])
ZOO: dict[str, tuple[Callable[[], nn.Module], Any, dict[str, Any]]] = {}
"""name: (how to build it, its inputs, further arguments of `wrap`)"""


def member(inputs: Any, name: str = "", **more: Any) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    def add(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        ZOO[name or build.__name__] = (build, inputs, more)
        return build

    return add


@member(ROWS)
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, K))


@member(ROWS, num_classes=2)
def one_logit() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 1), nn.Flatten(0))


@member(ROWS)
def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(40), nn.ReLU(), nn.LazyLinear(K))


class HiddenNames(nn.Module):
    """Hidden layers by the names of classifiers, registered in another order than used."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.head, self.classifier, self.fc = (nn.Linear(*s) for s in ((K, K), (8, K), (20, 8), (12, 20)))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(self.classifier(self.fc(x).relu()).relu()).relu())


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(7, 24), nn.Linear(5, 24), nn.Linear(24, K)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out((self.left(left) + self.right(right)).relu())


member(ROWS, "hidden_names")(HiddenNames)
member(PAIR, "tuple_input")(TwoInputs)
member({"left": PAIR[0], "right": PAIR[1]}, "dict_input")(TwoInputs)


def stem() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU()
    )


@member(IMAGES)
def cnn() -> nn.Module:
    return nn.Sequential(*stem(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24, K))


@member(IMAGES)
def conv_classifier() -> nn.Module:
    return nn.Sequential(*stem(), nn.Conv2d(24, K, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@member(IMAGES)
def pooled_conv_classifier() -> nn.Module:
    return nn.Sequential(*stem(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, K, 1), nn.Flatten())


class WithAuxiliary(nn.Module):
    """(logits, logits of a second head), as Inception in training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.main, self.aux = stem(), nn.Linear(24, K), nn.Linear(24, K)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.stem(x).mean((2, 3))
        return self.main(hidden), self.aux(hidden)


class DictOutput(WithAuxiliary):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        main, aux = super().forward(x)
        return {"aux": aux, "logits": main}


class Checkpointed(WithAuxiliary):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        maps = checkpoint(self.stem, x, use_reentrant=False) if self.training else self.stem(x)
        return self.main(maps.mean((2, 3)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 32, 1)
        self.fc = nn.Linear(32, K)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu()
        x = (x + self.conv2(x)).relu()
        return self.fc(torch.flatten(self.conv3(x).relu().mean((2, 3), keepdim=True), 1))


class TimmLike(nn.Module):
    """timm's interface: num_features, forward_features, forward_head."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features, self.stem, self.fc = 24, stem(), nn.Linear(24, K)

    def get_classifier(self) -> nn.Module:
        return self.fc

    def reset_classifier(self, num_classes: int) -> None:
        self.fc = nn.Linear(24, num_classes) if num_classes else nn.Identity()  # type: ignore[assignment]

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stem(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x.mean((2, 3)) if pre_logits else self.fc(x.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


for kind in (WithAuxiliary, DictOutput, Checkpointed, Residual, TimmLike):
    member(IMAGES, "".join("_" * (c.isupper() and i > 0) + c.lower() for i, c in enumerate(kind.__name__)))(kind)


@member(IMAGES)
def frozen_body() -> nn.Module:
    network = cnn()
    for weight in network[:5].parameters():
        weight.requires_grad_(False)
    return network


@member(ROWS)
def compiled() -> nn.Module:
    return torch.compile(mlp(), backend="eager")


@member(IMAGES)
def other_classes() -> nn.Module:
    return nn.Sequential(*stem(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 100))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words, self.cells, self.decoder = nn.Embedding(30, 16), kind(16, 20, batch_first=True), nn.Linear(20, K)

    def forward(self, ids: Tensor) -> Tensor:
        return self.decoder(self.cells(self.words(ids))[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(30, 16), nn.Linear(16, K)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.layers(self.words(ids)).mean(1))


class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.conv, self.out = nn.Embedding(30, 16), nn.Conv1d(16, 24, 3), nn.Linear(24, K)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.conv(self.words(ids).mT).relu().amax(2))


member(WORDS, "lstm")(lambda: Recurrent(nn.LSTM))
member(WORDS, "gru")(lambda: Recurrent(nn.GRU))
member(WORDS, "attention")(Attention)
member(WORDS, "text_cnn")(TextCnn)


def add_transformers() -> None:
    """Text and images by transformers, small and random."""
    import transformers as hf

    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "num_labels": K,
    }
    text = small | {"vocab_size": 30, "max_position_embeddings": 40}
    words = {"input_ids": WORDS, "attention_mask": torch.ones_like(WORDS)}
    for name in ("Bert", "Roberta", "Electra"):
        config, model = getattr(hf, f"{name}Config"), getattr(hf, f"{name}ForSequenceClassification")
        member(words, name.lower())(lambda config=config, model=model: model(config(**text)))
    distil = {"vocab_size": 30, "dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "num_labels": K}
    member(words, "distilbert")(lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**distil)))
    for name, settings in {
        "ViT": small | {"image_size": 32, "patch_size": 8},
        "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": K},
        "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": K},
        "RegNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4, "num_labels": K},
    }.items():
        config, model = getattr(hf, f"{name}Config"), getattr(hf, f"{name}ForImageClassification")
        build = lambda config=config, model=model, settings=settings: model(config(**settings))  # noqa: E731
        member({"pixel_values": IMAGES}, name.lower())(build)


def add_timm() -> None:
    """Eight families of timm, with random weights."""
    import timm

    names = ["resnet18", "mobilenetv3_small_050", "efficientnet_lite0", "convnext_atto", "vit_tiny_patch16_224"]
    for name in [*names, "mixer_s32_224", "regnetx_002", "densenet121"]:
        size = {"img_size": 32} if name.endswith("224") else {}
        build = lambda name=name, size=size: timm.create_model(name, num_classes=K, **size)  # noqa: E731
        member(IMAGES, f"timm_{name}")(build)


for add in (add_transformers, add_timm):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            add()
    except (ImportError, RuntimeError) as error:
        print(f"left out: {add.__doc__.strip() if add.__doc__ else ''} ({str(error).splitlines()[0]})", file=sys.stderr)


def visit(name: str, folder: Path, to: str | None = ".pt2") -> dict[str, Any]:
    """Everything that a user does with a model; what was found out on the way."""
    build, inputs, more = ZOO[name]
    classes, begun = more.get("num_classes", K), time.perf_counter()
    labels = torch.arange(N) % classes
    torch.manual_seed(0)
    model = balcal.wrap(build(), classes, sample=inputs, quiet=True)
    loader = [(inputs, labels)] * 2
    history = balcal.fit(model, loader, loader, epochs=2, quiet=True)
    predicted = balcal.predict(model, loader)
    file = balcal.save(model, folder / f"{name}.pt")
    again = balcal.load(file, network=_with_sizes(build(), inputs))
    same = float((balcal.predict(again, loader).probs - predicted.probs).abs().max())
    card = balcal.export(model, inputs, folder / f"{name}{to}", predicted) if to else {}
    parameters = sum(weight.numel() for weight in model.parameters())
    return {
        "model": name,
        "parameters": parameters,
        "classifier": getattr(model.backbone, "path", "timm's"),
        "NLL": round(history[-1]["val_nll"], 3),
        "loaded differs": same,
        "exported differs": card.get("verified", {}).get("largest_difference", 0.0),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def _with_sizes(network: nn.Module, inputs: Any) -> nn.Module:
    """Lazy layers get their sizes by a batch."""
    if any(isinstance(module, nn.modules.lazy.LazyModuleMixin) for module in network.modules()):
        network(inputs)
    return network


def main(names: list[str]) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names or list(ZOO):
            rows.append(visit(name, Path(folder)))
            if len(rows) == 1:
                print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
            print(
                "| "
                + " | ".join(
                    f"{v:.0e}" if isinstance(v, float) and "diff" in k else str(v) for k, v in rows[-1].items()
                )
                + " |"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
