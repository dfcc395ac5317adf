"""How uncertain is a prediction, and why: noise in the data or too little of it?"""

import torch
from torch import Tensor

from mnvi.metrics._inputs import check_probabilities


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
    check_probabilities("probs", probs, "[N, C]")
    return entropy(probs)


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
    check_probabilities("sampled_probs", sampled_probs, "[S, N, C]")
    # One sample at a time: float64 temporaries of the size of one sample only.
    return torch.stack([entropy(probs) for probs in sampled_probs]).mean(0)


def mutual_information(sampled_probs: Tensor) -> Tensor:
    """Epistemic part of the uncertainty: what the samples disagree about, `H[1/S Σ_s p_sn] − 1/S Σ_s H[p_sn]`.

    `predictive_entropy` of the mean prediction is `expected_entropy` plus `mutual_information`. The value is at least 0
    (negative rounding errors become 0).

    Args:
        sampled_probs: [S, N, C].

    Returns:
        [N].

    Example:
        >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        tensor([0.6931], dtype=torch.float64)
    """
    aleatoric = expected_entropy(sampled_probs)
    total = entropy(sampled_probs.mean(0, dtype=torch.float64))
    return (total - aleatoric).clamp_min(0)


def entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs.double()).sum(-1)
