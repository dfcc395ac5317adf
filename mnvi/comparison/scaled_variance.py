"""A factor that sampled weights give: predicted variances become, in the median, those of sampled weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnvi.comparison.comparing import compare_with_sampling
from mnvi.conversion.copying import copied
from mnvi.layers._wrapped import Wrapped
from mnvi.moments._torch import pytree
from mnvi.values.base import RandomValue


class ScaledVariance(Wrapped):
    r"""A network whose outputs keep their means and get :math:`c` times their variances.

    Attributes:
        factor: c.
        spread: quartiles of the factors of single outputs and examples, before they are pooled into one; far apart,
            they say that one factor does not fit all.

    Example:
        >>> import torch, mnvi
        >>> bayesian = mnvi.convert(torch.nn.Linear(4, 3), mnvi.MultiplicativeNoise(prior_variance=1.0)).eval()
        >>> scaled = mnvi.scale_variance(bayesian, torch.randn(8, 4))
        >>> x = torch.randn(2, 4)
        >>> torch.allclose(scaled(x).var, scaled.factor * bayesian(x).var)
        True
    """

    factor: Tensor

    def __init__(self, net: nn.Module, factor: float, spread: tuple[float, float]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("factor", torch.tensor(float(factor)))
        self.spread = spread

    def changed(self, out: Any) -> Any:
        return pytree.tree_map(self._scaled, out, is_leaf=_is_random)

    def _scaled(self, out: Any) -> Any:
        if not _is_random(out):
            return out
        return (out - out.mean) * self.factor.sqrt().to(out.dtype) + out.mean

    def extra_repr(self) -> str:
        return f"factor={float(self.factor):.3g}, quartiles={self.spread[0]:.3g} to {self.spread[1]:.3g}"


def scale_variance(
    model: nn.Module,
    x: Any,
    num_samples: int = 200,
    *,
    chunk: int | None = None,
    generator: torch.Generator | None = None,
) -> ScaledVariance:
    r"""Multiply a network's output variances by one number, so that they agree with sampled weights.

    .. math:: c = \operatorname{median}_{b,k}\; \hat\sigma^2_{bk} / \sigma^2_{bk}

    where :math:`\hat\sigma^2_{bk}` is the variance of output k for example b over draws of all weights, and
    :math:`\sigma^2_{bk}` the predicted one. Rules that neglect correlations lose a share of the variance. A few dozen
    examples and a few hundred passes measure its median once; predictions still take one pass. Single outputs may
    stay off: ``spread`` says how far apart the factors are.

    The variance is then that of the posterior. Whether predictions get better is another question: a network that was
    trained with the variances as they were, or a noise that :func:`mnvi.tune_noise` chose with them, fits the data
    without the factor.

    Args:
        model: from :func:`mnvi.convert`, in evaluation mode; it is copied.
        x: its input, as in :func:`mnvi.compare_with_sampling`; examples of the kind that the network will see.
        num_samples: number of draws of the weights. All examples share a draw, so the factor is off by about
            :math:`\sqrt{2/S}` of itself, 10 % for 200, however many examples there are.
        chunk: number of examples in one pass, to bound memory; None for all.
        generator: makes the result reproducible.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        ... )
        >>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0)).eval()
        >>> images = torch.rand(8, 1, 8, 8)
        >>> scaled = mnvi.scale_variance(bayesian, images, generator=torch.Generator().manual_seed(0))
        >>> float(scaled.factor) > 20  # positions were taken as independent, but they share the weights
        True
    """
    compared = compare_with_sampling(model, x, num_samples, chunk=chunk, generator=generator)
    predicted = torch.cat([layer.predicted_std.flatten() for layer in compared.outputs])
    sampled = torch.cat([layer.sampled_std.flatten() for layer in compared.outputs])
    random = predicted > 0
    if not bool(random.any()):
        raise ValueError(
            "scale_variance: the model predicts a variance of zero for every output, and no factor changes that; look "
            "at mnvi.summary(model, x) for the layers that have noise"
        )
    factors = (sampled[random] / predicted[random]).square()
    low, median, high = factors.quantile(factors.new_tensor([0.25, 0.5, 0.75])).tolist()
    if median == 0:
        raise ValueError(
            "scale_variance: half of the outputs do not move with the weights, although the model predicts a variance "
            "for them; give it inputs of the kind that it will see"
        )
    return ScaledVariance(copied("scale_variance", model), median, (low, high)).eval()


def _is_random(value: Any) -> bool:
    return isinstance(value, RandomValue)
