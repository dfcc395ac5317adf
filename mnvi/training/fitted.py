"""What training returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from mnvi.likelihoods import Likelihood
from mnvi.likelihoods._noted import noted

Row = dict[str, float]


@dataclass(frozen=True)
class Fitted:
    """A trained network and how its training went.

    Attributes:
        model: the network that was given to :func:`mnvi.fit`, trained; with validation data, as in the best epoch.
        likelihood: what its output means.
        history: one row for each epoch: epoch, loss, nll, kl, and the scores on the validation data.
        best_epoch: the epoch with the lowest validation NLL, counted from 1; the last one without validation data.
        stopped_early: whether the validation NLL had not improved for ``patience`` epochs.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(4), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> fitted = mnvi.fit(net, (torch.randn(64, 4), torch.randn(64)), epochs=2, progress=False)
        >>> len(fitted.history), fitted.best_epoch, fitted.model is net
        (2, 2, True)
    """

    model: nn.Module
    likelihood: Likelihood
    history: list[Row]
    best_epoch: int
    stopped_early: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's output."""
        return self.model(*args, **kwargs)


def likelihood_of(
    caller: str, model: nn.Module | Fitted, likelihood: Likelihood | None
) -> tuple[nn.Module, Likelihood]:
    """The network and what its output means."""
    network = model.model if isinstance(model, Fitted) else model
    if not isinstance(network, nn.Module):
        raise TypeError(f"{caller}: model is a {type(network).__name__}; expected a network, or what mnvi.fit returned")
    if likelihood is None:
        likelihood = model.likelihood if isinstance(model, Fitted) else noted(network)
    if likelihood is None:
        raise ValueError(
            f"{caller}: likelihood=None, and this network was not trained by mnvi.fit; say what its output means, e.g. "
            "likelihood=mnvi.CategoricalLikelihood() for classes or mnvi.GaussianLikelihood() for numbers"
        )
    return network, likelihood
