"""Where numbers and images to test against lie, if this machine has them."""

from pathlib import Path

import pytest

HELPERS = Path(__file__).parent
SHARED = Path(__file__).parents[3] / "shared"
CIFAR_PROBS = SHARED / "data" / "cifar10_cv_probs" / "cifar10_test_cv_probs.npz"
CIFAR_LABELS = SHARED / "data" / "cifar10" / "labels.npz"
HUMAN_VOTES = SHARED / "data" / "cifar10h" / "cifar10h.npz"
VECTORS = SHARED / "vectors" / "losses.json"


def needs(*paths):
    missing = [str(path) for path in paths if not path.exists()]
    return pytest.mark.skipif(bool(missing), reason=f"wants what is not on this machine: {', '.join(missing)}")
