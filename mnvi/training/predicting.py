"""From a network and data to predictions with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical

from mnvi.likelihoods import CategoricalLikelihood, Likelihood
from mnvi.likelihoods._sampling import common_noise
from mnvi.methods import last_layer
from mnvi.methods.montecarlo import seeded
from mnvi.training.fitted import Fitted, likelihood_of
from mnvi.training.loaders import inputs, moved
from mnvi.training.prediction import Prediction, chosen, joined
from mnvi.training.referral import Referral, most_uncertain
from mnvi.values.gaussian import Gaussian
from mnvi.values.samples import Samples


def predict(
    model: nn.Module | Fitted,
    data: Any,
    *,
    likelihood: Likelihood | None = None,
    refer: float | Referral | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Prediction:
    """Predictions and their uncertainty.

    Args:
        model: what :func:`mnvi.fit` returned, the network it was given, or any network with a likelihood.
        data: inputs as a tensor or array, or batches of them such as a ``DataLoader``; targets are left out.
        likelihood: what the network's output means; needed for a network that :func:`mnvi.fit` has not trained.
        refer: which examples to refer to a person: a share, such as 0.1 for the most uncertain tenth of these data, or
            a :class:`mnvi.Referral`, whose threshold holds for single examples, too.
        batch_size: for a tensor or array.
        device: where to compute; by default where the network is.
        seed: of samples that a likelihood or a method draws, so that results repeat.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(4), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> prediction = mnvi.predict(net, torch.randn(8, 4), likelihood=mnvi.GaussianLikelihood(), refer=0.25)
        >>> prediction.mean.shape, int(prediction.refer.sum())
        (torch.Size([8]), 2)
    """
    network, likelihood = likelihood_of("predict", model, likelihood)
    place = device_of(network, device)
    batches = inputs("predict", data, batch_size, dtype_of(network))
    with prepared(network, likelihood, place, seed):
        outs = (same_for_all(likelihood, network(moved(x, place)), seed) for x in batches)
        parts = [prediction_of(likelihood, out, place, seed) for out in outs]
    if not parts:
        raise ValueError("predict: data are empty; give at least one input")
    prediction = joined(parts)
    if refer is None:
        return prediction
    referred = refer(prediction) if isinstance(refer, Referral) else most_uncertain(prediction, refer)
    return Prediction(**{**vars(prediction), "refer": referred})


@torch.no_grad()
def read(
    network: nn.Module, likelihood: Likelihood, batches: Iterable[tuple[Any, Tensor]], device: torch.device, seed: int
) -> tuple[Prediction, Tensor, Tensor]:
    """Predictions for labelled data, their targets, and the log-probability of each target.

    Targets that do not count are left out; what remains then has one dimension for the targets.
    """
    parts, targets, scores = [], [], []
    with prepared(network, likelihood, device, seed):
        for x, y in batches:
            out = same_for_all(likelihood, network(moved(x, device)), seed)
            parts.append(prediction_of(likelihood, out, device, seed))
            with seeded(seed, device):
                known = torch.where(likelihood.counted(y), y, 0).to(device)
                scores.append(likelihood.predictive(out).log_prob(known).cpu())
            targets.append(y.cpu())
    prediction, y, log_probs = joined(parts), torch.cat(targets), torch.cat(scores)
    counted = likelihood.counted(y)
    if counted.all():
        return prediction, y, log_probs
    return chosen(prediction, counted), y[counted], log_probs[counted]


def prediction_of(likelihood: Likelihood, out: Any, device: torch.device, seed: int) -> Prediction:
    """The prediction of one batch from the network's output. Both calls draw the same samples."""
    with seeded(seed, device):
        distribution = likelihood.predictive(out)
    probs = distribution.probs if isinstance(distribution, Categorical | Bernoulli) else None
    with seeded(seed, device):
        parts = likelihood.uncertainty(out) if probs is not None else likelihood.standard_deviations(out)
    total, aleatoric, epistemic = (part.cpu() for part in parts)
    if probs is None:
        return Prediction(total, aleatoric, epistemic, mean=distribution.mean.cpu())
    return Prediction(total, aleatoric, epistemic, probs=probs.cpu(), binary=isinstance(distribution, Bernoulli))


def same_for_all(likelihood: Likelihood, out: Any, seed: int) -> Any:
    r"""Samples of Gaussian logits with the same noise for every example, if the likelihood would sample them.

    .. math:: h^s_n = \mu_n + \sqrt{v_n}\,\varepsilon^s, \qquad \varepsilon^{s + S/2} = -\varepsilon^s

    Each example's prediction then depends neither on its batch nor on its place there.
    """
    if not isinstance(likelihood, CategoricalLikelihood) or likelihood.approximation != "sampling":
        return out
    count = likelihood.num_samples
    if not isinstance(out, Gaussian) or out.numel() * count > likelihood.max_elements:
        return out
    noise = common_noise(count, out.shape, likelihood.class_dim, seed)
    return Samples(out.mean + out.std * noise.to(out.mean))


@contextmanager
def prepared(network: nn.Module, likelihood: Likelihood, device: torch.device, seed: int) -> Iterator[None]:
    """Network and likelihood on a device in evaluation mode, with seeded samples; their modes are restored."""
    modes = {module: module.training for module in network.modules()}
    network.to(device).eval()
    likelihood.to(device)
    generator = getattr(likelihood, "generator", None)
    _set_generator(likelihood, None)
    try:
        with torch.no_grad(), seeded(seed, device):
            yield
    finally:
        _set_generator(likelihood, generator)
        for module, training in modes.items():
            module.training = training


def _set_generator(likelihood: Likelihood, generator: Any) -> None:
    """Set the source of a likelihood's samples, if it draws any; with None it is torch's, which ``seeded`` seeds."""
    if hasattr(likelihood, "generator"):
        likelihood.generator = generator


def device_of(network: nn.Module, device: torch.device | str | None) -> torch.device:
    return last_layer.device_of(network) if device is None else torch.device(device)


def dtype_of(network: nn.Module) -> torch.dtype:
    kinds = [parameter.dtype for parameter in network.parameters() if parameter.is_floating_point()]
    return kinds[0] if kinds else torch.get_default_dtype()
