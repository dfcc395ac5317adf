"""How good are predictions, and how good is the uncertainty that comes with them?

Shapes: N examples, C classes, S samples.

    probs          [N, C]     predictive probabilities; each row sums to one
    labels         [N]        class indices, an integer dtype
    sampled_probs  [S, N, C]  probabilities of S samples of the network

Every rate is a fraction, not percent. Every result is a float64 tensor: a rate may be as small as 1e-5 and the mean of
millions of terms. The predicted class is `probs.argmax(-1)`.

Example:
    >>> import torch
    >>> from mnvi import metrics
    >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    >>> labels = torch.tensor([0, 1, 1])
    >>> round(metrics.misclassification(probs, labels).item(), 4)
    0.3333
    >>> round(metrics.aumrc(probs, labels).item(), 4)  # the one error is also the most uncertain prediction
    0.0
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

__all__ = [
    "RejectionCurve",
    "Reliability",
    "aumrc",
    "auroc",
    "brier",
    "ece",
    "expected_entropy",
    "interval_coverage",
    "log_likelihood",
    "misclassification",
    "misclassification_at_rejection",
    "mutual_information",
    "nll",
    "predictive_entropy",
    "rejection_curve",
    "reliability",
    "rmse",
]

# How far a row of probabilities may sum from one: rounding of a softmax over thousands of classes, per dtype.
SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 2e-2}


class Reliability(NamedTuple):
    """Bins of `reliability`, each [num_bins]; confidence and accuracy are NaN where a bin is empty.

    Example:
        >>> import torch
        >>> reliability(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), num_bins=2).counts
        tensor([0., 1.], dtype=torch.float64)
    """

    confidence: Tensor
    accuracy: Tensor
    counts: Tensor


class RejectionCurve(NamedTuple):
    """Points of `rejection_curve`, each [N]: the fraction rejected and the error of what remains.

    Example:
        >>> import torch
        >>> rejection_curve(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([1, 0])).error
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """

    rejected: Tensor
    error: Tensor


def misclassification(probs: Tensor, labels: Tensor) -> Tensor:
    """Fraction of wrong predictions, `1/N Σ_n [argmax_c p_nc ≠ y_n]`.

    Args:
        probs: [N, C].
        labels: [N].

    Example:
        >>> misclassification(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).item()
        0.5
    """
    _check_classification(probs, labels)
    return _wrong(probs, labels).double().mean()


def nll(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood, `−1/N Σ_n log p_n[y_n]`.

    It is infinite where a true class was given probability zero: nothing is clamped.

    Args:
        probs: [N, C].
        labels: [N].

    Example:
        >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([0])).item(), 4)
        0.6931
    """
    _check_classification(probs, labels)
    return -probs.gather(1, labels.long().unsqueeze(1)).double().log().mean()


def brier(probs: Tensor, labels: Tensor) -> Tensor:
    """Brier score over all classes, `1/N Σ_n Σ_c (p_nc − [c = y_n])²`, between 0 and 2.

    Args:
        probs: [N, C].
        labels: [N].

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1])).item()
        0.25
    """
    _check_classification(probs, labels)
    target = torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return (probs.double() - target).square_().sum(-1).mean()


def reliability(probs: Tensor, labels: Tensor, num_bins: int = 20) -> Reliability:
    """Accuracy against confidence: the points of a reliability diagram.

    The confidence is the probability of the predicted class. Bin k of K is right-closed, `((k−1)/K, k/K]`. Its edges
    are rounded to the dtype of `probs`, so that 0.05 falls in the first of 20 bins in every precision.

    Args:
        probs: [N, C].
        labels: [N].
        num_bins: number K of bins of equal width on [0, 1].

    Example:
        >>> reliability(torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.7, 0.3]]), torch.tensor([1, 0, 0]), num_bins=2).counts
        tensor([1., 2.], dtype=torch.float64)
    """
    _check_classification(probs, labels)
    if isinstance(num_bins, bool) or not isinstance(num_bins, int) or num_bins < 1:
        raise ValueError(f"num_bins is {num_bins!r}; expected an integer of at least 1")
    confidence, correct = probs.amax(-1), ~_wrong(probs, labels)
    inner_edges = torch.arange(1, num_bins, dtype=torch.float64, device=probs.device) / num_bins
    bins = torch.bucketize(confidence, inner_edges.to(probs.dtype))

    def per_bin(values: Tensor) -> Tensor:
        return torch.zeros(num_bins, dtype=torch.float64, device=probs.device).index_add(0, bins, values.double())

    counts = per_bin(torch.ones_like(confidence))
    return Reliability(per_bin(confidence) / counts, per_bin(correct) / counts, counts)


