"""Files in ../shared that some tests compare with. Where they are missing, a skip says what it would check."""

from pathlib import Path

import pytest

HELPERS = Path(__file__).parent
SHARED = Path(__file__).parents[3] / "shared"
CIFAR_PROBS = SHARED / "data" / "cifar10_cv_probs" / "cifar10_test_cv_probs.npz"
CIFAR_LABELS = SHARED / "data" / "cifar10" / "labels.npz"
HUMAN_VOTES = SHARED / "data" / "cifar10h" / "cifar10h.npz"
REAL_OUTPUTS = SHARED / "data" / "netcal_predictions"
VECTORS = SHARED / "vectors" / "losses.json"

REAL = "that real files are read as they were published"
CHECKS = {
    VECTORS: "losses and post-hoc maps against reference values that were computed independently",
    CIFAR_PROBS: "metrics and calibration on predictions of a real network for CIFAR-10",
    CIFAR_LABELS: "metrics and calibration on predictions of a real network for CIFAR-10",
    REAL_OUTPUTS: "calibrators on outputs of three real networks",
    HUMAN_VOTES: "the distance of predictions to human labels of CIFAR-10",
    SHARED / "spec" / "paper.tex": "our copy of the paper's numbers against its LaTeX source",
    SHARED / "data" / "cifar10" / "test.webp": "that corruptions grow with their severity on real images",
    **{SHARED / "data" / name: REAL for name in ("cifar10", "cifar100", "cifar10h", "cifar10n", "textures32")},
}
"""by file: what a test with it checks"""


def skip_reason(*paths):
    """What tests with these files would check, and which of them are missing."""
    checks = dict.fromkeys(CHECKS.get(path, "real files") for path in paths)
    return f"would check {', '.join(checks)}; missing: {', '.join(str(path) for path in paths if not path.exists())}"


def needs(*paths):
    """A mark that skips a test unless all these files are there."""
    return pytest.mark.skipif(not all(path.exists() for path in paths), reason=skip_reason(*paths))


needs_vectors = needs(VECTORS)
