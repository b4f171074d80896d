"""The feature map before a network's last norm: what the released BalCAL adapter reads.

Networks with a norm and a relu after their last convolution can be divided there. Others, such as ResNet, whose map is
a sum, cannot: their map is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Halves = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


@runtime_checkable
class DividedAtNorm(Protocol):
    """A network that says itself where its last norm is: `forward_features` is `after_norm` of `before_norm`."""

    def before_norm(self, x: Tensor) -> Tensor: ...
    def after_norm(self, x: Tensor) -> Tensor: ...


def divided(backbone: nn.Module) -> Halves | None:
    """`forward_features` in two halves, up to the last norm and from it on; None where there is no such norm.

    >>> from balcal.backbones.small import SmallCnn
    >>> from balcal.backbones.wide_resnet import WideResNet
    >>> divided(WideResNet(3, 10, 1)) is None, divided(SmallCnn(1, 8, 4, 8)) is None
    (False, True)
    """
    if isinstance(backbone, DividedAtNorm):
        return backbone.before_norm, backbone.after_norm
    stem, body = getattr(backbone, "stem", None), getattr(backbone, "body", None)
    last = body[-1] if isinstance(body, nn.Sequential) and len(body) else None
    if stem is None or not isinstance(body, nn.Sequential) or not isinstance(last, nn.Sequential):
        return None
    if len(last) < 3 or not isinstance(last[-2], nn.BatchNorm2d) or not isinstance(last[-1], nn.ReLU):
        return None
    return (lambda x: last[:-2](body[:-1](stem(x)))), last[-2:]