def ece(probs: Tensor, labels: Tensor, num_bins: int = 20) -> Tensor:
    """Expected calibration error, `Σ_k B_k/N |confidence_k − accuracy_k|` over the right-closed bins of `reliability`.

    torchmetrics' bins are left-closed: its value differs where a confidence meets an edge.

    Args:
        probs: [N, C].
        labels: [N].
        num_bins: number of bins of equal width on [0, 1].

    Example:
        >>> round(ece(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).item(), 4)
        0.35
    """
    bins = reliability(probs, labels, num_bins)
    return (bins.counts * (bins.confidence - bins.accuracy).abs()).nansum() / len(probs)


def predictive_entropy(probs: Tensor) -> Tensor:
    """Total uncertainty of each prediction in nats, `H[p_n] = −Σ_c p_nc log p_nc` with `0 log 0 = 0`.

    Args:
        probs: [N, C].

    Returns:
        [N].

    Example:
        >>> predictive_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
        tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    _check_probabilities("probs", probs, "[N, C]")
    return _entropy(probs)


def expected_entropy(sampled_probs: Tensor) -> Tensor:
    """Aleatoric part of the uncertainty: the samples' mean entropy, `1/S Σ_s H[p_sn]`.

    Args:
        sampled_probs: [S, N, C].

    Returns:
        [N].

    Example:
        >>> expected_entropy(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # each sample is sure of itself
        tensor([0.], dtype=torch.float64)
    """
    _check_probabilities("sampled_probs", sampled_probs, "[S, N, C]")
    # One sample at a time: float64 temporaries of the size of one sample only.
    return torch.stack([_entropy(probs) for probs in sampled_probs]).mean(0)


def mutual_information(sampled_probs: Tensor) -> Tensor:
    """Epistemic part of the uncertainty: what the samples disagree about, `H[1/S Σ_s p_sn] − 1/S Σ_s H[p_sn]`.

    `predictive_entropy` of the mean prediction is `expected_entropy` plus `mutual_information`. The value is at least 0
    (rounding below it is cut off).

    Args:
        sampled_probs: [S, N, C].

    Returns:
        [N].

    Example:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931], dtype=torch.float64)
    """
    aleatoric = expected_entropy(sampled_probs)
    total = _entropy(sampled_probs.mean(0, dtype=torch.float64))
    return (total - aleatoric).clamp_min(0)


def rejection_curve(probs: Tensor, labels: Tensor) -> RejectionCurve:
    """Misclassification-rejection curve: the error of what remains after rejecting the i most uncertain predictions.

    `x_i = i/N` and `y_i = 1/(N−i) Σ_{j>i} e_j` for i = 0 … N−1, with e_1 … e_N the errors (0 or 1) in descending order
    of predictive entropy. Among equal entropies the earlier in `probs` is rejected first (a stable sort).

    Args:
        probs: [N, C].
        labels: [N].

    Example:
        >>> curve = rejection_curve(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 1]))
        >>> curve.rejected.tolist(), curve.error.tolist()
        ([0.0, 0.5], [0.5, 0.0])
    """
    _check_classification(probs, labels)
    num_data = len(probs)
    order = _entropy(probs).argsort(descending=True, stable=True)
    wrong = _wrong(probs, labels)[order]
    rejected = torch.arange(num_data, dtype=torch.float64, device=probs.device)
    remaining_wrong = wrong.flip(0).cumsum(0).flip(0)
    return RejectionCurve(rejected / num_data, remaining_wrong / (num_data - rejected))


def aumrc(probs: Tensor, labels: Tensor) -> Tensor:
    """Area under the misclassification-rejection curve, `1/N Σ_{i=1}^{N−1} y_i` with y of `rejection_curve`.

    Not AURC, which rejects by the largest probability and integrates by trapezoids.

    Args:
        probs: [N, C].
        labels: [N].

    Example:
        >>> probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]])
        >>> round(aumrc(probs, torch.tensor([1, 0, 0])).item(), 4)  # (1/2 + 1) / 3
        0.5
    """
    return rejection_curve(probs, labels).error[1:].sum() / len(probs)


def misclassification_at_rejection(probs: Tensor, labels: Tensor, rate: float) -> Tensor:
    """Error of what remains after rejecting the fraction `rate` of the data by entropy: MR10% for `rate=0.1`.

    `⌊rate · N⌋` examples are rejected, so never more than the rate; the product is read without its rounding error
    (0.29 of 100 is 29, although `0.29 * 100 < 29` in floating point). Ties are broken as in `rejection_curve`.

    Args:
        probs: [N, C].
        labels: [N].
        rate: fraction to reject, in [0, 1).

    Example:
        >>> probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]])
        >>> misclassification_at_rejection(probs, torch.tensor([1, 0, 0]), rate=0.5).item()  # one of three is rejected
        0.5
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate is {rate!r}; expected a fraction in [0, 1), such as 0.1 for 10 %")
    error = rejection_curve(probs, labels).error
    num_rejected = math.floor(rate * len(error) * (1 + 1e-12))
    return error[min(num_rejected, len(error) - 1)]


