"""Do scores tell data like the training data from other data?"""

import torch
from torch import Tensor

from mnvi.metrics._inputs import check_devices, check_tensor


def auroc(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Area under the ROC curve of out-of-distribution detection, `P(s_out > s_in) + ½ P(s_out = s_in)`.

    Args:
        scores_in: [N], scores of data like the training data, such as entropies; larger means less familiar.
        scores_out: [M], scores of other data.

    Example:
        >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 3.0])).item()
        0.875
    """
    check_tensor("scores_in", scores_in)
    check_tensor("scores_out", scores_out)
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        if scores.ndim != 1 or scores.numel() == 0:
            raise ValueError(f"{name} has shape {tuple(scores.shape)}; expected [N], one score per example, not empty")
    check_devices("scores_in", scores_in, "scores_out", scores_out)
    if scores_in.isnan().any() or scores_out.isnan().any():
        raise ValueError("scores_in or scores_out contains NaN; every score must be comparable")
    known = scores_in.double().sort().values
    below = torch.searchsorted(known, scores_out.double(), side="left")
    below_or_equal = torch.searchsorted(known, scores_out.double(), side="right")
    return (below + below_or_equal).double().mean() / (2 * len(known))
