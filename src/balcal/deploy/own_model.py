"""Save, load and export a model that `balcal.wrap` made of a user's network."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from balcal import registry
from balcal.backbones.tapped import CustomFeatures, TappedNetwork
from balcal.build import as_method, posthoc_of, spec_of, wrap
from balcal.core import BalcalError, Predictions
from balcal.data.loaders import as_inputs, change, samples_of, tensors_of
from balcal.deploy.export import OUTPUTS, TOLERANCE, WITHOUT_ONNX, quietly
from balcal.deploy.own_card import card
from balcal.deploy.predictor import CARD, OwnPredictor, open_onnx, open_program
from balcal.model import Model, evaluating
from balcal.recipe import Method
from balcal.runtime.files import write_atomic

SAVED = "balcal.model"
"""the key of a saved model's description"""


def save(model: Model, path: str | Path) -> Path:
    """Save a model to one file: weights, gamma, fitted post-hoc map, method. `balcal.load(path, network=)` reads it.

    Parameters
    ----------
    model
        A model of `balcal.wrap`.
    path
        The file to write, usually `*.pt`. It holds no code.

    >>> import tempfile
    >>> model = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 3)
    >>> file = save(model, Path(tempfile.mkdtemp()) / "model.pt")
    >>> fresh = restored(file, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> x = torch.randn(5, 4)
    >>> torch.equal(fresh(x), model.eval()(x))
    True
    """
    if not isinstance(model, Model):
        raise BalcalError(f"save takes a model of balcal.wrap, not a {type(model).__name__}")
    if Path(path).suffix in (".onnx", ".pt2"):
        raise BalcalError(f"save writes weights, as FILE.pt, and not {Path(path).name}: balcal.export writes that")
    buffer = io.BytesIO()
    torch.save({SAVED: json.dumps(_described(model)), "state": model.state_dict()}, buffer)
    return _write(Path(path), buffer.getvalue())


def _write(path: Path, content: bytes) -> Path:
    try:
        write_atomic(path, content)
    except OSError as error:
        raise BalcalError(f"cannot write {path} ({error.strerror})") from None
    return path


def _described(model: Model) -> dict[str, Any]:
    from balcal import __version__

    backbone, spec = model.backbone, model.method.posthoc
    return {
        "balcal": __version__,
        "method": _name_of(model.method),
        "num_classes": model.num_classes,
        "posthoc": posthoc_of(spec),
        "classifier": backbone.path if isinstance(backbone, TappedNetwork) else None,
        "features": isinstance(backbone, CustomFeatures),
        "width": model.head_width,
        "solved_on": model.solved_on,
    }


def _name_of(method: Method) -> str | None:
    """The name under which the registry has the method, its post-hoc map aside; None for one's own."""
    trained = method.for_training()
    try:
        known = registry.method(trained.name)
    except BalcalError:
        return None
    return trained.name if replace(known, posthoc=method.posthoc, name=method.name) == method else None


def restored(path: Path, network: nn.Module | None, method: Method | str | None = None) -> Model:
    """The model that `save` wrote, on a network built as the saved one was (or on a model of `balcal.wrap`)."""
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        meta = json.loads(saved[SAVED])
    except OSError as error:
        raise BalcalError(f"cannot read {path} ({error.strerror})") from None
    except Exception:
        raise BalcalError(f"{path} was not written by balcal.save, or it is damaged") from None
    if network is None:
        raise BalcalError(f"{path} has weights, not the network's code: pass network=, built as the saved one was")
    chosen = method if method is not None else meta["method"]
    model = network if isinstance(network, Model) else _wrapped(path, network, meta, chosen)
    if model.num_classes != meta["num_classes"]:
        raise BalcalError(f"{path} is a model of {meta['num_classes']} classes, and this one has {model.num_classes}")
    if meta["posthoc"]:
        spec = spec_of(meta["posthoc"]["name"], meta["posthoc"]["settings"])
        model.method = replace(model.method, posthoc=spec)
        model.posthoc = spec.identity(model.num_classes).to(model.head.weights.device)
    try:
        model.load_state_dict(saved["state"])
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1:2]) or str(error)
        raise BalcalError(f"the weights in {path} are not of this network: {reason[:200].rstrip('. ')}") from None
    model.solved_on = meta["solved_on"]
    return model.eval()


def _wrapped(path: Path, network: nn.Module, meta: Mapping[str, Any], method: Method | str | None) -> Model:
    if method is None:
        raise BalcalError(f"{path} was trained by a method of your own: pass method= as well")
    if meta["features"]:
        raise BalcalError(f"{path} was wrapped with features=: pass network=balcal.wrap(...) as it was made then")
    return wrap(
        network, meta["num_classes"], as_method(method), classifier=meta["classifier"], width=meta["width"], quiet=True
    )


class Shipped(nn.Module):
    """Inputs by position in; probabilities and their logarithms out."""

    def __init__(self, model: Model, example: Any) -> None:
        super().__init__()
        self.model, self.example = model, example
        if isinstance(example, Mapping) and not all(isinstance(part, Tensor) for part in example.values()):
            raise BalcalError("export takes a tensor, a tuple of tensors or a dictionary of tensors as the example")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        given: Any = inputs[0]
        if isinstance(self.example, Mapping):
            given = dict(zip(self.example, inputs, strict=True))
        elif not isinstance(self.example, Tensor):
            given = inputs
        log_probs: Tensor = self.model(given)
        return log_probs.exp(), log_probs


