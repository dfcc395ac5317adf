"""Chooses between exact and factored variances for each layer of a trained model."""

from __future__ import annotations

import logging

import torch
from torch import nn

from mnvi.inference.frozen import can_be_frozen, is_frozen
from mnvi.layers.base import BayesianLayer, bayesian_layers
from mnvi.moments import outer_products
from mnvi.moments.precision import widened
from mnvi.posteriors import Variance, with_variance

logger = logging.getLogger("mnvi")


def set_variances(model: nn.Module, variance: Variance) -> None:
    """Make the variances of a model's layers exact or factored, in place.

    A layer takes the fewest terms, up to four, that miss its squared weights by 0.3 or less
    (:func:`mnvi.moments.outer_products.few_terms`). It stays exact if four miss by more, if it has fewer than 16
    outputs in a group or fewer than 23 inputs to each, or if it is the last layer and has at most 1024 outputs.
    Layers that were trained factored keep one term. For kernels of several taps the factors of the inputs become, in
    their turn, a product of channels and taps where that changes sums by 0.05 at most
    (:func:`mnvi.moments.outer_products.separated`). The log, under the name "mnvi", reports the layers that stay exact;
    :func:`mnvi.summary` shows the terms and errors of the others.

    Args:
        model: a model with posteriors.
        variance: "exact" or "factored".

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
        >>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> set_variances(bayesian, "factored")
        >>> [layer.posterior.is_factored(layer) for layer in mnvi.bayesian_layers(bayesian)]
        [True, False]
    """
    layers = bayesian_layers(model)
    exact = []
    for layer in layers:
        already = layer.posterior.is_factored(layer)
        if already and is_frozen(layer) and variance == "exact":
            raise ValueError(
                "optimize_for_inference: variance='exact' cannot be had from a model that was optimised with factored "
                "variances; use the model it was made from"
            )
        if variance == "factored" and not already and _stays_exact(layer, layer is layers[-1] and layer is not model):
            exact.append(layer)
        elif not is_frozen(layer):
            layer.posterior = with_variance(layer.posterior, "separable" if variance == "factored" else "exact")
    if exact:
        names = [name for name, module in model.named_modules() if module in exact]
        logger.info("%d of %d layers keep exact variances: %s", len(exact), len(layers), ", ".join(names))


def _stays_exact(layer: BayesianLayer, last: bool) -> bool:
    affine, weight = layer.geometry, layer.weight
    if not can_be_frozen(layer):
        return True
    if not outer_products.worthwhile(affine, weight) or (last and outer_products.is_small_output(affine, weight)):
        return True
    with torch.no_grad():
        square = widened(weight).square()
        missed = outer_products.miss(affine, square, outer_products.few_terms(affine, square))
        return bool(missed > outer_products.LARGEST_MISS)
