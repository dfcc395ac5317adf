"""Names of a state_dict: a part of a layer saves its weights under the names that torch's whole layer uses."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class NamedAsInTorch(nn.Module):
    """A part of a layer, e.g. ``ih_l0``, whose weight and bias are parameters of the whole layer in torch."""

    torch_name: ClassVar[str]  # with {part} for the part's name and {key} for "weight" or "bias"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        own: dict[str, Any] = {}
        super()._save_to_state_dict(own, "", keep_vars)
        layer, dot, part = prefix.removesuffix(".").rpartition(".")
        for key, value in own.items():
            is_torchs = part and key in ("weight", "bias")
            name = f"{layer}{dot}{self.torch_name.format(part=part, key=key)}" if is_torchs else prefix + key
            destination[name] = value