def auroc(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Area under the ROC curve of out-of-distribution detection, `P(s_out > s_in) + ½ P(s_out = s_in)`.

    Computed by torchmetrics (extra `metrics`). It is given ranks, because it would send scores outside [0, 1] through a
    sigmoid, which makes large scores equal.

    Args:
        scores_in: [N], scores of data like the training data, such as entropies; larger means less familiar.
        scores_out: [M], scores of other data.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 3.0])).item()
        0.875
    """
    _check_tensor("scores_in", scores_in)
    _check_tensor("scores_out", scores_out)
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        if scores.ndim != 1 or scores.numel() == 0:
            raise ValueError(f"{name} has shape {tuple(scores.shape)}; expected [N], one score per example, not empty")
    _check_devices("scores_in", scores_in, "scores_out", scores_out)
    scores = torch.cat([scores_in, scores_out])
    if scores.isnan().any():
        raise ValueError("scores_in or scores_out contains NaN; every score must be comparable")
    is_out = torch.cat([torch.zeros_like(scores_in, dtype=torch.long), torch.ones_like(scores_out, dtype=torch.long)])
    distinct, rank = scores.unique(return_inverse=True)
    return _torchmetrics_binary_auroc()(rank.double() / len(distinct), is_out).double()


def log_likelihood(distribution: Distribution, targets: Tensor) -> Tensor:
    """Mean log density of the targets, `1/N Σ_n log p_n(y_n)`.

    Args:
        distribution: one prediction per target; its shape (batch, then event) is that of `targets`.
        targets: the observed values.

    Example:
        >>> normal = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
        >>> round(log_likelihood(normal, torch.zeros(3)).item(), 4)
        -0.9189
    """
    _check_regression(distribution, targets)
    return distribution.log_prob(targets).mean(dtype=torch.float64)


def rmse(prediction: Tensor, targets: Tensor) -> Tensor:
    """Root mean squared error, `√(1/N Σ_n (ŷ_n − y_n)²)`.

    Args:
        prediction: a point prediction for each target, such as `distribution.mean`.
        targets: the observed values, same shape.

    Example:
        >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])).item()
        2.0
    """
    _check_tensor("prediction", prediction)
    _check_targets(targets, "prediction", prediction.shape)
    _check_devices("prediction", prediction, "targets", targets)
    return (prediction.double() - targets.double()).square().mean().sqrt()


def interval_coverage(distribution: Distribution, targets: Tensor, level: float) -> Tensor:
    """Fraction of targets inside the central interval that should hold `level` of them.

    With a = (1−level)/2: `F⁻¹(a) ≤ y ≤ F⁻¹(1−a)` where the distribution has a quantile function (Normal), otherwise
    `a ≤ F(y) ≤ 1−a` (mixtures).

    Args:
        distribution: one univariate prediction per target, with `icdf` or `cdf`; its shape is that of `targets`.
        targets: the observed values.
        level: probability of the interval, in (0, 1).

    Example:
        >>> normal = torch.distributions.Normal(torch.zeros(2), torch.ones(2))
        >>> interval_coverage(normal, torch.tensor([1.9, 2.1]), level=0.95).item()
        0.5
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; expected a probability in (0, 1), such as 0.95")
    _check_regression(distribution, targets)
    lower, upper = targets.new_tensor((1 - level) / 2), targets.new_tensor((1 + level) / 2)
    value = targets
    try:
        lower, upper = distribution.icdf(lower), distribution.icdf(upper)
    except NotImplementedError:
        try:
            value = distribution.cdf(targets)
        except NotImplementedError as error:
            raise NotImplementedError(
                f"distribution is a {type(distribution).__name__} without icdf and cdf; expected one with either"
            ) from error
    return ((lower <= value) & (value <= upper)).double().mean()


