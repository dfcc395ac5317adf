"""How often is a predicted class wrong, and how probable was the true one?"""

import torch
from torch import Tensor

from mnvi.metrics._inputs import check_classification


def misclassification(probs: Tensor, labels: Tensor) -> Tensor:
    """Fraction of wrong predictions, `1/N Σ_n [argmax_c p_nc ≠ y_n]`.

    Args:
        probs: [N, C].
        labels: [N].

    Example:
        >>> misclassification(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).item()
        0.5
    """
    check_classification(probs, labels)
    return wrong(probs, labels).double().mean()


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
    check_classification(probs, labels)
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
    check_classification(probs, labels)
    target = torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return (probs.double() - target).square_().sum(-1).mean()


def wrong(probs: Tensor, labels: Tensor) -> Tensor:
    return probs.argmax(-1) != labels
