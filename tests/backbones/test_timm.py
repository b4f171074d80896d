"""`timm:NAME`, with timm where it is installed, and with a stand-in where it is not."""

import os
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from runs_helper import trained
from torch import nn

import balcal
from balcal.backbones.small import SmallCnn
from balcal.core import Backbone, BalcalError
from balcal.methods.plp import groups
from balcal.registry import backbone

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import timm

        WHY = ""
    except (ImportError, RuntimeError) as error:
        timm, WHY = None, str(error).split("\n")[0]
with_timm = pytest.mark.skipif(timm is None, reason=f"timm is not here ({WHY}): docs/extend.md says how to get it")


class Hidden(SmallCnn):
    """As timm's MobileNetV3: a layer after pooling, so that features are wider than the map."""

    def __init__(self, channels):
        super().__init__(channels, side=8, width=16, features=64)
        del self.map_channels
        self.num_features, self.head_hidden_size = 32, 64


class StandIn:
    """As much of timm as we use. `online` says whether weights can be had."""

    __version__ = "0"
    online = True
    models = SimpleNamespace(
        load_state_dict=lambda path, weights_only=False: torch.load(path, weights_only=weights_only)  # as timm 1.0.9
    )

    def __init__(self):
        self.asked = []

    def is_model(self, name):
        return name == "hidden"

    def list_models(self, pattern="*"):
        return ["hidden"] if "hid" in pattern or pattern == "*" else []

    def create_model(self, name, pretrained, num_classes, in_chans):
        self.asked.append((name, pretrained, num_classes, in_chans))
        if pretrained and not self.online:
            raise OSError("no route to host\nand more")
        return Hidden(in_chans)


@pytest.fixture
def stand_in(monkeypatch):
    made = StandIn()
    monkeypatch.setitem(sys.modules, "timm", made)
    return made


def test_the_map_may_be_narrower_than_the_features(stand_in):
    network = backbone("timm:hidden", channels=1)
    assert stand_in.asked == [("hidden", False, 0, 1)]
    assert (network.num_features, network.map_channels) == (64, 32)
    made = balcal.registry.recipe("digits", "balcal", overrides=["head.adapter=conv"]).method
    assert balcal.wrap(network, 10, made)(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_weights_of_a_file(stand_in, tmp_path):
    source, file = Hidden(1).state_dict(), tmp_path / "w.pt"
    torch.save({**source, "fc.weight": torch.zeros(3)}, file)
    loaded = backbone(f"timm:hidden@{file}", channels=1).state_dict()
    assert all(torch.equal(loaded[name], source[name]) for name in source)
    source.pop("stem.0.bias")
    torch.save(source, file)
    with pytest.raises(BalcalError, match=r"w\.pt are not for `hidden`: 1 are missing, as stem\.0\.bias"):
        backbone(f"timm:hidden@{file}", channels=1)
    with pytest.raises(BalcalError, match=r"are not for `hidden`: Error.* loading"):
        backbone(f"timm:hidden@{file}", channels=3)
    file.write_bytes(b"nothing")
    with pytest.raises(BalcalError, match="are not for `hidden`"):
        backbone(f"timm:hidden@{file}", channels=1)
    with pytest.raises(BalcalError, match="there is no file nowhere with weights for `hidden`"):
        backbone("timm:hidden@nowhere")


class Malicious:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_no_code_runs_from_a_file_of_weights(stand_in, tmp_path):
    torch.save({"stem.0.bias": Malicious(tmp_path / "ran")}, tmp_path / "w.pt")
    with pytest.raises(BalcalError, match="are not for `hidden`: Weights only load failed"):
        backbone(f"timm:hidden@{tmp_path / 'w.pt'}", channels=1)
    stand_in.models = SimpleNamespace(load_state_dict=lambda path: torch.load(path, weights_only=False))  # as before
    with pytest.raises(BalcalError, match=r"timm 0 would run code that is hidden in .*use 'timm>=1.0.9'"):
        backbone(f"timm:hidden@{tmp_path / 'w.pt'}", channels=1)
    assert not (tmp_path / "ran").exists()


def test_a_run_needs_pretrained_weights_only_to_begin(stand_in, tmp_path):
    run = trained("balcal", tmp_path, settings=["plan.epochs=1", "task.backbone=timm:hidden@pretrained"])
    assert stand_in.asked[0] == ("hidden", True, 0, 1)
    stand_in.online = False
    assert balcal.load(run)(torch.randn(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(BalcalError, match=r"neither in its cache nor could be fetched \(no route to host\): go online"):
        backbone("timm:hidden@pretrained")


def test_names_that_timm_does_not_have(stand_in):
    with pytest.raises(BalcalError, match="timm 0 has no model `hid`; similar: hidden"):
        backbone("timm:hid")
    with pytest.raises(BalcalError, match=r"no model `x`; 1 are listed by timm.list_models\(\)"):
        backbone("timm:x")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModuleNotFoundError("No module named 'timm'", name="timm"), "needs timm .*pip install timm"),
        (
            ModuleNotFoundError("No module named 'torchvision'", name="torchvision"),
            "needs timm with a torchvision that",
        ),
        (
            RuntimeError("operator torchvision::nms does not exist"),
            r"needs .*nms does not exist\).*--no-deps torchvision",
        ),
    ],
)
def test_without_timm_one_sentence_says_what_to_install(error, told, monkeypatch):
    def fails(name):
        raise error

    monkeypatch.setattr("importlib.import_module", fails)
    with pytest.raises(BalcalError, match=f"`timm:resnet18` {told}"):
        backbone("timm:resnet18")


