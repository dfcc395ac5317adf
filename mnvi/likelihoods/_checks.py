"""Checks of outputs and targets; each message names what was given, what was expected and what to write instead."""

from __future__ import annotations

import torch
from torch import Tensor

from mnvi.likelihoods.base import Output
from mnvi.moments._torch import values_can_be_read
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian
from mnvi.values.samples import Samples


def check_output(owner: str, out: Output) -> None:
    if not isinstance(out, Tensor | Gaussian | JointGaussian | Samples):
        raise TypeError(f"{owner}: out must be a tensor, mnvi.Gaussian or mnvi.Samples, got {type(out).__name__}")
    if isinstance(out, Tensor) and not out.is_floating_point():
        raise TypeError(
            f"{owner}: out is {out.dtype}, but a network's output is floating point; pass the output before the targets"
        )


def check_tensor(what: str, y: Tensor, device: torch.device) -> None:
    if not isinstance(y, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, got {type(y).__name__}; use torch.as_tensor")
    if y.device != device:
        raise ValueError(f"{what} are on {y.device}, the output on {device}; move them with .to({str(device)!r})")


def check_targets(owner: str, y: Tensor, like: Tensor, sampled: bool, truth_values: bool = False) -> None:
    """Targets must be real numbers in the shape of ``like``, the head that predicts them.

    Args:
        owner: class name of the likelihood.
        y: the targets.
        like: the head, [...] or, if ``sampled``, [samples, ...].
        sampled: whether the head has a leading dimension of samples.
        truth_values: whether the targets may be of ``torch.bool``.
    """
    check_tensor(f"{owner}: targets", y, like.device)
    if y.is_complex() or (y.dtype == torch.bool and not truth_values):
        raise TypeError(f"{owner}: targets must be real numbers, got {y.dtype}")
    expected = like.shape[1:] if sampled else like.shape
    if y.shape != expected:
        raise ValueError(
            f"{owner}: targets have shape {tuple(y.shape)}, expected {tuple(expected)}; "
            "remove a last dimension of 1 with y.squeeze(-1) or out.squeeze(-1)"
        )


def can_check_values(y: Tensor) -> bool:
    """Whether looking at the values is possible, and does not wait for another device."""
    return y.device.type == "cpu" and y.numel() > 0 and values_can_be_read(y)
