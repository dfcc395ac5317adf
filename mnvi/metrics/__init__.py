"""How good are predictions, and how good is their uncertainty?

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

from mnvi.metrics.calibration import Reliability, ece, reliability
from mnvi.metrics.classification import brier, misclassification, nll
from mnvi.metrics.detection import auroc
from mnvi.metrics.regression import interval_coverage, log_likelihood, rmse
from mnvi.metrics.rejection import RejectionCurve, aumrc, misclassification_at_rejection, rejection_curve
from mnvi.metrics.uncertainty import expected_entropy, mutual_information, predictive_entropy

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
