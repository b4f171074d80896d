"""Backbones keep timm's contract, and are the networks that their names say."""

import math
import re
from functools import cache

import pytest
import torch
from torch import nn

import balcal
from balcal.backbones.before_norm import divided
from balcal.backbones.parts import Described
from balcal.core import Backbone, BalcalError
from balcal.methods.pcs import block_names
from balcal.methods.plp import groups
from balcal.registry import backbone, table

TABLE = {name: row for name, row in table("backbones").items() if name not in ("lite0", "minilm", "mlp-36", "ngrams")}
"""for images, to be trained; frozen encoders: tests/data/test_own_images.py, for text and tables: tests/tasks"""
STEMMED = ["resnet-18", "resnet-34", "resnet-50", "resnet-101", "densenet-121"]
OTHERS = ["resnet-8", "resnet-20", "resnet-56", "resnet-110", "vit-b-16", "vit-tiny"]
WIDE = ["wrn-28-10", "wrn-26-10", "wrn-16-4", "wrn-16-2", "wrn-10-1", "wrn-40-2"]
SIDES = {"cnn-28": 28, "cnn-8": 8, "vit-b-16": 224, "vit-tiny": 32}
NETWORKS = [name for name in TABLE if f"{name}-cifar" not in TABLE]
"""each once: a bare name is the same as the one with `-cifar`"""
FAMILIES = ["cnn-8", "cnn-32", "wrn-10-1", "resnet-8", "resnet-18-tiny", "densenet-121", "vit-tiny"]


def side_of(name):
    """The resolution of the paper's protocol."""
    by_stem = 64 if name.endswith("-tiny") else 224 if name.endswith("-imagenet") else 32
    return SIDES.get(name, by_stem)


@cache
def on_meta(name, channels=3):
    with torch.device("meta"):
        return backbone(name, channels)


def count(network, classes=0):
    return sum(p.numel() for p in network.parameters()) + classes * (network.num_features + 1) * bool(classes)


def test_every_name_is_there():
    stems = [f"{name}-{stem}" for name in STEMMED for stem in ("cifar", "tiny", "imagenet")]
    assert {*WIDE, *OTHERS, *STEMMED, *stems} <= {*TABLE}
    for name in STEMMED:
        assert TABLE[name] is TABLE[f"{name}-cifar"], "the bare name has the stem for CIFAR"


def features_by_contract(network, images):
    """Forward and backward, with a look at shapes and at gradients."""
    assert isinstance(network, Backbone)
    feature_map = network.forward_features(images)
    features = network.forward_head(feature_map, pre_logits=True)
    assert features.shape == (len(images), network.num_features)
    channels = getattr(network, "map_channels", network.num_features)
    if channels is None:
        assert feature_map.ndim == 3, "tokens"
    else:
        assert feature_map.shape[:2] == (len(images), channels)
        assert feature_map.ndim == 4
    features.square().sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())
    return feature_map.detach(), features.detach()


@pytest.mark.parametrize("name", NETWORKS)
def test_contract_and_start_at_the_resolution_of_the_paper(name):
    """What a fresh network says is neither lost nor beyond bounds; its weights are as published."""
    network, side = backbone(name), side_of(name)
    batch = 1 if side > 32 or "101" in name else 2
    feature_map, features = features_by_contract(network, torch.randn(batch, 3, side, side))
    assert 0.05 < float(feature_map.std()) < 20
    assert 0.05 < float(features.square().mean().sqrt()) < 20
    assert all(weight.grad.isfinite().all() for weight in network.parameters())
    if name.startswith(("wrn", "resnet", "densenet")):
        for conv in (m for m in network.modules() if isinstance(m, nn.Conv2d)):
            wanted = math.sqrt(2 / (conv.out_channels * conv.kernel_size[0] ** 2))
            assert float(conv.weight.detach().std()) == pytest.approx(wanted, rel=6 / math.sqrt(conv.weight.numel()))


@pytest.mark.parametrize("name", FAMILIES)
def test_forward_is_both_halves_and_any_number_of_channels_goes(name):
    network, x = backbone(name, channels=1).eval(), torch.randn(2, 1, side_of(name), side_of(name))
    with torch.no_grad():
        assert torch.equal(network(x), network.forward_head(network.forward_features(x)))


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_hold_every_parameter_once_and_in_order(name):
    network = on_meta(name)
    held = [id(p) for block in network.blocks() for p in block.parameters()]
    assert held == [id(p) for p in network.parameters()]


