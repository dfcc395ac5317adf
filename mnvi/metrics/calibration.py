"""Does a confidence of 90 % mean that 90 % are right?"""

from typing import NamedTuple

import torch
from torch import Tensor

from mnvi.metrics._inputs import check_classification
from mnvi.metrics.classification import wrong
from mnvi.moments.checking import check_number


class Reliability(NamedTuple):
    """Bins of `reliability`, each [num_bins]; confidence and accuracy are NaN where a bin is empty.

    Attributes:
        confidence: mean probability of the predicted class in each bin.
        accuracy: fraction of each bin that is right.
        counts: number of predictions in each bin.

    Example:
        >>> import torch
        >>> reliability(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), num_bins=2).counts
        tensor([0., 1.], dtype=torch.float64)
    """

    confidence: Tensor
    accuracy: Tensor
    counts: Tensor


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
    check_classification(probs, labels)
    check_number("num_bins", num_bins, least=1, whole=True)
    confidence, correct = probs.amax(-1), ~wrong(probs, labels)
    inner_edges = torch.arange(1, num_bins, dtype=torch.float64, device=probs.device) / num_bins
    bins = torch.bucketize(confidence, inner_edges.to(probs.dtype))

    def per_bin(values: Tensor) -> Tensor:
        return torch.zeros(num_bins, dtype=torch.float64, device=probs.device).index_add(0, bins, values.double())

    counts = per_bin(torch.ones_like(confidence))
    return Reliability(per_bin(confidence) / counts, per_bin(correct) / counts, counts)


def ece(probs: Tensor, labels: Tensor, num_bins: int = 20) -> Tensor:
    """Expected calibration error, `Σ_k B_k/N |confidence_k − accuracy_k|` over the right-closed bins of `reliability`.

    torchmetrics' bins are left-closed: its value differs if a confidence lies on an edge.

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
