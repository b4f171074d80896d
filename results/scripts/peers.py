"""What the README says of other libraries, checked against those that are installed.

python results/scripts/peers.py

For each library: names that must be there, and words that no public module or class of it may have. torch-uncertainty
is not installed for tests; its row was read from the source of 0.13.0.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class Peer:
    """`has`: module and name; `lacks`: words in names of modules and classes."""

    package: str
    has: tuple[tuple[str, str], ...]
    lacks: tuple[str, ...]


PEERS = {
    "netcal 1.4": Peer(
        "netcal",
        (
            ("netcal.scaling", "TemperatureScaling"),
            ("netcal.scaling", "BetaCalibration"),
            ("netcal.binning", "BBQ"),
            ("netcal.regularization", "MMCEPenalty"),
        ),
        ("onnx", "conformal", "monitor", "bootstrap"),
    ),
    "probmetrics 1.3": Peer(
        "probmetrics",
        (("probmetrics.calibrators", "SMSCalibrator"), ("probmetrics.calibrators", "VennAbersCalibrator")),
        ("onnx", "conformal", "monitor", "bootstrap"),
    ),
    "MAPIE 1.6": Peer(
        "mapie",
        (
            ("mapie.classification", "SplitConformalClassifier"),
            ("mapie.calibration", "VennAbersCalibrator"),
            ("mapie.calibration", "TopLabelCalibrator"),
            ("mapie.risk_control", "BinaryClassificationController"),
            ("mapie.metrics.calibration", "spiegelhalter_p_value"),
        ),
        ("onnx", "temperature", "monitor"),
    ),
    "scikit-learn 1.9": Peer(
        "sklearn.calibration",
        (("sklearn.calibration", "CalibratedClassifierCV"), ("sklearn.calibration", "CalibrationDisplay")),
        ("onnx", "conformal", "monitor"),
    ),
}
"""by the name in the README"""


def installed(name: str) -> str | None:
    try:
        return version(name.partition(" ")[0])
    except PackageNotFoundError:
        return None


def names_in(package: str) -> set[str]:
    """Public modules of a package and the classes in them, in lower case."""
    found, top = {package.lower()}, importlib.import_module(package)
    inner = pkgutil.walk_packages(getattr(top, "__path__", []), f"{package}.")
    for name in (package, *(each.name for each in inner if "._" not in each.name and "test" not in each.name)):
        try:
            module = importlib.import_module(name)
        except ImportError:  # an extra of theirs that is not installed
            continue
        classes = inspect.getmembers(module, inspect.isclass)
        found |= {name.lower(), *(key.lower() for key, cls in classes if cls.__module__.startswith(package))}
    return found


def wrong(peer: Peer) -> list[str]:
    """What the README says and the library does not."""
    missing = [f"{module}.{name}" for module, name in peer.has if not hasattr(importlib.import_module(module), name)]
    there = names_in(peer.package)
    return [*missing, *(name for word in peer.lacks for name in sorted(there) if word in name)]


def main() -> None:
    for name, peer in PEERS.items():
        if (found := installed(name)) is None:
            print(f"{name}: not installed")
        else:
            print(f"{name}: {found} is installed; {', '.join(wrong(peer)) or 'as the README says'}")


if __name__ == "__main__":
    main()
