"""Backbones keep timm's contract, and are the networks that their names say."""

import pytest
import torch

from balcal.core import Backbone
from balcal.registry import backbone, table

SIDES = {"cnn-28": 28, "cnn-8": 8}


@pytest.mark.parametrize("name", [n for n in sorted(table("backbones")) if not n.endswith("-10")])
def test_contract(name):
    network, side = backbone(name, channels=1), SIDES.get(name, 32)
    assert isinstance(network, Backbone)
    x = torch.randn(2, 1, side, side)
    feature_map = network.forward_features(x)
    features = network.forward_head(feature_map, pre_logits=True)
    assert features.shape == (2, network.num_features)
    assert feature_map.shape[1] == getattr(network, "map_channels", network.num_features)
    torch.testing.assert_close(network.eval()(x), network.forward_head(network.forward_features(x)))


@pytest.mark.parametrize("name", sorted(table("backbones")))
def test_blocks_hold_every_parameter_once(name):
    with torch.device("meta"):
        network = backbone(name)
    held = [id(p) for block in network.blocks() for p in block.parameters()]
    assert sorted(held) == sorted(id(p) for p in network.parameters())


@pytest.mark.parametrize(("name", "millions"), [("wrn-28-10", 36.479), ("wrn-16-2", 0.692)])
def test_sizes_with_ten_classes(name, millions):
    """The published WRN-28-10 has 36.5 M."""
    with torch.device("meta"):
        network = backbone(name)
    count = sum(p.numel() for p in network.parameters()) + 10 * (network.num_features + 1)
    assert count / 1e6 == pytest.approx(millions, rel=1e-3)