PAIRS = [
    ("resnet-18-imagenet", "resnet18"),
    ("resnet-50-imagenet", "resnet50"),
    ("resnet-101-imagenet", "resnet101"),
    ("densenet-121-imagenet", "densenet121"),
    ("vit-b-16", "vit_base_patch16_224"),
]


@with_timm
@torch.no_grad()
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_the_same_network_as_timm_s(ours, theirs):
    """Both name their parts differently, but in the same order."""
    mine, other = backbone(ours).eval(), backbone(f"timm:{theirs}").eval()
    assert isinstance(other, Backbone)
    assert mine.num_features == other.num_features
    entries = list(other.state_dict().values())
    assert [t.shape for t in mine.state_dict().values()] == [t.shape for t in entries]
    for name, tensor in other.state_dict().items():
        # timm starts the last norms of blocks at 0 and the class token near it: what follows on them would not be seen
        if "token" in name:
            tensor.normal_()
        elif tensor.ndim == 1:
            tensor.uniform_(0.5, 1) if name.endswith(("weight", "var")) else tensor.normal_(std=0.2)
    mine.load_state_dict(dict(zip(mine.state_dict(), entries, strict=True)))
    x = torch.randn(1, 3, 224, 224)
    maps = [network.forward_features(x) for network in (mine, other)]
    vectors = [network.forward_head(m, pre_logits=True) for network, m in zip((mine, other), maps, strict=True)]
    for a, b in (maps, vectors):
        assert apart(a, b) < 1e-5
    for block in (mine.blocks()[0], mine.blocks()[2]):
        weight = next(weight for weight in block.parameters() if weight.ndim > 1)
        weight.mul_(1.1)
        assert apart(mine(x), vectors[1]) > 1e-3, "a difference would be seen"
        weight.div_(1.1)


def apart(a, b):
    return float((a - b).abs().max() / b.abs().max())


@with_timm
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_atto"])
def test_wrap_any_model_of_timm(name):
    model = balcal.wrap(backbone(f"timm:{name}"), 10, "balcal")
    x = torch.randn(2, 3, 224, 224)
    model.loss(x, torch.arange(2)).backward()
    assert model(x).shape == (2, 10)
    found = [weight for group in groups(model) for weight in group]
    assert {id(w) for w in found} == {id(w) for w in model.parameters()}
    assert len(groups(model)) > 4


@with_timm
def test_files_of_timm_s_weights(tmp_path):
    first = timm.create_model("resnet18", num_classes=7)
    torch.save(first.state_dict(), tmp_path / "w.pth")
    second = backbone(f"timm:resnet18@{tmp_path / 'w.pth'}")
    assert torch.equal(first.conv1.weight, second.conv1.weight)
    assert isinstance(second.fc, nn.Identity)
    with pytest.raises(BalcalError, match="are not for `resnet34`"):
        backbone(f"timm:resnet34@{tmp_path / 'w.pth'}")


@with_timm
def test_real_names():
    with pytest.raises(BalcalError, match="has no model `resnet19`"):
        backbone("timm:resnet19")
