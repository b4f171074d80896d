"""examples/zoo.py: foreign models go all the way, with what is installed."""

import runpy
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    zoo = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "zoo.py"))
EXPORTED = ("conv_classifier", "dict_input", "compiled", "bert")
CLASSIFIERS = {"hidden_names": "last", "one_logit": "2", "with_auxiliary": "main", "conv_classifier": "5", "lazy": "2"}


def test_there_are_enough():
    assert len(zoo["ZOO"]) >= 21, "and 8 more with transformers, 8 more with timm"


@pytest.mark.parametrize("name", zoo["ZOO"])
def test_a_foreign_model_goes_all_the_way(name, tmp_path):
    row = zoo["visit"](name, tmp_path, ".pt2" if name in EXPORTED else None)
    assert row["loaded differs"] == 0
    assert row["exported differs"] < 1e-5
    assert row["classifier"] == CLASSIFIERS.get(name, row["classifier"])
