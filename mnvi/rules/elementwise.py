"""Lets any elementwise function answer for a Gaussian."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import values_can_be_read
from mnvi.moments.checking import check_number
from mnvi.moments.quadrature import broadcasts, gauss_hermite, quadrature_moments, taylor_moments
from mnvi.rules.options import current
from mnvi.values.base import RandomValue
from mnvi.values.gaussian import Gaussian

DEFAULT_ORDER = 20

_REMEDY = "write a rule for it with @mnvi.rule"
_APPROXIMATIONS = (None, "quadrature", "taylor")


def elementwise(function: Callable, approximation: str | None = None, *, order: int = DEFAULT_ORDER) -> Callable:
    r"""Let an elementwise function take a ``Gaussian``.

    On a tensor the result does what ``function`` did; on a ``Gaussian`` it returns the ``Gaussian`` of the result,

    .. math:: E = \sum_i w_i f(\mu + \sigma t_i), \quad V = \sum_i w_i (f(\mu + \sigma t_i) - E)^2
              \qquad\text{or}\qquad E = f(\mu), \quad V = f'(\mu)^2\sigma^2.

    Args:
        function: takes the tensor first; further arguments are passed on. Every entry of the result must depend only on
            the same entry of the tensor. The first call checks this: a function that is random or not elementwise
            raises ``ValueError``. So does one that is not finite at a node, such as a logarithm; ``"taylor"`` may help
            there.
        approximation: ``"quadrature"`` or ``"taylor"``; ``None`` is quadrature, unless
            ``mnvi.options(activation="taylor")`` is in force.
        order: number of Gauss–Hermite nodes. Exact for polynomials of degree up to ``order - 1``; for a smooth
            function the error falls exponentially, as long as it varies on a scale not much smaller than
            :math:`\sigma`. Kinks and steps cost accuracy: with 20 nodes ``abs`` is off by up to :math:`0.06\,\sigma` in
            the mean.

    Example:
        >>> import torch, mnvi
        >>> @mnvi.elementwise
        ... def gaussian_bump(x):
        ...     return torch.exp(-x * x)
        >>> gaussian_bump(torch.zeros(1))
        tensor([1.])
        >>> gaussian_bump(mnvi.Gaussian(torch.zeros(1), torch.full((1,), 0.5))).mean  # 1/√2
        tensor([0.7071])
        >>> _ = mnvi.rule(torch.digamma, torch.Tensor.digamma)(mnvi.elementwise(torch.digamma))
        >>> torch.digamma(mnvi.Gaussian(torch.ones(1), torch.full((1,), 1e-4))).var
        tensor([0.0003])
    """
    if not callable(function):
        raise TypeError(f"elementwise: function={function!r} is not callable; pass e.g. torch.erf")
    if approximation not in _APPROXIMATIONS:
        raise ValueError(f"elementwise: approximation={approximation!r} must be 'quadrature', 'taylor' or None")
    check_number("elementwise: order", order, least=2, whole=True)
    nodes = gauss_hermite(order)
    name = getattr(function, "__name__", "function")
    probed = False

    @functools.wraps(function)
    def answer(x: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, RandomValue) for value in (*args, *kwargs.values())):
            raise TypeError(
                f"{name}: only the first argument of an elementwise function may "
                "be random; write a rule with @mnvi.rule for functions of several"
            )
        if not isinstance(x, Gaussian):
            return function(x, *args, **kwargs)
        kwargs.pop("inplace", None)  # whoever called changes the object in place, not the nodes here

        def of_tensor(values: Tensor) -> Tensor:
            result: Tensor = function(values, *args, **kwargs)
            return result

        nonlocal probed
        if not probed and x.numel() and values_can_be_read(x.mean):
            _probe(name, of_tensor, x.mean.detach())
            probed = x.numel() > 1  # every function of a single entry is elementwise
        if (approximation or current().activation) == "taylor":
            return _finite(name, x, *taylor_moments(of_tensor, x.mean, x.var), remedy="")
        remedy = f"; mnvi.elementwise({name}, 'taylor') needs only its value and slope at the mean"
        return _finite(name, x, *quadrature_moments(of_tensor, x.mean, x.var, nodes), remedy=remedy)

    return answer


def _finite(name: str, x: Gaussian, mean: Tensor, var: Tensor, remedy: str) -> Gaussian:
    """The result, or an error if a finite input has no finite moments, as under a logarithm: Gaussians go below 0."""
    if values_can_be_read(mean):
        finite = (mean.detach() + var.detach()).isfinite() | ~(x.mean.detach() + x.var.detach()).isfinite()
        if not finite.all():
            place = int(finite.flatten().int().argmin())
            at, spread = (t.expand(finite.shape).flatten()[place].item() for t in (x.mean, x.var))
            where = f"mean {at:g} and variance {spread:g}"
            raise ValueError(f"{name}: not finite for a Gaussian of {where}{remedy}")
    return Gaussian.trusted(mean, var)


def _probe(name: str, function: Callable[[Tensor], Tensor], values: Tensor) -> None:
    """Once per function: change the first, a middle and the last entry, one at a time, and check that only the same
    entry of the result changes."""
    with torch.no_grad():
        before = function(values)
        if isinstance(before, Tensor) and before.shape != values.shape and broadcasts(values.shape, before.shape):
            values = values.expand(before.shape)  # another argument is wider
            before = function(values)
        if not isinstance(before, Tensor) or before.shape != values.shape:
            got = tuple(before.shape) if isinstance(before, Tensor) else type(before).__name__
            raise ValueError(f"{name}: not elementwise, it maps shape {tuple(values.shape)} to {got}; {_REMEDY}")
        for place in {0, values.numel() // 2, values.numel() - 1}:
            for extreme in (values.max() + 1, values.min() - 1):  # so that a maximum or a minimum changes too
                changed = values.clone(memory_format=torch.contiguous_format)
                changed.view(-1)[place] = extreme
                after = function(changed).flatten().clone()
                after[place] = before.flatten()[place]
                if not torch.equal(before.flatten().nan_to_num(), after.nan_to_num()):
                    raise ValueError(
                        f"{name}: not elementwise, or random: changing one entry changes other entries of the result; "
                        f"{_REMEDY}"
                    )
