"""Joined runs: the runs that they consist of, and the mean of their predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from balcal.build import as_method
from balcal.core import BalcalError, Predictions
from balcal.methods.joining import parts
from balcal.recipe import Method, Recipe
from balcal.runs import Run

MEMBERS = "members"
"""key in what a joined run has in place of weights: [address, epoch, seal of its weights] of each"""


def run_of(run: Run, recipe: Recipe) -> Run:
    """The run of this recipe beside another one; the run itself, if it is the run of this recipe."""
    beside = Run(run.root, recipe, run.say)
    return run if beside.fingerprint == run.fingerprint else beside


def parts_of(run: Run, method: Method) -> list[tuple[Run, Method]]:
    """The same as `members_of`, whether they are there or not."""
    return [(run_of(run, recipe), as_method(how)) for recipe, how in parts(run.recipe, as_method(method))]


def members_of(run: Run, method: Method) -> list[tuple[Run, Method]]:
    """The runs that a joined run consists of, and how each is evaluated; empty for a run of its own weights.

    It is an error if one is missing, or is not the one that was joined.
    """
    found = parts_of(run, method)
    if found and run.finished and seals(found) != joined_seals(run):
        raise BalcalError(f"a member of {run.path} has been trained anew since: `balcal train` joins them again")
    return found


def seals(members: Sequence[tuple[Run, Method]]) -> list[list[Any]]:
    """What identifies the weights of each member."""
    written = []
    for run, method in members:
        if not run.finished:
            raise BalcalError(f"{run.path}, a run that is joined, is missing or not finished: `balcal train` trains it")
        epoch = method.select(run.ending().history)
        written.append([run.recipe.address(), epoch, run.made_from("", epoch).weights])
    return written


def joined_seals(run: Run) -> list[list[Any]]:
    """What was joined, as the run recorded it."""
    return cast(list[list[Any]], run.load_weights(0)[MEMBERS])


def mean_of(predictions: Sequence[Predictions]) -> Predictions:
    """The mean of the probabilities of several models for the same samples, in float64.

    >>> half, sure = (Predictions(torch.tensor([p]).log(), torch.tensor([0])) for p in ([0.5, 0.5], [1.0, 0.0]))
    >>> mean_of([half, sure]).probs
    tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    first = predictions[0]
    if any(not torch.equal(each.labels, first.labels) for each in predictions):
        raise BalcalError("these runs were evaluated on different samples: only models of one test split can be joined")
    tables = torch.stack([each.log_probs.double() for each in predictions])
    return Predictions(tables.logsumexp(0) - math.log(len(tables)), first.labels, first.role)


def mutual_information(log_probs: Tensor) -> Tensor:
    """(N,) entropy of the mean prediction, less the mean entropy of the members (M, N, K); 0 where they agree.

    It is the mutual information of the label and of the member that is asked.

    Parameters
    ----------
    log_probs
        (M, N, K), of each member.

    >>> sure = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> mutual_information(sure.log()), mutual_information(torch.full((2, 1, 2), 0.5).log())
    (tensor([0.6931], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    table = log_probs.double()
    mean = table.logsumexp(0) - math.log(len(table))
    return (entropy(mean) - entropy(table).mean(0)).clamp(min=0.0)


def entropy(log_probs: Tensor) -> Tensor:
    return -torch.where(log_probs > -torch.inf, log_probs.exp() * log_probs, 0.0).sum(-1)


def disagreement(log_probs: Tensor) -> Tensor:
    """(N,) share of the pairs of members (M, N, K) that name different classes.

    >>> votes = torch.eye(3)[torch.tensor([[0, 1], [0, 0], [0, 2]])]
    >>> disagreement(votes.log())
    tensor([0., 1.], dtype=torch.float64)
    """
    members, _, classes = log_probs.shape
    votes = torch.nn.functional.one_hot(log_probs.argmax(-1), classes).sum(0).double()
    alike = (votes * (votes - 1)).sum(-1) / (members * (members - 1))
    return 1 - alike
