"""Temperature: logits divided by one number, which softens or sharpens probabilities without changing their order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnvi._validation import check_number
from mnvi.values.samples import Samples


class Tempered(nn.Module):
    r"""A network whose output, random or not, is divided by a temperature: :math:`h / T`.

    Args:
        net: any network that returns logits.
        temperature: T > 0; above 1 it softens.

    Example:
        >>> import torch, mnvi
        >>> mnvi.methods.Tempered(torch.nn.Identity(), 2.0)(torch.ones(1, 3))
        tensor([[0.5000, 0.5000, 0.5000]])
    """

    temperature: Tensor

    def __init__(self, net: nn.Module, temperature: float = 1.0) -> None:
        super().__init__()
        check_number("Tempered: temperature", temperature, above=0)
        self.net = net
        self.register_buffer("temperature", torch.tensor(float(temperature)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.net(*args, **kwargs)
        if isinstance(out, Samples):
            return Samples(out.values / self.temperature)
        return out / self.temperature

    def extra_repr(self) -> str:
        return f"temperature={float(self.temperature):.4g}"
