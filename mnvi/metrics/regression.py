"""How far off are predicted numbers, and how probable were the observed values?"""

import torch
from torch import Tensor
from torch.distributions import Distribution

from mnvi.metrics._inputs import check_devices, check_regression, check_targets, check_tensor
from mnvi.moments.checking import check_number


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
    check_regression(distribution, targets)
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
    check_tensor("prediction", prediction)
    check_targets(targets, "prediction", prediction.shape)
    check_devices("prediction", prediction, "targets", targets)
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
    check_number("interval_coverage: level", level, above=0, below=1)
    check_regression(distribution, targets)
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
