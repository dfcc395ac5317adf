"""How wrong are the predictions that remain once the most uncertain are rejected?"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mnvi.metrics._inputs import check_classification
from mnvi.metrics.classification import wrong
from mnvi.metrics.uncertainty import entropy
from mnvi.moments.checking import check_number


class RejectionCurve(NamedTuple):
    """Points of `rejection_curve`, each [N]: the fraction rejected and the error of what remains.

    Attributes:
        rejected: fraction of the predictions rejected, the most uncertain first.
        error: fraction of the remaining predictions that is wrong.

    Example:
        >>> import torch
        >>> rejection_curve(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([1, 0])).error
        tensor([0.5000, 0.0000], dtype=torch.float64)
    """

    rejected: Tensor
    error: Tensor


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
    check_classification(probs, labels)
    num_data = len(probs)
    order = entropy(probs).argsort(descending=True, stable=True)
    errors = wrong(probs, labels)[order]
    rejected = torch.arange(num_data, dtype=torch.float64, device=probs.device)
    remaining = errors.flip(0).cumsum(0).flip(0)
    return RejectionCurve(rejected / num_data, remaining / (num_data - rejected))


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

    It rejects `⌊rate · N⌋` examples, never more than the rate; the product is taken without its rounding error (0.29 of
    100 is 29, although `0.29 * 100 < 29` in floating point). Ties are broken as in `rejection_curve`.

    Args:
        probs: [N, C].
        labels: [N].
        rate: fraction to reject, in [0, 1).

    Example:
        >>> probs = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]])
        >>> misclassification_at_rejection(probs, torch.tensor([1, 0, 0]), rate=0.5).item()  # one of three is rejected
        0.5
    """
    check_number("rate", rate, least=0, below=1)
    error = rejection_curve(probs, labels).error
    num_rejected = math.floor(rate * len(error) * (1 + 1e-12))
    return error[min(num_rejected, len(error) - 1)]
