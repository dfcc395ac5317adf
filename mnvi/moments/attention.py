"""Softmax, log-softmax and logsumexp."""

from __future__ import annotations

import torch
from torch import Tensor

from mnvi.moments.precision import widened

# How fast the shift of the logits saturates with their variance; the measurements below favour 1/4 over 1/2.
_DAMPING = 0.25


def softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    r"""Approximate moments of :math:`\mathrm{softmax}(Z)`, with :math:`p = \mathrm{softmax}(\mu)`.

    .. math:: E = \mathrm{softmax}\Big(\mu + \frac{(1-2p)\,v}{2(1 + v/4)}\Big), \qquad V_i = \frac{F_iB_i}{F_i + B_i}

    .. math:: F_i = E_i^2\Big[(1-E_i)^2v_i + \sum_{j\ne i}E_j^2v_j\Big], \qquad B_i = E_i(1-E_i)

    For small variances the mean is right to second order, and it always sums to one. F is the first-order variance; B
    is the largest variance that a number between 0 and 1 with mean E can have. V follows F for small variances and
    never exceeds B.

    Largest errors against 10⁵ samples, for 2, 10 and 50 classes with means drawn from :math:`\mathcal N(0, 4)` and
    variances uniform around 0.1, 1 and 4: the mean is off by 0.0014, 0.046 and 0.12, the standard deviation by 0.0034,
    0.047 and 0.09. The plain softmax(μ) would be off by 0.017, 0.13 and 0.36.

    Args:
        mean, var: the logits' moments; a mean of −∞ takes no part.
        dim: the dimension that sums to one.

    Example:
        >>> import torch
        >>> softmax(torch.zeros(1, 2), torch.ones(1, 2), -1)
        (tensor([[0.5000, 0.5000]]), tensor([[0.0833, 0.0833]]))
    """
    logits = widened(mean)
    # Only differences matter; large logits would swallow the digits of the shift added to them below.
    logits = logits - logits.amax(dim, keepdim=True).detach()
    p = torch.softmax(logits, dim)
    p = torch.softmax(logits + (0.5 - p) * (var / (1 + _DAMPING * var)), dim)
    not_p = _others(p, dim)
    first_order = p * (p * _log_variance(p, not_p, var, dim))  # p * p first might underflow
    bound = p * not_p
    # Half the harmonic mean of the two; 0 where both are 0.
    variance = first_order * (bound / (first_order + bound).clamp(min=torch.finfo(var.dtype).tiny))
    return p.to(mean.dtype), variance


def log_softmax(mean: Tensor, var: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    r"""Approximate moments of :math:`\log\mathrm{softmax}(Z)`, with :math:`p = \mathrm{softmax}(\mu)`.

    .. math:: E_i = \mu_i - E[\mathrm{lse}(Z)], \qquad V_i = (1-2p_i)v_i + \sum_j p_j^2 v_j

    The mean is of second order (see :func:`logsumexp`), the variance of first. Largest errors, measured as in
    :func:`softmax`: mean 0.0034, 0.08 and 0.75, standard deviation 0.017, 0.25 and 1.05.

    Args:
        mean, var: the logits' moments.
        dim: the dimension that sums to one.

    Example:
        >>> import torch
        >>> log_softmax(torch.zeros(1, 2), torch.ones(1, 2), -1)
        (tensor([[-0.9431, -0.9431]]), tensor([[0.5000, 0.5000]]))
    """
    logits = widened(mean)
    logits = logits - logits.amax(dim, keepdim=True)
    p = torch.softmax(logits, dim)
    not_p = _others(p, dim)
    total = _log_total(logits, dim) + 0.5 * (p * not_p * var).sum(dim, keepdim=True)
    return (logits - total).to(mean.dtype), _log_variance(p, not_p, var, dim)


def logsumexp(mean: Tensor, var: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> tuple[Tensor, Tensor]:
    r"""Approximate moments of :math:`\log\sum_j e^{Z_j}`, with :math:`p = \mathrm{softmax}(\mu)`.

    .. math:: E = \mathrm{lse}(\mu) + \tfrac12\sum_j p_j(1-p_j)v_j, \qquad V = \sum_j p_j^2 v_j

    The mean is of second order, the variance of first. Largest errors, measured as in :func:`softmax`: mean 0.0018,
    0.08 and 0.76, standard deviation 0.005, 0.14 and 0.47.

    Args:
        mean, var: the moments of Z.
        dim, keepdim: as in ``torch.logsumexp``.

    Example:
        >>> import torch
        >>> logsumexp(torch.zeros(1, 2), torch.ones(1, 2), -1)
        (tensor([0.9431]), tensor([0.5000]))
    """
    largest = widened(mean).amax(dim, keepdim=True)
    logits = widened(mean) - largest  # a large total would cost p, the exponential of a difference, its digits
    total = _log_total(logits, dim)
    p = (logits - total).exp()
    expectation = largest + (total + 0.5 * (p * _others(p, dim) * var).sum(dim, keepdim=True))
    variance = (p.square() * var).sum(dim, keepdim=True)
    if not keepdim:
        expectation, variance = expectation.squeeze(dim), variance.squeeze(dim)
    return expectation.to(mean.dtype), variance


def _log_total(logits: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """log Σ exp of logits whose largest is 0. The largest contributes the 1 of log1p; adding it first would round off a
    small rest."""
    leads = logits == 0
    rest = logits.exp().masked_fill(leads, 0.0).sum(dim, keepdim=True) + (leads.sum(dim, keepdim=True) - 1)
    return torch.log1p(rest)


def _log_variance(p: Tensor, not_p: Tensor, var: Tensor, dim: int) -> Tensor:
    """First-order variance of log p."""
    return not_p.square() * var + _others(p.square() * var, dim)


def _others(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The sum of all other entries, for x ≥ 0; computed without the largest entry, beside which digits would cancel."""
    largest = x.amax(dim, keepdim=True)
    leads = x == largest
    rest = x.masked_fill(leads, 0.0).sum(dim, keepdim=True)
    return (leads.sum(dim, keepdim=True) * largest - x) + rest
