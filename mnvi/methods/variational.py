"""A posterior for the last layer of a trained network, learnt by the ELBO on the features of all data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mnvi.conversion.converting import convert
from mnvi.elbo import ELBO
from mnvi.likelihoods import CategoricalLikelihood, Likelihood
from mnvi.likelihoods._noted import note
from mnvi.methods._learning import in_batches, maximise_elbo
from mnvi.methods.last_layer import features_of
from mnvi.moments.checking import check_number
from mnvi.posteriors import MeanField, Posterior

_BATCH = 256


def variational_last_layer(
    net: nn.Module,
    data: Any,
    *,
    posterior: Posterior | None = None,
    likelihood: Likelihood | None = None,
    kappa: float = 1.0,
    steps: int = 500,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> nn.Module:
    r"""Learn a posterior of a trained network's last layer; all other layers stay as they are.

    .. math:: \max_q \; \sum_n E_q[\log p(y_n|\phi_n, w)] - \kappa\, KL[q(w)\,\|\,p(w)]

    The features :math:`\phi` are computed once, so this takes seconds. With :class:`mnvi.MultiplicativeNoise` it is
    MNVI on the last layer alone; :func:`mnvi.tune_noise` keeps the weights, too.

    Args:
        net: the trained network, which is copied; its last layer must be a ``torch.nn.Linear``.
        data: the data it was trained on: inputs and targets, or batches of them.
        posterior: ``mnvi.MeanField(prior_variance=1.0)`` by default.
        likelihood: :class:`mnvi.CategoricalLikelihood` by default.
        kappa: weight of the KL.
        steps: of Adam, each on a batch of about 256 examples.
        learning_rate: at the start; it falls linearly to 0.
        seed: of samples and of the order of the data.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
        >>> x, y = torch.randn(100, 2), torch.randint(3, (100,))
        >>> variational = mnvi.methods.variational_last_layer(net, (x, y), steps=50)
        >>> variational(x).var.shape, mnvi.predict(variational, x).probs.shape
        (torch.Size([100, 3]), torch.Size([100, 3]))
    """
    check_number("variational_last_layer: steps", steps, least=1, whole=True)
    check_number("variational_last_layer: learning_rate", learning_rate, above=0)
    found = features_of("variational_last_layer", net, data)
    likelihood = CategoricalLikelihood() if likelihood is None else likelihood
    model = convert(net, MeanField(prior_variance=1.0) if posterior is None else posterior, only=[_named(found.name)])
    layer = model.get_submodule(found.name)
    parameters = [*layer.parameters(), *likelihood.parameters()]
    with torch.enable_grad():
        maximise_elbo(
            layer,
            parameters,
            in_batches(found.inputs, found.targets, _BATCH, seed),
            ELBO(likelihood, found.targets.numel(), kappa),
            steps=steps,
            learning_rate=learning_rate,
            seed=seed,
        )
    note(model.eval(), likelihood)
    return model


def _named(name: str) -> Any:
    """Selects the layer of exactly this name, which may hold characters that patterns give a meaning."""
    return lambda candidate, _: candidate == name
