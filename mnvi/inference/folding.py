"""Folds a batch norm into the layer before it: in evaluation it only scales and shifts that layer's output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnvi.inference.batch_norm_pairs import find_pairs
from mnvi.inference.frozen import freeze
from mnvi.layers.base import BayesianLayer
from mnvi.layers.convolution import geometry
from mnvi.methods.ensemble import Ensemble
from mnvi.methods.montecarlo import MonteCarlo


def fold_batch_norms(model: nn.Module) -> None:
    """Fold, in place, every batch norm of a model in evaluation mode that the layer before it can absorb.

    Args:
        model: layers that absorb a batch norm are frozen (:func:`mnvi.inference.frozen.freeze`).

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).eval()
        >>> fold_batch_norms(net)
        >>> net[1]
        FoldedBatchNorm(dims=2)
    """
    if isinstance(model, MonteCarlo | Ensemble):  # batching and stacking cannot be traced, but the networks inside can
        for network in [model.net] if isinstance(model, MonteCarlo) else model.members:
            fold_batch_norms(network)
        return
    pairs = find_pairs(model)
    for norm, layer in pairs.items():
        fold(layer, norm)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module in pairs:
            model.set_submodule(name, FoldedBatchNorm(_output_dims(pairs[module])))


def fold(layer: Any, norm: Any) -> None:
    r"""Let a layer do the work of the batch norm behind it, in place and in float64.

    With :math:`s = \gamma/\sqrt{\text{running var} + \epsilon}` weights become :math:`sM`, biases
    :math:`s(b - \text{running mean}) + \beta`, and the variances of both are multiplied by :math:`s^2`.

    Args:
        layer: linear or a convolution, with or without posterior; one with a posterior is frozen.
        norm: in evaluation mode.

    Example:
        >>> import torch
        >>> layer, norm = torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3, eps=3.0).eval()
        >>> before = layer.weight.detach().clone()
        >>> fold(layer, norm)
        >>> torch.allclose(layer.weight, before / 2)  # running variance 1, so s = 1 / sqrt(1 + 3)
        True
    """
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    bias = -norm.running_mean.double() if layer.bias is None else layer.bias.double() - norm.running_mean.double()
    bias = bias * scale
    if norm.bias is not None:
        bias = bias + norm.bias.double()
    weight = layer.weight
    per_output = geometry(layer).along_outputs(scale, weight)
    # new parameters: the old ones may be tied to another layer's
    layer.weight = nn.Parameter((weight.double() * per_output).to(weight.dtype), requires_grad=False)
    layer.bias = nn.Parameter(bias.to(weight.dtype), requires_grad=False)
    if isinstance(layer, BayesianLayer):
        freeze(layer, gain=scale.square(), learnt=weight)


class FoldedBatchNorm(nn.Module):
    """Replaces a batch norm whose work the layer before it does.

    Args:
        dims: number of input dimensions for which the folding is right. A batch norm acts on dimension 1, which holds
            the units of a linear layer's output only if there are two dimensions.

    Example:
        >>> import torch
        >>> FoldedBatchNorm(2)(torch.ones(1, 3))
        tensor([[1., 1., 1.]])
    """

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != self.dims:
            raise ValueError(
                f"a batch norm was folded into the layer before it for {self.dims}-dimensional values, got shape "
                f"{tuple(x.shape)}; use the model from before mnvi.optimize_for_inference"
            )
        return x

    def extra_repr(self) -> str:
        return f"dims={self.dims}"


def _output_dims(layer: Any) -> int:
    return 2 if isinstance(layer, nn.Linear) else 2 + len(layer.kernel_size)
