"""Layers of other packages that compute with their weight themselves, known by the names of their classes.

The packages are not imported: :func:`mnvi.convert` looks a class up by its full name and compares the two layers on an
example before it uses the one from here. Subclasses that call ``super().forward`` need no entry.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer
from mnvi.layers.computed import ComputedWeight
from mnvi.layers.convolution import Conv2d
from mnvi.layers.linear import Linear
from mnvi.moments.affine import Affine
from mnvi.values.gaussian import Gaussian


class SameConv2d(Conv2d):
    """Pads as TensorFlow's ``"SAME"`` does, by the size of the input: timm's ``Conv2dSame``."""

    same_pad = True  # timm's layers with standardised weights know this attribute

    def prepared(self, x: Tensor | Gaussian) -> tuple[Affine, Tensor | Gaussian]:
        if self.same_pad:
            sizes = zip(x.shape[-2:], self.kernel_size, self.stride, self.dilation, strict=True)
            vertical, horizontal = (_same_padding(*along) for along in sizes)
            x = F.pad(x, (*horizontal, *vertical))  # type: ignore[arg-type]
        return super().prepared(x)


def _same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """How much to pad before and after, so that there are ``ceil(size / stride)`` outputs."""
    outputs = (size + stride - 1) // stride
    total = max((outputs - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


class StaticSameConv2d(Conv2d):
    """Pads with a module of its own first: ``Conv2dStaticSamePadding`` of EfficientNet packages."""

    static_padding: Any

    def prepared(self, x: Tensor | Gaussian) -> tuple[Affine, Tensor | Gaussian]:
        return super().prepared(self.static_padding(x))


class StandardizedConv2d(ComputedWeight, Conv2d):  # type: ignore[override]  # a property replaces the parameter
    r"""Standardises the weights of each output, and may scale them: timm's ``StdConv2d`` and ``ScaledStdConv2d``.

    .. math:: W_i = g_i \frac{w_i - \text{mean}(w_i)}{\sqrt{\text{var}(w_i) + \epsilon}}
    """

    stored_as = Conv2d
    eps: float
    scale: float = 1.0

    def computed_weight(self) -> Tensor:
        raw = self._parameters["weight"]
        assert raw is not None
        gain = self._parameters.get("gain")
        scales = None if gain is None else (gain * self.scale).view(-1)
        rows = raw.reshape(1, len(raw), -1)
        return F.batch_norm(rows, None, None, scales, training=True, momentum=0.0, eps=self.eps).reshape_as(raw)


class StandardizedSameConv2d(StandardizedConv2d, SameConv2d):  # type: ignore[override]
    """timm's ``StdConv2dSame`` and ``ScaledStdConv2dSame``."""

    stored_as = SameConv2d


class _LinearByWeight(Linear):
    """A linear layer that never ran torch's constructor and knows its sizes by its weight."""

    @property
    def in_features(self) -> int:  # type: ignore[override]
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:  # type: ignore[override]
        return self.weight.shape[0]


class TransposedLinear(ComputedWeight, _LinearByWeight):  # type: ignore[override]
    """A linear layer that stores its weight as [in, out]: ``Conv1D`` of Hugging Face's GPT-2."""

    stored_as = _LinearByWeight

    def computed_weight(self) -> Tensor:
        stored = self._parameters["weight"]
        assert stored is not None
        return stored.T


KNOWN: dict[str, type[BayesianLayer]] = {
    "efficientnet_lite_pytorch.utils.Conv2dDynamicSamePadding": SameConv2d,
    "efficientnet_lite_pytorch.utils.Conv2dStaticSamePadding": StaticSameConv2d,
    "efficientnet_pytorch.utils.Conv2dDynamicSamePadding": SameConv2d,
    "efficientnet_pytorch.utils.Conv2dStaticSamePadding": StaticSameConv2d,
    "timm.layers.conv2d_same.Conv2dSame": SameConv2d,
    "timm.layers.linear.Linear": Linear,
    "timm.layers.std_conv.ScaledStdConv2d": StandardizedConv2d,
    "timm.layers.std_conv.ScaledStdConv2dSame": StandardizedSameConv2d,
    "timm.layers.std_conv.StdConv2d": StandardizedConv2d,
    "timm.layers.std_conv.StdConv2dSame": StandardizedSameConv2d,
    "transformers.models.falcon.modeling_falcon.FalconLinear": Linear,
    "transformers.pytorch_utils.Conv1D": TransposedLinear,
}

ACTIVATIONS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    # in training its own autograd.Function computes it, which takes no Gaussian
    "transformers.models.bloom.modeling_bloom.BloomGelu": (nn.GELU, {"approximate": "tanh"}),
}
"""Modules without weights that are one of torch's: its class and its settings."""


def become_torchs(module: nn.Module) -> None:
    """Turn a module of :data:`ACTIVATIONS` into torch's, in place; others stay.

    Args:
        module: any module.
    """
    full_name = f"{type(module).__module__}.{type(module).__qualname__}"
    if full_name in ACTIVATIONS:
        module.__class__, settings = ACTIVATIONS[full_name]
        vars(module).update(settings)
