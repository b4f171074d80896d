"""A text and an image classifier of transformers, built from their configs, trained by the real Trainer."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import balcal

pytestmark = pytest.mark.filterwarnings("ignore")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers", reason="transformers is not here: pip install 'balcal[huggingface]'")
    pytest.importorskip("accelerate", reason="accelerate is not here: pip install 'balcal[huggingface]'")
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainingArguments,
        ViTConfig,
        ViTForImageClassification,
        pipeline,
    )

    from balcal.adapters.huggingface import Calibrated


def sentences(n, seed):
    """Which of three words occurs most among fifteen, with one label in ten wrong: text made on the spot."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 4, (n, 15)) + rng.integers(0, 2, (n, 15)) * 10
    labels = np.array([np.bincount(row[row < 4], minlength=4)[1:].argmax() for row in ids])
    labels = np.where(rng.random(n) < 0.1, rng.integers(0, 3, n), labels)
    return [{"input_ids": torch.tensor(i), "labels": torch.tensor(y)} for i, y in zip(ids, labels, strict=True)]


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=3, max_position_embeddings=20, **sizes))


def vit():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=10, **sizes))


def digits():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return [{"pixel_values": i, "labels": torch.tensor(k)} for i, k in zip(x, y, strict=True)]


def trainer_of(model, calibrated, train, val, folder, **more):
    settings = {"per_device_train_batch_size": 50, "per_device_eval_batch_size": 200, "learning_rate": 5e-3}
    arguments = TrainingArguments(
        folder, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=0,
        **({"eval_strategy": "epoch"} | settings | more),
    )  # fmt: skip
    return Trainer(
        model,
        arguments,
        train_dataset=train,
        eval_dataset=val,
        compute_loss_func=calibrated.loss,
        callbacks=[calibrated],
    )


def test_text_by_balcal_auto(tmp_path):
    model = bert()
    plain = {name: tensor.clone() for name, tensor in bert().state_dict().items()}
    calibrated = Calibrated(model, "balcal-auto")
    assert {name for name in plain if not name.startswith("classifier.")} <= set(model.state_dict())
    model.load_state_dict(plain)
    val = sentences(400, 1)
    trainer = trainer_of(model, calibrated, sentences(250, 0), val, tmp_path, num_train_epochs=20)
    trainer.train()
    assert len(calibrated.records) == 20
    assert model.classifier.head.gamma == pytest.approx(calibrated.records[-1]["gamma"])
    told = trainer.predict(val)
    log_probs = torch.tensor(told.predictions)
    torch.testing.assert_close(log_probs.logsumexp(1), torch.zeros(400), atol=1e-5, rtol=0)
    found = balcal.verdict(log_probs=log_probs, labels=told.label_ids)
    assert found.accuracy > 0.5
    assert model.classifier.head.gamma < 1, "250 sentences were learnt by heart"
    assert abs(found.gap) < 0.02, "balanced on these very samples"
    calibrated.calibrate(told.predictions, told.label_ids, "ts")
    after = balcal.verdict(log_probs=torch.tensor(trainer.predict(val).predictions), labels=told.label_ids)
    assert after.nll <= found.nll + 1e-6


def test_images_by_balcal_and_accumulated_gradients(tmp_path):
    data = digits()
    model = vit()
    calibrated = Calibrated(model, "balcal")
    more = {"gradient_accumulation_steps": 2, "num_train_epochs": 6, "per_device_train_batch_size": 25}
    trainer = trainer_of(model, calibrated, data[:1000], data[1000:1300], tmp_path, **more)
    trainer.train()
    assert [set(record) >= {"gamma"} for record in calibrated.records] == [True] * 6
    told = trainer.predict(data[1300:])
    assert balcal.verdict(log_probs=torch.tensor(told.predictions), labels=told.label_ids).accuracy > 0.7