PUBLISHED = [  # with so many classes; papers print the first two or three digits (for wrn-26-10 nobody does)
    ("wrn-28-10", 10, 36_479_194),
    ("wrn-26-10", 10, 36_481_434),
    ("wrn-40-2", 10, 2_243_546),
    ("wrn-16-4", 10, 2_748_890),
    ("wrn-16-2", 10, 691_674),
    ("resnet-20", 10, 269_722),
    ("resnet-56", 10, 853_018),
    ("resnet-110", 10, 1_727_962),
    ("resnet-18", 10, 11_173_962),
    ("resnet-18-imagenet", 1000, 11_689_512),
    ("resnet-34-imagenet", 1000, 21_797_672),
    ("resnet-50", 10, 23_520_842),
    ("resnet-50-imagenet", 1000, 25_557_032),
    ("resnet-101", 10, 42_512_970),
    ("resnet-101-imagenet", 1000, 44_549_160),
    ("densenet-121", 10, 6_956_298),
    ("densenet-121-imagenet", 1000, 7_978_856),
    ("vit-b-16", 1000, 86_567_656),
]


@pytest.mark.parametrize(("name", "classes", "published"), PUBLISHED, ids=str)
def test_number_of_parameters(name, classes, published):
    assert count(on_meta(name), classes) == published


def test_wrn_26_10_has_the_convolutions_of_wrn_28_10():
    """Only the norms stand elsewhere. Each is as wide as what it follows, or else as what it precedes."""

    def shapes(name):
        return sorted(tuple(m.weight.shape) for m in on_meta(name).modules() if isinstance(m, nn.Conv2d))

    assert shapes("wrn-26-10") == shapes("wrn-28-10")
    after = 16 + sum(width * (2 * 4 + 1) for width in (160, 320, 640))
    before = (16 + 160 * 7) + (160 + 320 * 7) + (320 + 640 * 7) + 640
    assert count(on_meta("wrn-26-10")) - count(on_meta("wrn-28-10")) == 2 * (after - before) == 2240


@pytest.mark.parametrize("name", [name for name, entry in TABLE.items() if isinstance(entry, Described)])
def test_the_line_in_the_list_is_true(name):
    told = re.fullmatch(r"(\d+) px: .+; (\d+\.(\d+)) M", TABLE[name].about)
    assert int(told[1]) == side_of(name)
    assert f"{count(on_meta(name)) / 1e6:.{len(told[3])}f}" == told[2]
    assert len(TABLE[name].about) < 95


def test_how_a_transformer_starts():
    network = backbone("vit-tiny")
    assert not network.stem.token.any()
    for weight in (network.stem.positions, network.body[3].attention.ask.weight, network.body[3].perceptron[2].weight):
        assert float(weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    assert float(network.stem.project.weight.detach().std()) == pytest.approx(1 / math.sqrt(48), rel=0.03)
    with pytest.raises(BalcalError, match="made for 32 x 32 pixels, the images have 64 x 64: resize them"):
        network(torch.randn(1, 3, 64, 64))
    moved = network.stem(torch.zeros(1, 3, 32, 32))
    torch.testing.assert_close(moved, network.stem.positions, msg="a black image is nothing but positions")


def test_the_padded_shortcut_is_the_identity():
    block = backbone("resnet-8").body[1].eval()
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(1, 16, 8, 8)
    out = block(x)
    torch.testing.assert_close(out[:, :16], x[:, :, ::2, ::2])
    assert not out[:, 16:].any()


def test_the_fast_network_is_the_one_that_was_tried():
    """2 x 2 stem to 24, three stages of two 3 x 3 convolutions with pooling after the first, maximum over places."""
    network = backbone("cnn-32")
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    shapes = [(c.in_channels, c.out_channels, c.kernel_size[0]) for c in convs]
    assert shapes == [
        (3, 24, 2),
        *((a, b, 3) for a, b in ((24, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256))),
    ]
    assert count(network) == 24 * 3 * 4 + 24 + sum(9 * a * b for a, b, side in shapes if side == 3) + 2 * 2 * (
        64 + 128 + 256
    )
    kinds = [type(layer).__name__ for layer in network.body[1]]
    assert kinds == ["Conv2d", "MaxPool2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d", "ReLU"]
    x, sides = torch.randn(2, 3, 32, 32), []
    for block in network.blocks():
        x = block(x)
        sides.append(x.shape[-1])
    assert sides == [31, 15, 7, 3]
    by_hand = torch.stack([torch.stack([channel.max() for channel in image]) for image in x])
    assert torch.equal(network.forward_head(x), by_hand)


def test_tiny_keeps_four_corners():
    network = backbone("resnet-18-tiny")
    assert (network.num_features, network.map_channels) == (2048, 512)
    feature_map = torch.rand(1, 512, 8, 8)
    features = network.forward_head(feature_map).view(512, 2, 2)
    torch.testing.assert_close(features[:, 1, 0], feature_map[0, :, 4:, :4].mean((1, 2)))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["vanilla", "balcal", "balcal-noadapter", "balcal conv", "tst"])