def export(
    model: Model,
    example: Any,
    path: str | Path,
    predictions: Predictions | None = None,
    classes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Export a model to one file, and write its card beside it. The file is compared with the model before.

    Parameters
    ----------
    model
        A model of `balcal.wrap`.
    example
        A batch of inputs as the model takes them: a tensor, a tuple or a dictionary of tensors.
    path
        `FILE.onnx`, or `FILE.pt2` for torch.export. `balcal.load` opens it.
    predictions, classes
        What the card tells: predictions for test data, and the names of the classes.

    >>> import tempfile
    >>> model = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 3)
    >>> card = export(model, torch.randn(2, 4), Path(tempfile.mkdtemp()) / "model.pt2")
    >>> card["verified"]["largest_difference"] < 1e-5
    True
    """
    file = Path(path)
    if file.suffix not in (".onnx", ".pt2"):
        raise BalcalError(f"export writes FILE.onnx or FILE.pt2, not {file.name}; balcal.save writes weights")
    made, example = card(model, predictions, classes), _example(example)
    if file.suffix == ".onnx" and any(w.dtype.itemsize < 4 for w in model.parameters()):
        raise BalcalError("ONNX has no half precision on every machine: export model.float(), or write FILE.pt2")
    tensors, count = tensors_of(example), samples_of(example)
    names = list(example) if isinstance(example, Mapping) else [f"input{n}" for n in range(len(tensors))]
    names = ["x"] if isinstance(example, Tensor) else names
    made["inputs"] = [
        {"name": name, "dtype": str(t.dtype).removeprefix("torch."), "shape": ["N", *t.shape[1:]]}
        for name, t in zip(names, tensors, strict=True)
    ]
    two = change(example, lambda t: torch.cat([t] * (1 if count > 1 else 2))) if count < 2 else example
    with evaluating(model), torch.no_grad(), _not_compiled(model):
        _passed(model, two)  # what is checked at the first batch is checked by now
        shipped = Shipped(model, example)
        program = _program(shipped, tensors_of(two))
        graph = _converted(program, names) if file.suffix == ".onnx" else program
        opened = (open_onnx if file.suffix == ".onnx" else open_program)(_packed(file.suffix, graph, made))
        made["verified"] = _verified(opened, model, two)  # type: ignore[arg-type]
    _write(file, _packed(file.suffix, graph, made))
    _write(file.with_name(f"{file.name}.card.json"), (json.dumps(made, indent=2) + "\n").encode())
    _write(file.with_name(f"{file.name}.card.md"), str(made).encode())
    return made | {"file": str(file), "bytes": file.stat().st_size}


def _example(given: Any) -> Any:
    try:
        return as_inputs(given)
    except BalcalError:
        raise BalcalError(
            f"export takes a batch of inputs as the example, a tensor or several, not {type(given).__name__}"
        ) from None


def _passed(model: Model, example: Any) -> None:
    try:
        model(example)
    except BalcalError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BalcalError(
            f"the example does not go through the model ({reason:.200}): pass inputs, without labels"
        ) from None


@contextmanager
def _not_compiled(model: Model) -> Iterator[None]:
    """A compiled backbone is exported as it was before."""
    own = vars(model).pop("features", None)
    try:
        yield
    finally:
        if own is not None:
            vars(model)["features"] = own


def _program(shipped: Shipped, tensors: list[Tensor]) -> Any:
    batch = torch.export.Dim("batch", min=1)
    try:
        with quietly():
            return torch.export.export(
                shipped, tuple(tensors), dynamic_shapes={"inputs": tuple({0: batch} for _ in tensors)}
            )
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise BalcalError(
            f"this network cannot be exported ({type(error).__name__}: {reason}): use balcal.save, or a network "
            "without control flow that depends on data"
        ) from None


def _converted(program: Any, names: Sequence[str]) -> Any:
    """The program as ONNX."""
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise BalcalError(WITHOUT_ONNX) from None
    settings: Any = {"dynamo": True, "external_data": False, "verbose": False}
    with quietly():
        found = torch.onnx.export(program, (), input_names=list(names), output_names=list(OUTPUTS), **settings)
    if found is None:
        raise BalcalError("the ONNX exporter gave nothing: export to FILE.pt2")
    return found.model_proto


def _packed(suffix: str, made: Any, card: Mapping[str, Any]) -> bytes:
    if suffix == ".pt2":
        buffer = io.BytesIO()
        with quietly():
            torch.export.save(made, buffer, extra_files={CARD: json.dumps(card)})
        return buffer.getvalue()
    import onnx

    onnx.helper.set_model_props(made, {CARD: json.dumps(card), f"{CARD}.md": str(card)})
    content: bytes = made.SerializeToString()
    return content


def _verified(opened: OwnPredictor, model: Model, example: Any) -> dict[str, Any]:
    """Largest difference to the live model, for the example as a whole, its first sample, and seven of it."""
    count, largest, sizes = samples_of(example), 0.0, []
    for rows in ([0], list(range(count)), [n % count for n in range(7)]):
        part = change(example, lambda tensor, rows=rows: tensor[rows])  # type: ignore[misc]
        live = model(part).exp().float().cpu().numpy()
        largest = max(largest, float(np.abs(opened.predict_proba(part) - live).max()))
        sizes.append(len(rows))
    if not largest <= TOLERANCE:
        raise BalcalError(f"the exported model differs from the live one by {largest:.1e}: nothing was written")
    return {"batch_sizes": sizes, "largest_difference": largest}