def test_the_loss_is_the_method_s_and_shares_add_up():
    model = bert()
    calibrated = Calibrated(model, "balcal+ls")
    batch = sentences(20, 2)
    ids, labels = torch.stack([b["input_ids"] for b in batch]), torch.stack([b["labels"] for b in batch])
    model.eval()
    model.classifier.train()  # no dropout, and the loss of training
    outputs = model(input_ids=ids)
    branches = model.classifier.outputs
    by_hand = sum(w * balcal.method("ls").loss(z, labels) for w, z in zip((0.5, 0.5), branches.logits, strict=True))
    torch.testing.assert_close(calibrated.loss(outputs, labels), by_hand)
    parts = []
    for part in (slice(0, 5), slice(5, 20)):
        outputs = model(input_ids=ids[part])
        parts.append(calibrated.loss(outputs, labels[part], num_items_in_batch=20))
    torch.testing.assert_close(sum(parts), by_hand)


CASES = [(bert, "balcal-auto", "ts"), (bert, "vanilla+ts", None), (vit, "balcal", None)]


@pytest.mark.parametrize(("make", "method", "posthoc"), CASES)
def test_a_saved_model_is_loaded_by_from_pretrained(make, method, posthoc, tmp_path):
    model, data = make(), digits() if make is vit else sentences(300, 0)
    calibrated = Calibrated(model, method)
    trainer = trainer_of(model, calibrated, data[:100], data[100:200], tmp_path, num_train_epochs=2)
    trainer.train()
    told = trainer.predict(data[200:260])
    by_hand = -told.predictions[np.arange(60), told.label_ids].mean()
    assert told.metrics["test_loss"] == pytest.approx(by_hand, abs=1e-5), "the evaluation loss is the NLL"
    if method == "vanilla+ts":
        assert float(model.classifier.posthoc.temperature) != 1, "fitted on the validation batches"
    if posthoc:
        calibrated.calibrate(told.predictions, told.label_ids, posthoc)
    trainer.save_model(tmp_path / "saved")
    torch.manual_seed(7)
    again = type(model).from_pretrained(tmp_path / "saved").eval()
    batch = {name: torch.stack([row[name] for row in data[200:220]]) for name in data[0] if name != "labels"}
    with torch.no_grad():
        torch.testing.assert_close(again(**batch).logits, model.eval()(**batch).logits, atol=1e-6, rtol=0)


def test_a_pipeline_says_calibrated_probabilities(tmp_path):
    from transformers import BertTokenizer

    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]))
    model = bert()
    calibrated = Calibrated(model, "balcal")
    model.classifier.head.set_gamma(0.3)
    model.save_pretrained(tmp_path / "saved")
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "saved")
    ask = pipeline("text-classification", model=str(tmp_path / "saved"), device="cpu", top_k=None)
    found = {each["label"]: each["score"] for each in ask(["a b c d"])[0]}
    ids = ask.tokenizer("a b c d", return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(**ids).logits[0].exp()
    assert [found[f"LABEL_{k}"] for k in range(3)] == pytest.approx(expected.tolist(), abs=1e-6)
    assert calibrated.adapted.head.gamma == pytest.approx(0.3)


def test_what_is_no_classifier_of_one_class_is_refused():
    for kind in ("multi_label_classification", "regression"):
        model = bert()
        model.config.problem_type = kind
        with pytest.raises(balcal.BalcalError, match=f'this model is for "{kind}", and balcal is for one class per'):
            Calibrated(model, "balcal")
    body = bert().bert
    names = list(body.state_dict())
    with pytest.raises(balcal.BalcalError, match="BertModel has no linear layer for its 3 labels"):
        Calibrated(body, "balcal")
    assert list(body.state_dict()) == names
    with pytest.raises(balcal.BalcalError, match="this network is adapted already"):
        Calibrated(Calibrated(bert(), "balcal").adapted.backbone, "balcal")


def test_without_evaluations_nothing_is_fitted_and_that_is_said(tmp_path):
    model = bert()
    calibrated = Calibrated(model, "balcal-auto+ts")
    trainer = trainer_of(
        model, calibrated, sentences(60, 0), sentences(200, 1), tmp_path, num_train_epochs=1, eval_strategy="no"
    )
    words = r"so nothing has fitted gamma and its post-hoc map: pass eval_dataset=.*trainer.evaluate"
    with pytest.warns(UserWarning, match=words):
        trainer.train()
    before = float(model.classifier.posthoc.temperature)
    trainer.evaluate()
    assert before == 1 != float(model.classifier.posthoc.temperature)
