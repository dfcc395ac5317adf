"""Which likelihood a network was trained or tuned with, so that nobody has to say it twice."""

from __future__ import annotations

from torch import nn

from mnvi.likelihoods.base import Likelihood

_NAME = "noted_likelihood"


def note(model: nn.Module, likelihood: Likelihood) -> None:
    """Remember the likelihood beside a model; copies and pickles keep it, ``state_dict`` does not change."""
    vars(model)[_NAME] = likelihood  # past nn.Module's own __setattr__, which would make it a part of the model


def noted(model: nn.Module) -> Likelihood | None:
    """The likelihood that :func:`note` remembered."""
    return vars(model).get(_NAME)
