"""Text (CLINC150: requests in 150 intents) and a table that comes with scikit-learn."""

from __future__ import annotations

from balcal.recipe import Plan, Task
from balcal.tasks.embedded import SECOND_STAGES

TASKS = {
    t.name: t
    for t in (
        Task(
            "clinc",
            dataset="clinc",
            backbone="minilm",
            plan=Plan(epochs=20, batch_size=128, optimiser="adam", lr=3e-3, schedule="cosine"),
            val_size=3000,
            tuned=SECOND_STAGES,
            about="15,000 requests in 150 intents, on a frozen sentence encoder; out-of-scope requests as OOD set",
        ),
        Task(
            "clinc-ngrams",
            dataset="clinc",
            backbone="ngrams",
            plan=Plan(epochs=12, batch_size=128, optimiser="adam", lr=5e-3, schedule="cosine"),
            val_size=3000,
            tuned=SECOND_STAGES,
            about="the same from scratch, on hashed n-grams of bytes: needs no encoder",
        ),
        Task(
            "tumours",
            dataset="tumours",
            backbone="mlp-36",
            plan=Plan(epochs=40, batch_size=32, optimiser="adam", lr=3e-3, schedule="cosine"),
            val_size=100,
            tuned=SECOND_STAGES,
            about="280 tumours with 30 measurements each (scikit-learn's breast cancer table): a few seconds",
        ),
    )
}