def _wrong(probs: Tensor, labels: Tensor) -> Tensor:
    return probs.argmax(-1) != labels


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs.double()).sum(-1)


def _torchmetrics_binary_auroc() -> Callable[[Tensor, Tensor], Tensor]:
    # torchmetrics imports torchvision where it is installed, which may need mending first.
    with suppress(ImportError):
        import mnvi.vision  # noqa: F401
    try:
        from torchmetrics.functional.classification import binary_auroc
    except ModuleNotFoundError as error:
        raise ImportError("auroc needs torchmetrics: run `pip install 'mnvi[metrics]'`") from error
    return binary_auroc


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; expected a torch.Tensor")


def _check_devices(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    if value.device != other.device:
        raise ValueError(f"{name} is on {value.device}, {other_name} on {other.device}; move both to one device")


def _check_probabilities(name: str, probs: Tensor, shape: str) -> None:
    _check_tensor(name, probs)
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


def _check_classification(probs: Tensor, labels: Tensor) -> None:
    _check_tensor("probs", probs)
    _check_tensor("labels", labels)
    _check_devices("probs", probs, "labels", labels)
    _check_probabilities("probs", probs, "[N, C]")
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"labels has dtype {labels.dtype}; expected an integer dtype holding class indices")
    if labels.shape != probs.shape[:1]:
        raise ValueError(f"labels has shape {tuple(labels.shape)}; expected ({len(probs)},), one for each row of probs")
    lowest, highest = (bound.item() for bound in labels.aminmax())
    if lowest < 0 or highest >= probs.shape[1]:
        raise ValueError(f"labels lie in [{lowest}, {highest}]; expected class indices in [0, {probs.shape[1] - 1}]")


def _check_regression(distribution: Distribution, targets: Tensor) -> None:
    if not isinstance(distribution, Distribution):
        raise TypeError(f"distribution is a {type(distribution).__name__}; expected a torch.distributions.Distribution")
    _check_targets(targets, "distribution", distribution.batch_shape + distribution.event_shape)


def _check_targets(targets: Tensor, name: str, shape: torch.Size) -> None:
    _check_tensor("targets", targets)
    # Broadcasting [N] against [N, 1] would silently compare every prediction with every target.
    if targets.shape != shape or targets.numel() == 0:
        raise ValueError(f"targets has shape {tuple(targets.shape)}, {name} {tuple(shape)}; expected equal, not empty")
    if not targets.is_floating_point():
        raise TypeError(f"targets has dtype {targets.dtype}; expected a floating-point dtype")
    if targets.isnan().any():
        raise ValueError("targets contains NaN; expected observed values")
