"""Copies a model, or explains why it cannot."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor, nn
from torch.nn.utils.weight_norm import WeightNorm

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copied(caller: str, model: ModuleT) -> ModuleT:
    """``copy.deepcopy(model)``, with an error that says what prevents the copy and what to do.

    Args:
        caller: the function that the error names.
        model: the model to copy; it stays unchanged.

    Example:
        >>> import torch
        >>> copied("convert", torch.nn.Linear(2, 3))
        Linear(in_features=2, out_features=3, bias=True)
    """
    # torch copies no computed tensor; a weight that torch.nn.utils.weight_norm keeps is computed anew at the next call
    computed = [getattr(module, hook.name) for module, hook in weight_norms(model)]
    try:
        return copy.deepcopy(model, {id(weight): weight.detach().clone() for weight in computed})
    except RuntimeError as error:
        if kept := _kept_from_a_graph(model):
            remedy = f"{', '.join(kept)} was computed and holds a gradient graph; store its .detach(), or delete it"
        else:
            remedy = str(error)
        raise ValueError(f"{caller}: the model cannot be copied; {remedy}") from error


def weight_norms(model: nn.Module) -> list[tuple[nn.Module, WeightNorm]]:
    """Modules under ``torch.nn.utils.weight_norm``, each with the hook that computes its weight."""
    return [
        (module, hook)
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, WeightNorm)
    ]


def _kept_from_a_graph(model: nn.Module) -> list[str]:
    """Attributes that hold a tensor that torch cannot copy."""
    return [
        f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, value in {**vars(module), **module._buffers}.items()
        if isinstance(value, Tensor) and not value.is_leaf
    ]
