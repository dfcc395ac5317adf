"""Rewrites modules that use the weights of a layer without calling it."""

from __future__ import annotations

from torch import nn

from mnvi.layers import shifted_windows
from mnvi.layers.attention import MultiheadAttention
from mnvi.layers.foreign import become_torchs
from mnvi.layers.recurrent import RECURRENT, take_over


def call_all_layers(model: nn.Module) -> None:
    """Rewrite modules that use the weights of a layer without calling it, so that they call it; in place.

    This covers torch's multi-head attention, its recurrent layers and cells, the fused inference path of its
    transformer encoder (switched off), and torchvision's shifted-window attention. Activations of other packages that
    no Gaussian can pass become torch's own. Results stay the same.

    Example:
        >>> import torch
        >>> model = torch.nn.TransformerEncoderLayer(8, 2).eval()
        >>> call_all_layers(model)
        >>> type(model.self_attn).__module__
        'mnvi.layers.attention'
    """
    for module in list(model.modules()):
        if type(module) is nn.MultiheadAttention:
            MultiheadAttention.take_over(module)
        if type(module) in RECURRENT:
            take_over(module)
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # torch's condition for the fused path; it has no other use
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
        if shifted_windows.is_torchvisions(module):
            module.__class__ = getattr(shifted_windows, type(module).__name__)
        become_torchs(module)
