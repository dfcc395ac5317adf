"""Why a layer has no posterior, in words."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

from torch import nn
from torch.nn.utils import parametrize

from mnvi.conversion.subclasses import bayesian_class, is_layer
from mnvi.layers.base import BayesianLayer
from mnvi.layers.registry import BAYESIAN

_MOST = 0.5  # a model is called mostly deterministic if more than this share of its weights cannot have a posterior


def obstacle(module: nn.Module) -> str | None:
    """What prevents a layer of a known kind from getting a posterior and what to do about it; None if nothing does.

    Args:
        module: a layer of a kind that can have a posterior.

    Example:
        >>> import torch
        >>> obstacle(torch.nn.LazyLinear(3))
        'has no weights yet; run the model once on an example before converting'
        >>> obstacle(torch.nn.Linear(3, 3)) is None
        True
    """
    if isinstance(module, BayesianLayer):
        return "has a posterior already; convert the deterministic model"
    if parametrize.is_parametrized(module):
        return _obstacle_of_parametrized(module)
    if "weight_mask" in module._buffers:
        return "is pruned; make that permanent with torch.nn.utils.prune.remove(layer, 'weight') before converting"
    if "weight" not in module._parameters:
        return (
            "computes its weight in a hook; use torch.nn.utils.parametrizations.spectral_norm instead of "
            "torch.nn.utils.spectral_norm, or remove the hook before converting"
        )
    weight: Any = module._parameters["weight"]
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "has no weights yet; run the model once on an example before converting"
    if weight.is_complex():
        return "has complex weights, for which there is no posterior"
    if getattr(module, "max_norm", None) is not None:
        return f"has max_norm={module.max_norm}, which rescales its weight at every call; set it to None"
    if bayesian_class(type(module)) is None or "forward" in module.__dict__:
        return (
            "computes with its weight in a forward of its own, which would not use the posterior; let it call "
            "super().forward, or register its class with mnvi.register_layer"
        )
    return None


def _obstacle_of_parametrized(module: nn.Module) -> str | None:
    names = set(cast(nn.ModuleDict, module.parametrizations))
    if names != {"weight"} or type(module).__bases__[0] not in BAYESIAN:
        return (
            f"is parametrised in {', '.join(sorted(names))}; only the weight of torch's own layers may be: call "
            "torch.nn.utils.parametrize.remove_parametrizations(layer, name) before converting"
        )
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
    if is_layer(module):
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
    for _, module, parameters in owners(model):
        known = is_layer(module)
        for weight in parameters.values():
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


def owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, dict[str, nn.Parameter]]]:
    """Name, module and its own parameters; what a parametrisation computes a weight from belongs to the layer.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 2)))
        >>> [(name, len(parameters)) for name, _, parameters in owners(net)]
        [('', 0), ('0', 3)]
    """
    parts: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in parts:
            continue
        own = dict(module.named_parameters(recurse=False))
        if parametrize.is_parametrized(module):
            inside = cast(nn.Module, module.parametrizations)
            own |= {f"parametrizations.{key}": value for key, value in inside.named_parameters()}
            parts.update(inside.modules())
        yield name, module, own


def _has_matrix(module: nn.Module) -> bool:
    return any(weight.dim() > 1 for weight in module.parameters(recurse=False))
