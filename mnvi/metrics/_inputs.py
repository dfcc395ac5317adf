"""Refuses inputs that a metric could only turn into a wrong number."""

import torch
from torch import Tensor
from torch.distributions import Distribution

# How far a row of probabilities may sum from one: rounding of a softmax over thousands of classes, per dtype.
SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


def check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; expected a torch.Tensor")


def check_devices(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    if value.device != other.device:
        raise ValueError(f"{name} is on {value.device}, {other_name} on {other.device}; move both to one device")


def check_probabilities(name: str, probs: Tensor, shape: str) -> None:
    check_tensor(name, probs)
    if probs.ndim != shape.count(",") + 1 or probs.numel() == 0:
        raise ValueError(f"{name} has shape {tuple(probs.shape)}; expected {shape}, not empty")
    if probs.dtype not in SUM_TOLERANCE:
        raise TypeError(f"{name} has dtype {probs.dtype}; expected floating-point probabilities")
    if probs.isnan().any():
        raise ValueError(f"{name} contains NaN; expected probabilities")
    if (probs < 0).any():
        raise ValueError(f"{name} contains {probs.min().item():.4g}; expected none below 0: apply softmax to logits")
    total = probs.sum(-1, dtype=torch.float64)
    bad = (total - 1).abs() > SUM_TOLERANCE[probs.dtype]
    if bad.any():
        raise ValueError(
            f"{name} has a row that sums to {total[bad][0].item():.6g}; expected 1: apply softmax to logits"
        )


def check_classification(probs: Tensor, labels: Tensor) -> None:
    check_tensor("probs", probs)
    check_tensor("labels", labels)
    check_devices("probs", probs, "labels", labels)
    check_probabilities("probs", probs, "[N, C]")
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"labels has dtype {labels.dtype}; expected an integer dtype holding class indices")
    if labels.shape != probs.shape[:1]:
        raise ValueError(f"labels has shape {tuple(labels.shape)}; expected ({len(probs)},), one for each row of probs")
    lowest, highest = (bound.item() for bound in labels.aminmax())
    if lowest < 0 or highest >= probs.shape[1]:
        raise ValueError(f"labels lie in [{lowest}, {highest}]; expected class indices in [0, {probs.shape[1] - 1}]")


def check_regression(distribution: Distribution, targets: Tensor) -> None:
    if not isinstance(distribution, Distribution):
        raise TypeError(f"distribution is a {type(distribution).__name__}; expected a torch.distributions.Distribution")
    check_targets(targets, "distribution", distribution.batch_shape + distribution.event_shape)


def check_targets(targets: Tensor, name: str, shape: torch.Size) -> None:
    check_tensor("targets", targets)
    # Broadcasting [N] against [N, 1] would silently compare every prediction with every target.
    if targets.shape != shape or targets.numel() == 0:
        raise ValueError(f"targets has shape {tuple(targets.shape)}, {name} {tuple(shape)}; expected equal, not empty")
    if not targets.is_floating_point():
        raise TypeError(f"targets has dtype {targets.dtype}; expected a floating-point dtype")
    if targets.isnan().any():
        raise ValueError("targets contains NaN; expected observed values")
