"""Reads the heads of an output: one number for each target, or a pair of numbers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mnvi.likelihoods._checks import check_output
from mnvi.likelihoods.base import Output
from mnvi.moments.precision import widened
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian
from mnvi.values.samples import Samples

Number = Tensor | float


class Pair(NamedTuple):
    """Means and variances of two heads, each in the shape of the targets, and the heads' covariance.

    Samples have a leading dimension. Variances of known values are the number 0.
    """

    first: Tensor
    first_var: Number
    second: Tensor
    second_var: Number
    covariance: Number


def one_head(owner: str, out: Output) -> tuple[Tensor, Tensor | None]:
    """Mean and variance of an output; None for the variance of known values and samples.

    Half precision becomes float32: exponentials leave its range.
    """
    check_output(owner, out)
    if isinstance(out, Gaussian | JointGaussian):
        return widened(out.mean), widened(out.var)
    return widened(out.values if isinstance(out, Samples) else out), None


def two_heads(owner: str, out: Output, outputs: int | None, second: str, instead: str = "") -> Pair:
    """Split the last dimension into two heads.

    Args:
        owner: class name of the likelihood.
        out: the network's output, [..., 2], or [..., 2·outputs].
        outputs: number of targets per example whose pairs lie one after the other in the last dimension; None if the
            last dimension is one pair.
        second: what the second head predicts.
        instead: advice for a network that returns only the first head.
    """
    values, var = one_head(owner, out)
    wanted = 2 * (outputs or 1)
    if values.dim() == 0 or values.shape[-1] != wanted:
        swapped = ". If these are the targets, pass the output first" if isinstance(out, Tensor) else ""
        raise ValueError(_wrong_size(owner, values, outputs, second, instead) + swapped)
    if outputs is not None:
        values = values.unflatten(-1, (outputs, 2))
        var = None if var is None else var.unflatten(-1, (outputs, 2))
    if var is None:
        return Pair(values[..., 0], 0.0, values[..., 1], 0.0, 0.0)
    covariance: Number = 0.0
    if isinstance(out, JointGaussian):
        covariance = widened(out.cov)
        covariance = covariance[..., 0, 1] if outputs is None else covariance.diagonal(1, -2, -1)[..., ::2]
    return Pair(values[..., 0], var[..., 0], values[..., 1], var[..., 1], covariance)


def _wrong_size(owner: str, values: Tensor, outputs: int | None, second: str, instead: str) -> str:
    shape = tuple(values.shape)
    if outputs is not None:
        return (
            f"{owner}: the output's last dimension must be 2·outputs = {2 * outputs}, mean and {second} of each; got "
            f"shape {shape}"
        )
    size = values.shape[-1] if values.dim() else 1
    several = f". For {size // 2} targets, each with both heads, use outputs={size // 2}" if size % 2 == 0 else ""
    return f"{owner}: the output's last dimension must be 2, mean and {second}; got shape {shape}{instead}{several}"
