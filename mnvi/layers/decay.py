"""Which parameters weight decay may shrink."""

from __future__ import annotations

from typing import Any

from torch import nn

from mnvi.layers.base import BayesianLayer
from mnvi.moments.checking import check_number


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    r"""Parameters for an optimizer, in two groups: those that weight decay shrinks and those that it leaves alone.

    Weight decay pulls parameters towards zero. For ``rho`` and ``log_var`` zero means much noise (:math:`\alpha = \log
    2`, variance 1), so decay would raise the noise step by step. The second group has everything that a posterior adds
    to a layer, and all biases, scales of norms and other parameters with fewer than two dimensions.

    Means of weights are in the first group. The KL pulls them towards zero too, with the strength
    :math:`\kappa/(N\sigma^2)`; decay adds to that, and is needed only for layers without a posterior.

    Args:
        model: a network, or a module that owns one, such as :class:`mnvi.Objective`.
        weight_decay: the optimizer's ``weight_decay`` for the first group; the second one has 0.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(3), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> decayed, left = mnvi.parameter_groups(net, weight_decay=1e-4)
        >>> [tuple(p.shape) for p in decayed["params"]], left["weight_decay"]
        ([(50, 3), (2, 50)], 0.0)
        >>> optimizer = torch.optim.AdamW(mnvi.parameter_groups(net, weight_decay=1e-4), lr=1e-3)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"parameter_groups: model must be a torch.nn.Module, got {type(model).__name__}")
    check_number("parameter_groups: weight_decay", weight_decay, least=0)
    noise = {
        id(parameter)
        for layer in model.modules()
        if isinstance(layer, BayesianLayer)
        for name, parameter in layer.named_parameters(recurse=False)
        if name != "weight"
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shrinks = [id(parameter) not in noise and parameter.dim() > 1 for parameter in trained]
    chosen = list(zip(trained, shrinks, strict=True))
    groups = [
        {"params": [parameter for parameter, is_shrunk in chosen if is_shrunk], "weight_decay": weight_decay},
        {"params": [parameter for parameter, is_shrunk in chosen if not is_shrunk], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
