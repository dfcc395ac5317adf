"""Replaces torch's older weight norm, which computes a weight in a hook, by its newer one, a parametrisation."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils import parametrizations, remove_weight_norm

from mnvi.conversion.copying import weight_norms


def renew_weight_norms(model: nn.Module) -> None:
    """Replace ``torch.nn.utils.weight_norm`` by ``torch.nn.utils.parametrizations.weight_norm``, in place.

    The hook computes the weight when a layer is called. A KL before that call would see the weight of the call before.
    Values stay; checkpoints with the older names, ``weight_g`` and ``weight_v``, still load.

    Args:
        model: its own parameters replace those of the hook.

    Example:
        >>> import torch, warnings
        >>> with warnings.catch_warnings(action="ignore"):
        ...     layer = torch.nn.utils.weight_norm(torch.nn.Linear(3, 2))
        >>> renew_weight_norms(layer)
        >>> [name for name, _ in layer.named_parameters()]
        ['bias', 'parametrizations.weight.original0', 'parametrizations.weight.original1']
    """
    for module, hook in weight_norms(model):
        old = [module._parameters[f"{hook.name}_{part}"] for part in "gv"]
        remove_weight_norm(module, hook.name)
        parametrizations.weight_norm(module, hook.name, hook.dim)
        new: Any = cast(nn.ModuleDict, module.parametrizations)[hook.name]
        for value, parameter in zip(old, (new.original0, new.original1), strict=True):
            assert value is not None
            with torch.no_grad():
                parameter.copy_(value)
            parameter.requires_grad_(value.requires_grad)
