"""Classes and their labels: where the classes are in an output, their weights, and which labels fit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mnvi.likelihoods._checks import can_check_values, check_tensor
from mnvi.likelihoods.base import Output
from mnvi.moments._torch import values_can_be_read
from mnvi.values.joint import JointGaussian
from mnvi.values.samples import Samples

TWO_CLASSES = "for two classes let the network return two logits, or use BernoulliLikelihood"


def with_classes_last(out: Output, place: int) -> Output:
    """The output with the dimension of the classes moved to the end."""
    if isinstance(out, JointGaussian):
        raise ValueError(
            f"CategoricalLikelihood: a JointGaussian of shape {tuple(out.shape)} has covariances between the entries "
            "of its last dimension, which must be the classes; leave class_dim at -1"
        )
    if isinstance(out, Samples):
        return Samples(out.values.movedim(place + 1, -1))
    return out.movedim(place, -1) if isinstance(out, Tensor) else out.map(lambda t: t.movedim(place, -1))


def checked_weights(weights: Tensor | Sequence[float] | None) -> Tensor | None:
    """The weights of the classes as a tensor of their own."""
    if weights is None:
        return None
    try:
        found = torch.as_tensor(weights).detach()
    except (TypeError, ValueError, RuntimeError):
        found = torch.zeros(0)
    if found.dim() != 1 or found.numel() < 2 or found.is_complex() or found.dtype == torch.bool:
        raise ValueError(
            f"CategoricalLikelihood: class_weights={weights!r} must be numbers, one for each class, e.g. [1.0, 2.5]"
        )
    found = found if found.is_floating_point() else found.to(torch.get_default_dtype())
    if not bool(found.isfinite().all()) or bool((found < 0).any()) or not bool((found > 0).any()):
        raise ValueError(
            f"CategoricalLikelihood: class_weights={weights!r} must be finite numbers >= 0, not all of them 0"
        )
    return found.clone()


def check_labels(out: Output, y: Tensor, place: int, ignore_index: int | None) -> None:
    """Labels must be class indices in the shape of the output without its dimension ``place``, that of the classes."""
    check_tensor("CategoricalLikelihood: labels", y, out.values.device if isinstance(out, Samples) else out.device)
    last = len(out.shape) - 1
    expected, classes = out.shape[:place] + out.shape[place + 1 :], out.shape[place]
    named = -1 if place == last else place
    like_output = y.shape == out.shape
    if like_output and last > 0 and values_can_be_read(y) and _are_distributions(y, place):
        wanted = f"expected class indices of shape {tuple(expected)}"
        if bool(((y == 0) | (y == 1)).all()):
            raise ValueError(
                f"CategoricalLikelihood: labels of shape {tuple(y.shape)} look one-hot; {wanted}: pass "
                f"y.argmax({named})"
            )
        raise ValueError(
            f"CategoricalLikelihood: labels of shape {tuple(y.shape)} look like probabilities, which it does not take; "
            f"{wanted}, and CategoricalLikelihood(label_smoothing=...) smooths them"
        )
    hint = f"; {TWO_CLASSES}" if like_output else ""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"CategoricalLikelihood: labels must be integers, got {y.dtype}{hint}")
    if y.shape != expected:
        shapes = f"labels have shape {tuple(y.shape)}, the output {tuple(out.shape)}"
        if last > 1 and place == last and y.shape == (*out.shape[:1], *out.shape[2:]):
            raise ValueError(
                f"CategoricalLikelihood: {shapes} with the classes in dimension 1; they must come last: pass "
                "out.movedim(1, -1), or write CategoricalLikelihood(class_dim=1)"
            )
        if place != last and y.shape == out.shape[:-1]:
            raise ValueError(
                f"CategoricalLikelihood: {shapes} with the classes last, but class_dim={place}; leave class_dim at -1"
            )
        raise ValueError(f"CategoricalLikelihood: {shapes}; expected labels of shape {tuple(expected)}{hint}")
    if can_check_values(y):
        counted = y if ignore_index is None else y[y.long() != ignore_index]
        if not counted.numel():
            return
        low, high = int(counted.min()), int(counted.max())
        if low < 0 or high >= classes:
            hint = "; for labels that do not count, set ignore_index" if ignore_index is None else ""
            raise ValueError(
                f"CategoricalLikelihood: labels run from {low} to {high}; they must be in 0..{classes - 1}{hint}"
            )


def _are_distributions(y: Tensor, place: int) -> bool:
    """Whether the numbers along a dimension are never negative and add up to one."""
    if y.is_complex() or bool((y < 0).any()):
        return False
    return bool(((y.sum(place) - 1).abs() < 1e-3).all())
