"""Why a layer has no posterior, in words."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from torch import nn

from mnvi.layers.base import BayesianLayer
from mnvi.layers.registry import BAYESIAN

_MOST = 0.5  # a model is called mostly deterministic if more than this share of its weights cannot have a posterior


def obstacle(module: nn.Module) -> str | None:
    """What prevents a layer of a known kind from getting a posterior and what to do about it; None if nothing does.

    Args:
        module: an instance of one of torch's linear or convolution layers.

    Example:
        >>> import torch
        >>> obstacle(torch.nn.LazyLinear(3))
        'has no weights yet; run the model once on an example before converting'
        >>> obstacle(torch.nn.Linear(3, 3)) is None
        True
    """
    if isinstance(module, BayesianLayer):
        return "has a posterior already; convert the deterministic model"
    if hasattr(module, "parametrizations"):
        return (
            "is parametrised; call torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight') before "
            "converting"
        )
    if "weight_mask" in module._buffers:
        return "is pruned; make that permanent with torch.nn.utils.prune.remove(layer, 'weight') before converting"
    if "weight" not in module._parameters:
        return (
            "computes its weight in a hook (weight_norm or spectral_norm); remove it with "
            "torch.nn.utils.remove_weight_norm or remove_spectral_norm before converting"
        )
    weight: Any = module._parameters["weight"]
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "has no weights yet; run the model once on an example before converting"
    if weight.is_complex():
        return "has complex weights, for which there is no posterior"
    original = next(kind for kind in type(module).__mro__ if kind in BAYESIAN)
    if type(module).forward is not original.forward or "forward" in module.__dict__:
        return (
            "overrides forward, which would not use the posterior; replace it by its torch original, or register its "
            "class with mnvi.register_layer"
        )
    if type(module) is not original:
        return f"is a subclass of {original.__name__} and would lose that class; replace it by its torch original"
    return None


def why_deterministic(module: nn.Module) -> str:
    """Why a module without posterior has none, as :func:`mnvi.summary` puts it.

    Example:
        >>> import torch
        >>> why_deterministic(torch.nn.LayerNorm(4))
        'scales and shifts only'
        >>> why_deterministic(torch.nn.Linear(4, 2))
        'not converted'
    """
    if isinstance(module, tuple(BAYESIAN)):
        return obstacle(module) or "not converted"
    if not _has_matrix(module):
        return "scales and shifts only"
    if not any(True for _ in module.children()):
        return "unknown class; see mnvi.register_layer"
    return "parameters of its own"


def warn_if_mostly_deterministic(model: nn.Module) -> None:
    """Warn if most weights belong to classes that cannot have a posterior, naming those classes.

    Layers of known classes that the caller left out do not count: that is a choice.

    Args:
        model: a model from :func:`mnvi.convert`.
    """
    sizes: Counter[str] = Counter()
    total = 0
    seen: set[int] = set()
    for module in model.modules():
        known = isinstance(module, (*BAYESIAN, BayesianLayer))
        for weight in module.parameters(recurse=False):
            if weight.dim() < 2 or id(weight) in seen:
                continue
            seen.add(id(weight))
            total += weight.numel()
            if not known:
                sizes[type(module).__name__] += weight.numel()
    if sum(sizes.values()) <= _MOST * total:
        return
    share = 100 * sum(sizes.values()) / total
    biggest = ", ".join(f"{kind} ({100 * size / total:.0f} %)" for kind, size in sizes.most_common(3))
    warnings.warn(
        f"convert: {share:.0f} % of the weights stay deterministic, since their classes are unknown: {biggest}; give "
        "them a posterior with mnvi.register_layer, and see mnvi.summary(model)",
        stacklevel=3,
    )


def _has_matrix(module: nn.Module) -> bool:
    return any(weight.dim() > 1 for weight in module.parameters(recurse=False))
