"""How good predictions and their uncertainty are, for any kind of target."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnvi import metrics
from mnvi.likelihoods import Likelihood
from mnvi.training.fitted import Fitted, likelihood_of
from mnvi.training.loaders import labelled
from mnvi.training.predicting import device_of, dtype_of, read
from mnvi.training.prediction import Prediction

Scores = dict[str, float]


def evaluate(
    model: nn.Module | Fitted,
    data: Any,
    *,
    likelihood: Likelihood | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Scores:
    """Scores of predictions on labelled data, by name.

    Always ``nll``, the mean negative log-probability of the targets. For classes ``error`` (share of wrong ones),
    ``ece``, ``aumrc`` (area under the error-rejection curve) and ``brier``; see :mod:`mnvi.metrics`. For numbers
    ``rmse`` and ``coverage`` of 95 % intervals.

    Args:
        model: what :func:`mnvi.fit` returned, the network it was given, or any network with a likelihood.
        data: a pair of inputs and targets, or batches of such pairs.
        likelihood: what the network's output means; needed for a network that :func:`mnvi.fit` has not trained.
        batch_size: for a pair.
        device: where to compute; by default where the network is.
        seed: of samples that a likelihood or a method draws.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(4), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> sorted(mnvi.evaluate(net, (torch.randn(8, 4), torch.randn(8)), likelihood=mnvi.GaussianLikelihood()))
        ['coverage', 'nll', 'rmse']
    """
    network, likelihood = likelihood_of("evaluate", model, likelihood)
    batches = labelled("evaluate", "data", data, batch_size, dtype_of(network))
    return scores_of(*read(network, likelihood, batches, device_of(network, device), seed))


def scores_of(prediction: Prediction, targets: Tensor, log_probs: Tensor) -> Scores:
    """Scores from predictions, their targets and the log-probability of each target."""
    found = {"nll": -float(log_probs.double().mean())}
    if prediction.mean is not None:
        lower, upper = prediction.interval(0.95)
        inside = (lower <= targets) & (targets <= upper)
        found["rmse"] = float((prediction.mean.double() - targets.double()).square().mean().sqrt())
        return {**found, "coverage": float(inside.double().mean())}
    assert prediction.probs is not None
    probs, labels = prediction.probs, targets.long()
    if prediction.binary:
        probs = torch.stack([1 - probs, probs], -1)
    probs, labels = probs.reshape(-1, probs.shape[-1]), labels.reshape(-1)
    chosen = {"error": metrics.misclassification, "ece": metrics.ece, "aumrc": metrics.aumrc, "brier": metrics.brier}
    return {**found, **{name: float(score(probs, labels)) for name, score in chosen.items()}}
