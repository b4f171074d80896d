"""Any model of timm (Wightman: PyTorch Image Models) as a backbone: `timm:NAME`.

`timm:NAME@pretrained` has timm's weights, from its cache or downloaded into it; `timm:NAME@FILE` those of a file that
fits the model (.safetensors, or what torch.save wrote), its classifier left out. timm is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from balcal.core import BalcalError

PREFIX = "timm:"
ABOUT = "any model of timm; timm:NAME@pretrained with its weights, timm:NAME@FILE with your own"


def from_timm(name: str, channels: int = 3, weights: bool = True) -> nn.Module:
    """The model without its classifier. `weights=False` leaves out what stands after the @."""
    wanted, _, source = name.removeprefix(PREFIX).partition("@")
    timm = _timm(name)
    if not timm.is_model(wanted):
        near = [other for other in timm.list_models(f"*{wanted.split('.')[0]}*")[:5] if other != wanted]
        hint = f"similar: {', '.join(near)}" if near else f"{len(timm.list_models())} are listed by timm.list_models()"
        raise BalcalError(f"timm {timm.__version__} has no model `{wanted}`; {hint}")
    ready = weights and source == "pretrained"
    try:
        network: Any = timm.create_model(wanted, pretrained=ready, num_classes=0, in_chans=channels)
    except (OSError, RuntimeError, ValueError) as error:
        if not ready:
            raise
        raise BalcalError(
            f"timm's weights of `{wanted}` are neither in its cache nor could be fetched ({_first(error)}): "
            f"go online once, or name a file: {PREFIX}{wanted}@FILE"
        ) from None
    if weights and source and not ready:
        _load(network, Path(source), wanted, timm)
    as_wide_as_its_head(network)
    return network  # type: ignore[no-any-return]


def as_wide_as_its_head(network: Any) -> dict[str, Any]:
    """Let `num_features` be the width of what the classifier gets; returns what it was before.

    Layers may stand between the pooled map and the classifier, as in MobileNetV3. timm calls their width otherwise.
    """
    hidden, width = getattr(network, "head_hidden_size", None), network.num_features
    if hidden in (None, width):
        return {}
    network.map_channels, network.num_features = width, hidden
    return {"num_features": width}


def _timm(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision warns of codecs that nobody needs here
        try:
            return importlib.import_module("timm")
        except (ImportError, RuntimeError) as error:  # a torchvision made for another torch ends in a RuntimeError
            missing = (
                "timm" if getattr(error, "name", None) == "timm" else "timm with a torchvision that fits this torch"
            )
            raise BalcalError(
                f"`{name}` needs {missing} ({_first(error)}): pip install timm; and where its torchvision is made for "
                "CUDA and torch is not: pip install requests && pip install --no-deps torchvision==0.16.2"
            ) from None


def _load(network: nn.Module, path: Path, wanted: str, timm: Any) -> None:
    if not path.is_file():
        raise BalcalError(f"there is no file {path} with weights for `{wanted}` (or write @pretrained for timm's own)")
    load = timm.models.load_state_dict
    if "weights_only" not in inspect.signature(load).parameters:
        raise BalcalError(
            f"timm {timm.__version__} would run code that is hidden in {path}: use 'timm>=1.0.9', which does not"
        )
    try:
        missing = network.load_state_dict(load(str(path), weights_only=True), strict=False).missing_keys
    except Exception as error:  # damaged files fail in many ways
        raise BalcalError(f"the weights in {path} are not for `{wanted}`: {_first(error)}") from None
    if missing:
        raise BalcalError(f"the weights in {path} are not for `{wanted}`: {len(missing)} are missing, as {missing[0]}")


def _first(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(" .:") or type(error).__name__
