"""Do scores tell data like the training data from other data?"""

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from mnvi.metrics.checks import check_devices, check_tensor


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
    check_tensor("scores_in", scores_in)
    check_tensor("scores_out", scores_out)
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        if scores.ndim != 1 or scores.numel() == 0:
            raise ValueError(f"{name} has shape {tuple(scores.shape)}; expected [N], one score per example, not empty")
    check_devices("scores_in", scores_in, "scores_out", scores_out)
    scores = torch.cat([scores_in, scores_out])
    if scores.isnan().any():
        raise ValueError("scores_in or scores_out contains NaN; every score must be comparable")
    is_out = torch.cat([torch.zeros_like(scores_in, dtype=torch.long), torch.ones_like(scores_out, dtype=torch.long)])
    distinct, rank = scores.unique(return_inverse=True)
    return _torchmetrics_binary_auroc()(rank.double() / len(distinct), is_out).double()


def _torchmetrics_binary_auroc() -> Callable[[Tensor, Tensor], Tensor]:
    # torchmetrics imports torchvision where it is installed, which may need mending first.
    with suppress(ImportError):
        import mnvi.vision  # noqa: F401
    try:
        from torchmetrics.functional.classification import binary_auroc
    except ModuleNotFoundError as error:
        raise ImportError("auroc needs torchmetrics: run `pip install 'mnvi[metrics]'`") from error
    return binary_auroc
