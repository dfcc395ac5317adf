"""Whether noise that a network never saw in training changes what it predicts."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.values.base import RandomValue

MOST = 0.05  # share of the examples whose class may change without a warning


def warn_if_classes_change(model: nn.Module, converted: nn.Module, example: Tensor) -> None:
    """Compare the most likely classes of a classifier and of its Bayesian copy, both in evaluation mode.

    Args:
        model: the trained network, which returns logits with the classes last.
        converted: its copy with posteriors.
        example: inputs for both.
    """
    before, after = (_most_likely(net, example) for net in (model, converted))
    changed = float((before != after).double().mean())
    if changed > MOST:
        warnings.warn(
            f"convert: the posterior's noise changes the most likely class of {100 * changed:.0f} % of "
            f"{before.numel()} examples (more than {100 * MOST:.0f} % is too many); start with less, e.g. "
            "mnvi.MultiplicativeNoise(init_rho=-7, …), convert only the last layer, or let mnvi.tune_noise choose",
            stacklevel=3,
        )


@torch.no_grad()
def _most_likely(net: nn.Module, example: Tensor) -> Tensor:
    modes = {module: module.training for module in net.modules()}
    try:
        out: Any = net.eval()(example)
    finally:
        for module, training in modes.items():
            module.training = training
    logits = out.mean if isinstance(out, RandomValue) else out
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[-1] < 2:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ValueError(
            f"convert: example is for classifiers that return logits [batch, classes]; this network returned {found}; "
            "leave example out"
        )
    return logits.argmax(-1)