def test_wrap_with_every_kind_of_head(name, method):
    chosen, _, adapter = method.partition(" ")
    made = balcal.registry.recipe("digits", chosen, overrides=["head.adapter=conv"] if adapter else []).method
    network, side = backbone(name), side_of(name)
    if adapter and name == "vit-tiny":
        with pytest.raises(BalcalError, match="VisionTransformer has none: use adapter=vector"):
            balcal.wrap(network, 10, made)
        return
    model = balcal.wrap(network, 10, made)
    x = torch.randn(2, 3, side, side)
    for weight in network.parameters():
        weight.requires_grad_(False)  # their gradients were looked at above
    model.loss(x, torch.arange(2)).backward()
    assert all(w.grad is not None for w in model.head.parameters())
    if len(network.blocks()) < 20:
        torch.testing.assert_close(model(x).exp().sum(1), torch.ones(2))


def test_tokens_of_others_are_refused_too():
    class Tokens(nn.Module):
        num_features = 8

        def forward_features(self, x):
            return x.flatten(2).transpose(1, 2)

        def forward_head(self, x, pre_logits=False):
            return x[:, 0]

    made = balcal.registry.recipe("digits", "balcal", overrides=["head.adapter=conv"]).method
    with pytest.raises(BalcalError, match=r"gives a map \(N, C, H, W\): use adapter=vector"):
        balcal.wrap(Tokens(), 4, made)(torch.randn(2, 8, 3, 3))


@pytest.mark.parametrize("name", FAMILIES)
def test_plp_and_pcs_find_the_blocks(name):
    model = balcal.wrap(backbone(name), 10, "balcal")
    found = groups(model)
    assert [id(w) for group in found for w in group] == [id(w) for w in model.parameters()]
    names = block_names(model.backbone)
    assert names[0] == "backbone.stem"
    assert names[-1] == "head"
    assert len(names) == len(found) == len(set(names))
    entries = [entry for entry in model.state_dict() if not any(entry.startswith(f"{block}.") for block in names)]
    assert all(entry.startswith(("backbone.norm.", "posthoc.")) for entry in entries), (
        "a lone norm is of the last epoch"
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_saved_and_loaded_it_says_the_same(name, tmp_path):
    first, x = backbone(name), torch.randn(2, 3, side_of(name), side_of(name))
    with torch.no_grad():
        first(x)  # statistics of norms move
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    second = backbone(name)
    second.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(first.eval()(x), second.eval()(x))


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "cnn-8"])
def test_channels_last_is_kept(name):
    x = torch.randn(2, 3, side_of(name), side_of(name))
    network = backbone(name).eval()
    wanted = network(x)
    network = network.to(memory_format=torch.channels_last)
    feature_map = network.forward_features(x.to(memory_format=torch.channels_last))
    assert feature_map.ndim == 3 or feature_map.is_contiguous(memory_format=torch.channels_last)
    assert float((network.forward_head(feature_map) - wanted).abs().max() / wanted.abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet-8", "vit-tiny"])
def test_exported_for_any_batch(name):
    network = backbone(name).eval()
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(network, (torch.randn(2, 3, 32, 32),), dynamic_shapes=(batch,)).module()
    x = torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(exported(x), network(x))


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_is_divided_at_its_last_norm_or_not_at_all(name):
    network, x = backbone(name).eval(), torch.randn(2, 3, side_of(name), side_of(name))
    halves = divided(network)
    assert (halves is not None) == name.startswith(("wrn-10", "wrn-16", "wrn-28", "wrn-40", "densenet", "cnn-32"))
    if halves:
        raw = halves[0](x)
        assert raw.min() < 0
        torch.testing.assert_close(halves[1](raw), network.forward_features(x))
