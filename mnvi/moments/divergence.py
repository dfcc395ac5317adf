"""KL divergences from a posterior to its prior, summed over all weights, with lean closed-form gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling, taking_forward_derivatives
from mnvi.moments.precision import widened
from mnvi.moments.recomputation import recomputed

_INSIDE_LOG = 1e-10


def multiplicative_noise(weight: Tensor, alpha: Tensor, prior_variance: float) -> Tensor:
    r"""KL of :math:`\mathcal N(w, \alpha w^2)` from :math:`\mathcal N(0, \sigma^2)`, summed.

    .. math:: \sum \tfrac12\Big(\log\frac{\sigma^2}{\alpha w^2 + 10^{-10}} + \frac{(1+\alpha) w^2}{\sigma^2} - 1\Big)

    Args:
        weight: weight means.
        alpha: noise variances, one per input unit, laid out to broadcast against ``weight``.
        prior_variance: :math:`\sigma^2`.

    Example:
        >>> import torch
        >>> multiplicative_noise(torch.ones(2, 1), torch.ones(1), 2.0)
        tensor(0.6931)
    """
    weight, alpha = widened(weight), widened(alpha)  # 1e-10 is zero in half precision
    if is_compiling() or taking_forward_derivatives():
        formula: Tensor = recomputed(_noise_formula, weight, alpha, prior_variance)
        return formula
    value: Tensor = _MultiplicativeNoise.apply(weight, alpha, prior_variance)
    return value


def _noise_formula(weight: Tensor, alpha: Tensor, prior_variance: float) -> Tensor:
    square = weight * weight  # the compiler would keep a weight.square() that the layer shares
    log_ratio = torch.log(alpha * square + _INSIDE_LOG).sum()
    constant = weight.numel() * (math.log(prior_variance) - 1)
    return 0.5 * (constant - log_ratio + ((1 + alpha) * square).sum() / prior_variance)


class _MultiplicativeNoise(torch.autograd.Function):
    """Saves only the weights and α; ∂/∂w = (1+α)w/σ² − αw/(αw²+ε), ∂/∂α = ½Σ w²/σ² − w²/(αw²+ε)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, alpha: Tensor, prior_variance: float) -> Tensor:
        return _noise_formula(weight, alpha, prior_variance)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        weight, alpha, ctx.prior_variance = inputs
        ctx.save_for_backward(weight, alpha)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, alpha = ctx.saved_tensors
        square = weight.square()
        inverse = (alpha * square + _INSIDE_LOG).reciprocal()
        to_alpha = square * (1 / ctx.prior_variance - inverse) * (0.5 * grad)
        to_weight = ((1 + alpha) / ctx.prior_variance - alpha * inverse) * weight * grad
        return to_weight, to_alpha.sum_to_size(alpha.shape), None


def mean_field(mean: Tensor, log_var: Tensor, prior_variance: float) -> Tensor:
    r"""KL of :math:`\mathcal N(m, s)` from :math:`\mathcal N(0, \sigma^2)`, summed.

    .. math:: \sum \tfrac12\Big(\log\frac{\sigma^2}{s} + \frac{s + m^2}{\sigma^2} - 1\Big)

    Args:
        mean: means.
        log_var: :math:`\log s`, same shape.
        prior_variance: :math:`\sigma^2`.

    Example:
        >>> import torch
        >>> mean_field(torch.zeros(3), torch.zeros(3), 1.0)
        tensor(0.)
    """
    mean, log_var = widened(mean), widened(log_var)
    log_ratio = log_var - math.log(prior_variance)
    # each exp(r) − r − 1 is ≥ 0, so rounding cannot make the sum negative
    spread = (torch.expm1(log_ratio) - log_ratio).sum()
    return 0.5 * (spread + mean.square().sum() / prior_variance)


def empirical_bayes(mean: Tensor, log_var: Tensor, shape: float, scale: float) -> Tensor:
    r"""DVI's divergence with the prior variance maximised out under an inverse gamma; see ``EmpiricalBayes``.

    Args:
        mean: means of one tensor.
        log_var: log variances, same shape.
        shape: :math:`a`.
        scale: :math:`s_0^2`, so that :math:`b = (1+a)s_0^2`.

    Example:
        >>> import torch
        >>> empirical_bayes(torch.ones(4), torch.zeros(4), 4.4798, 1.0)
        tensor(1.6300)
    """
    mean, log_var = widened(mean), widened(log_var)
    count = mean.numel()
    total = (log_var.exp() + mean.square()).sum()
    weight, rate = count + 2 * shape + 2, 2 * (1 + shape) * scale
    log_prior = torch.log((total + rate) / weight)
    return 0.5 * (count * log_prior + total * weight / (total + rate) - count - log_var.sum())
