"""Predictions of a trained run on other images than its test split, stored in the run.

Every set of predictions is stored as soon as it is there, before any post-hoc map that works on predictions. So an
interrupted evaluation resumes, and another post-hoc method needs no further pass through the network. A joined run
takes the predictions of its members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from balcal.build import as_method
from balcal.core import BalcalError, Outputs, Predictions
from balcal.data.dataset import ImageSet, Splits
from balcal.data.splits import digest, manifest
from balcal.evaluation.judge import batches_of, calibrated_model, calibrated_predictions, load_chosen, load_splits
from balcal.evaluation.members import mean_of, members_of
from balcal.methods.joining import maps_networks
from balcal.model import Model
from balcal.recipe import Method
from balcal.runs import Run
from balcal.runtime.provenance import MadeFrom, PredictionFile, fingerprint
from balcal.runtime.randomness import own_randomness


class RunPredictor:
    """Predicts with one run under one method, on one device. Network and images are loaded when first needed."""

    def __init__(self, run: Run, method: Method, device: torch.device) -> None:
        self.run, self.method, self.device = run, as_method(method), device
        self.epoch = self.method.select(run.ending().history)
        self.suffix = "" if self.epoch == run.chosen else PredictionFile.at(self.epoch)
        self.suffix += PredictionFile.seen(self.method.changes.get("views"))
        self.mapped = maps_networks(self.method)
        """whether what is stored has passed the post-hoc map already"""
        after: list[Any] = [] if self.method.views is None else [self.method.views]
        if self.mapped:
            self.suffix += f"+{self.method.changes['posthoc']}"
            after.append(self.method.posthoc)
        self.posthoc = fingerprint(after[0] if len(after) == 1 else after) if after else ""
        self.members = [RunPredictor(*part, device) for part in members_of(run, self.method)]

    @cached_property
    def splits(self) -> Splits:
        splits = load_splits(self.run.recipe.task)
        self.run.check_data(manifest(splits))
        return splits

    @cached_property
    def model(self) -> Model:
        if self.mapped:
            return calibrated_model(self.run, self.method, self.device)[0]
        return load_chosen(self.run, self.method, self.device)

    @cached_property
    def _calibrated(self) -> tuple[nn.Module, Predictions]:
        fitted, test, _ = calibrated_predictions(self.run, self.method, self.device)
        return fitted, test

    def test(self) -> Predictions:
        """Predictions on the run's test split, after its post-hoc map."""
        return self._calibrated[1]

    def _energy_file(self, name: str) -> str:
        return f"{PredictionFile.energy(name)}{self.suffix}"

    def _stored(self, stem: str) -> Predictions | None:
        return self.run.load_predictions(stem, self._made(stem, ""))

    def _made(self, stem: str, data: str) -> MadeFrom:
        return self.run.made_from(stem, self.epoch, data=data, posthoc=self.posthoc)

    def _kept(self, name: str) -> tuple[Predictions, Tensor] | None:
        """Predictions and energies, if both were stored."""
        found, energies = self._stored(f"{name}{self.suffix}"), self._stored(self._energy_file(name))
        return None if found is None or energies is None else (found, energies.log_probs)

    def predictions(self, name: str, images: Callable[[], ImageSet]) -> Predictions:
        """Predictions on these images, after the post-hoc map."""
        raw, _ = self._kept(name) or self._predict(name, images())
        if self.mapped:
            return raw
        with torch.no_grad():
            return replace(raw, log_probs=self._calibrated[0](Outputs.of(raw.log_probs)))

    def of_members(self, name: str, images: Callable[[], ImageSet]) -> Tensor | None:
        """(M, N, K) log-probabilities of the members of a joined run; None for other runs."""
        if not self.members:
            return None
        return torch.stack([each.predictions(name, images).log_probs.double() for each in self.members])

    def energies(self, name: str, images: Callable[[], ImageSet]) -> Tensor | None:
        """(N,) log-sum-exp of the logits, before any post-hoc map; None if there are no fused logits.

        Of a joined run, the mean over its members.
        """
        _, energies = self._kept(name) or self._predict(name, images())
        return energies[:, 0].double() if energies.numel() else None

    @torch.no_grad()
    def _predict(self, name: str, part: ImageSet) -> tuple[Predictions, Tensor]:
        """Compute predictions and energies in one pass, and store both."""
        if self.members:
            return self._keep(name, part, *self._predict_joined(name, part))
        model, found, energies = self.model.eval(), [], []
        batches = batches_of(self.run, part, self.device)
        with own_randomness():
            for x, _ in batches.epoch(0):
                outputs: Outputs = model(x, branches=True)
                log_probs = model.posthoc(outputs) if self.mapped else outputs.log_probs()
                found.append(log_probs.float().cpu())
                energies.append(_energy(outputs).float().cpu())
        if bool(torch.cat(found).isnan().any()):
            raise BalcalError(f"predictions for `{name}` are NaN: the weights of {self.run.path} are not finite")
        return self._keep(name, part, torch.cat(found), torch.cat(energies))

    def _predict_joined(self, name: str, part: ImageSet) -> tuple[Tensor, Tensor]:
        """Mean probabilities and mean energies of the members, from what they have stored or compute now."""
        joined = mean_of([each.predictions(name, lambda: part) for each in self.members])
        energies = [found for each in self.members if (found := each.energies(name, lambda: part)) is not None]
        whole = len(energies) == len(self.members)
        energy = torch.stack(energies).mean(0)[:, None] if whole else torch.empty(len(joined), 0)
        return joined.log_probs, energy

    def _keep(self, name: str, part: ImageSet, log_probs: Tensor, energies: Tensor) -> tuple[Predictions, Tensor]:
        predictions = Predictions(log_probs, part.labels.cpu(), "test")
        energy = Predictions(energies, part.labels.cpu(), "test")
        for stem, each in ((self._energy_file(name), energy), (f"{name}{self.suffix}", predictions)):
            if self._stored(stem) is None:
                self.run.save_predictions(stem, each, self._made(stem, digest(part)))
        return predictions, energy.log_probs


def _energy(outputs: Outputs) -> Tensor:
    """(N, 1); (N, 0) where several classifiers are fused as probabilities, as there are no fused logits then."""
    if len(outputs.weights) > 1 and outputs.fusion == "probs":
        return torch.empty(outputs.logits.shape[1], 0)
    return torch.einsum("b,bnk->nk", outputs.weights, outputs.logits).logsumexp(1, keepdim=True)
