"""KL divergences from a posterior to its prior, summed over all weights, with lean closed-form gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import each, is_compiling, is_traced, taking_forward_derivatives
from mnvi.moments.precision import widened
from mnvi.moments.recomputation import recomputed

_INSIDE_LOG = 1e-10
_TOGETHER = 1 << 22  # weights of small layers that share a launch; larger groups would only need more memory


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
        to_weight, to_alpha = _noise_gradients(weight, alpha, ctx.prior_variance, grad)
        return to_weight, to_alpha, None


def _noise_gradients(weight: Tensor, alpha: Tensor, prior_variance: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    square = weight.square()
    inverse = (alpha * square + _INSIDE_LOG).reciprocal()
    to_alpha = square * (1 / prior_variance - inverse) * (0.5 * grad)
    to_weight = ((1 + alpha) / prior_variance - alpha * inverse) * weight * grad
    return to_weight, to_alpha.sum_to_size(alpha.shape)


def multiplicative_noise_of_layers(weights: list[Tensor], alphas: list[Tensor], prior_variance: float) -> Tensor:
    """The sum of :func:`multiplicative_noise` over several layers; small layers share each operation.

    Args:
        weights, alphas: a weight and its α for every layer, as there.
        prior_variance: as there.

    Example:
        >>> import torch
        >>> one = torch.ones(2, 1)
        >>> multiplicative_noise_of_layers([one, one], [one[:1], one[:1]], 2.0)
        tensor(1.3863)
    """
    kinds = {(type(t) in (Tensor, torch.nn.Parameter), t.dtype, t.device) for t in (*weights, *alphas)}
    if len(kinds) > 1 or not next(iter(kinds))[0] or is_traced() or taking_forward_derivatives():
        pairs = zip(weights, alphas, strict=True)
        return torch.stack([multiplicative_noise(weight, alpha, prior_variance) for weight, alpha in pairs]).sum()
    weights, alphas = [widened(t) for t in weights], [widened(t) for t in alphas]
    parts = [
        _NoiseOfLayers.apply(prior_variance, len(part), *(weights[i] for i in part), *(alphas[i] for i in part))
        for part in _groups([weight.numel() for weight in weights])
    ]
    return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


def _groups(sizes: list[int]) -> list[list[int]]:
    """Consecutive layers, together small."""
    groups: list[list[int]] = []
    total = 0
    for i, size in enumerate(sizes):
        if not groups or total + size > _TOGETHER:
            groups.append([])
            total = 0
        groups[-1].append(i)
        total += size
    return groups


class _NoiseOfLayers(torch.autograd.Function):
    """As :class:`_MultiplicativeNoise`, with the same arithmetic, for a list of layers."""

    @staticmethod
    def forward(ctx: Any, prior_variance: float, count: int, *tensors: Tensor) -> Tensor:
        ctx.prior_variance, ctx.count = prior_variance, count
        ctx.save_for_backward(*tensors)
        weights, alphas = tensors[:count], tensors[count:]
        squares = each.mul(weights, weights)
        noisy = each.mul(squares, alphas)
        square, noise = (torch.cat([t.reshape(-1) for t in list_]) for list_ in (squares, noisy))
        energy = square.sum() + noise.sum()  # Σ (1 + α) w²
        constant = len(square) * (math.log(prior_variance) - 1)
        return 0.5 * (constant - noise.add_(_INSIDE_LOG).log_().sum() + energy / prior_variance)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, alphas = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled():  # create_graph
            pairs = zip(weights, alphas, strict=True)
            found = [_noise_gradients(weight, alpha, ctx.prior_variance, grad) for weight, alpha in pairs]
            return None, None, *(to_weight for to_weight, _ in found), *(to_alpha for _, to_alpha in found)
        squares = each.mul(weights, weights)
        inverse = each.mul(squares, alphas)
        each.add_(inverse, _INSIDE_LOG)
        each.reciprocal_(inverse)

        by_alpha = each.neg(inverse)
        each.add_(by_alpha, 1 / ctx.prior_variance)
        each.mul_(by_alpha, squares)
        each.mul_(by_alpha, 0.5 * grad)
        to_alpha = [t.sum_to_size(alpha.shape) for t, alpha in zip(by_alpha, alphas, strict=True)]

        to_weight = inverse
        each.mul_(to_weight, alphas)
        each.neg_(to_weight)
        flat = ((1 + torch.cat([alpha.reshape(-1) for alpha in alphas])) / ctx.prior_variance).split(
            [alpha.numel() for alpha in alphas]
        )
        each.add_(to_weight, [part.view_as(alpha) for part, alpha in zip(flat, alphas, strict=True)])
        each.mul_(to_weight, weights)
        each.mul_(to_weight, grad)
        return None, None, *to_weight, *to_alpha


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
