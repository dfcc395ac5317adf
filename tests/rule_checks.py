"""Checks for every rule: sampling, the limit of zero variance, gradients, precision, compilers."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import mnvi

STANDARD_ERRORS = 5


def gaussian(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> mnvi.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    var = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return mnvi.Gaussian(mean.to(dtype), (scale * var).to(dtype))


def sampled(function, *args, num_samples: int = 100_000, chunk: int = 20_000, **kwargs) -> list[Tensor]:
    """Mean and variance of ``function`` under sampling of its Gaussian arguments, each with its standard error.

    ``function`` is mapped over samples by ``torch.func.vmap``.
    """
    generator = torch.Generator().manual_seed(1)
    leaves, structure = pytree.tree_flatten(args, is_leaf=lambda x: isinstance(x, mnvi.Gaussian))
    random = [i for i, leaf in enumerate(leaves) if isinstance(leaf, mnvi.Gaussian)]

    def once(*values: Tensor) -> Tensor:
        filled = list(leaves)
        for i, value in zip(random, values, strict=True):
            filled[i] = value
        return function(*pytree.tree_unflatten(filled, structure), **kwargs)

    results = [
        torch.func.vmap(once, randomness="different")(*(leaves[i].sample(chunk, generator) for i in random))
        for _ in range(num_samples // chunk)
    ]
    values = torch.cat(results)
    mean, var = values.mean(0), values.var(0)
    fourth = (values - mean).pow(4).mean(0)
    return [mean, (var / num_samples).sqrt(), var, ((fourth - var.square()).clamp(min=0) / num_samples).sqrt()]


def assert_moments_are_those_of_samples(function, *args, **kwargs) -> None:
    out = function(*args, **kwargs)
    mean, mean_error, var, var_error = sampled(function, *args, **kwargs)
    assert out.mean.shape == out.var.shape == mean.shape
    tiny = 1e-12  # where nothing varies, the standard error is zero
    assert ((out.mean - mean).abs() <= STANDARD_ERRORS * mean_error + tiny).all()
    assert ((out.var - var).abs() <= STANDARD_ERRORS * var_error + tiny).all()


def assert_zero_variance_is_deterministic(function, *args, **kwargs) -> None:
    known = pytree.tree_map(_mean, args, is_leaf=_is_gaussian)
    certain = pytree.tree_map(_without_variance, args, is_leaf=_is_gaussian)
    expected, out = function(*known, **kwargs), function(*certain, **kwargs)
    torch.testing.assert_close(out.mean, expected)
    assert out.var.shape == expected.shape
    assert (out.var == 0).all()


def assert_gradients_are_right(function, *args, **kwargs) -> None:
    leaves, structure = pytree.tree_flatten(args)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    def flat(*values: Tensor) -> tuple[Tensor, Tensor]:
        filled = list(leaves)
        for i, value in zip(places, values, strict=True):
            filled[i] = value
        out = function(*pytree.tree_unflatten(filled, structure), **kwargs)
        return out.mean, out.var

    assert torch.autograd.gradcheck(flat, [leaves[i].clone().requires_grad_() for i in places])


def assert_half_precision_keeps_the_variance(function, *args, **kwargs) -> None:
    low = pytree.tree_map(_lowered, args, is_leaf=_is_gaussian)
    high = pytree.tree_map(_raised, low, is_leaf=_is_gaussian)
    out, expected = function(*low, **kwargs), function(*high, **kwargs)
    assert out.var.dtype == torch.float32
    torch.testing.assert_close(out.var, expected.var, rtol=1e-2, atol=1e-3)


def extremes(*shape: int) -> Iterator[mnvi.Gaussian]:
    """|μ|/σ up to 50, variances from 1e-12 to 1e6, in float32: each variance alone, then all of them side by side.

    Means lie around zero, or far from it and close together, where differences lose their digits.
    """
    generator = torch.Generator().manual_seed(2)
    draws = [torch.rand(shape, generator=generator) for _ in range(2)]
    mixed = 10 ** (18 * torch.rand(shape, generator=generator) - 12)
    for var in (*(torch.full(shape, 10.0**k) for k in range(-12, 7)), mixed):
        for ratio in (0.0, 1.0, 8.0, 50.0):
            yield mnvi.Gaussian(ratio * (2 * draws[0] - 1) * var.sqrt(), var)
        yield mnvi.Gaussian((50 - draws[1]) * var.sqrt(), var)


def assert_float32_keeps_the_digits_of_float64(
    function: Callable, x: mnvi.Gaussian, error: float, scale: Callable[[mnvi.Gaussian], Tensor] | None = None
) -> None:
    """Errors relative to each result's own scale: |E| + √V for the mean, V for the variance.

    ``scale`` replaces V if the result may be far smaller than its ingredients.
    """
    wide = mnvi.Gaussian(x.mean.double(), x.var.double())
    out, exact = function(x), function(wide)
    assert out.mean.dtype == out.var.dtype == torch.float32
    natural = exact.var if scale is None else scale(wide)
    smallest = torch.finfo(torch.float32).tiny / error  # below it float32 counts in steps of more than ``error``
    mean_error = (out.mean - exact.mean).abs() / (exact.mean.abs() + natural.sqrt() + smallest)
    var_error = (out.var - exact.var).abs() / (natural + smallest)
    for name, found in (("mean", mean_error), ("variance", var_error)):
        assert (found <= error).all(), (
            f"{name} off by {found.max():.2g} of its scale, allowed {error:g}, for {_range(x)}"
        )


def assert_gradients_are_finite(function: Callable, x: mnvi.Gaussian) -> None:
    leaves = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    out = function(mnvi.Gaussian(*leaves))
    for gradient in torch.autograd.grad(out.mean.sum() + out.var.sum(), leaves):
        assert gradient.isfinite().all(), f"for {_range(x)}"


def _range(x: mnvi.Gaussian) -> str:
    ratio = (x.mean / x.var.sqrt()).abs()
    return f"variances from {x.var.min():.2g} to {x.var.max():.2g}, |μ|/σ from {ratio.min():.2g} to {ratio.max():.2g}"


def _is_gaussian(x) -> bool:
    return isinstance(x, mnvi.Gaussian)


def _mean(x):
    return x.mean if _is_gaussian(x) else x


def _without_variance(x):
    return mnvi.Gaussian(x.mean, torch.zeros_like(x.var)) if _is_gaussian(x) else x


def _lowered(x):
    return mnvi.Gaussian(x.mean.bfloat16(), x.var.float()) if _is_gaussian(x) else x


def _raised(x):
    return mnvi.Gaussian(x.mean.float(), x.var.float()) if _is_gaussian(x) else x
