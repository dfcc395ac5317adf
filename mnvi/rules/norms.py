"""Norms, distances, variances and standard deviations over dimensions, and the cosine of an angle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mnvi.moments import norms
from mnvi.rules.arithmetic import mean, sub
from mnvi.rules.operands import moments_of, named_dims
from mnvi.rules.options import current
from mnvi.rules.table import RULES, every
from mnvi.values.gaussian import Gaussian

Dims = int | Sequence[int] | None


def _dims(dim: Dims, ndim: int) -> tuple[int, ...]:
    """The dimensions counted from the front; None is all of them."""
    return tuple(sorted({d % max(ndim, 1) for d in named_dims(dim, ndim)}))


def _norm(x: Gaussian, p: Any, dim: Dims, keepdim: bool, dtype: torch.dtype | None = None) -> Gaussian:
    if dtype is not None:
        x = x.to(dtype)
    order = 2.0 if p is None or p == "fro" else p
    if isinstance(order, str):
        raise ValueError(f"norm: p={p!r} has no rule for a Gaussian; known: numbers from 1 to inf, and 'fro'")
    if x.dim() == 0:
        return torch.abs(x)  # type: ignore[arg-type, return-value]
    moments = norms.norm(x.mean, x.var, order, _dims(dim, x.dim()), keepdim, current().max_pool == "clark")
    return Gaussian.trusted(*moments)


@RULES.rule(torch.norm, torch.functional.norm, Tensor.norm)
def norm(
    input: Gaussian,
    p: Any = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: None = None,
    dtype: torch.dtype | None = None,
) -> Gaussian:
    return _norm(input, p, dim, keepdim, dtype)


@RULES.rule(torch.linalg.vector_norm)
def vector_norm(
    x: Gaussian,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> Gaussian:
    return _norm(x, ord, dim, keepdim, dtype)


@RULES.rule(torch.linalg.norm)
def linalg_norm(
    A: Gaussian,
    ord: Any = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> Gaussian:
    """The norm of vectors, and the Frobenius norm of matrices; norms by singular values have no rule."""
    of_vectors = isinstance(dim, int) or A.dim() == 1
    if ord not in (None, "fro") and not of_vectors:
        raise ValueError(
            f"norm: ord={ord!r} of matrices has no rule for a Gaussian; known: 'fro', and norms of vectors"
        )
    return _norm(A, ord, dim, keepdim, dtype)


@RULES.rule(torch.linalg.matrix_norm)
def matrix_norm(
    A: Gaussian,
    ord: Any = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: None = None,
) -> Gaussian:
    return linalg_norm(A, ord, dim, keepdim, dtype=dtype)


@RULES.rule(*every("dist"))
def dist(input: Any, other: Any, p: float = 2) -> Gaussian:
    return _norm(_difference("dist", input, other), p, None, False)


@RULES.rule(*every("pairwise_distance"))
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Gaussian:
    return _norm(_difference("pairwise_distance", x1, x2) + eps, p, -1, keepdim)


@RULES.rule(torch.cdist)
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = None) -> Gaussian:
    """Distances [..., P, R] between the rows of [..., P, M] and [..., R, M]; it holds all P·R·M differences at once.

    The distances within one set, ``cdist(x, x)``, are zero and known on the diagonal.
    """
    (mean_a, var_a), (mean_b, var_b) = moments_of(x1), moments_of(x2)
    difference, spread = mean_a.unsqueeze(-2) - mean_b.unsqueeze(-3), var_a.unsqueeze(-2) + var_b.unsqueeze(-3)
    distances = _norm(Gaussian.trusted(difference, spread), p, -1, False)
    if x1 is not x2:
        return distances
    same = torch.eye(x1.shape[-2], dtype=torch.bool, device=x1.device)
    return distances.map(lambda t: t.masked_fill(same, 0.0))


def _difference(name: str, a: Any, b: Any) -> Gaussian:
    if a is b:
        raise TypeError(f"{name}: the distance of a Gaussian to itself is zero, not a Gaussian; use torch.zeros")
    return sub(a, b)


@RULES.rule(torch.cosine_similarity)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Gaussian:
    if x1 is x2:
        raise TypeError("cosine_similarity: of a Gaussian with itself it is 1, not a Gaussian; use torch.ones")
    return Gaussian.trusted(*norms.cosine_similarity(*moments_of(x1), *moments_of(x2), dim=dim, eps=eps))


def _spread(moments: Callable, with_mean: bool) -> Callable:
    def answer(
        input: Gaussian,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
        axis: Dims = None,
        keepdims: bool = False,
        out: None = None,
    ) -> Any:
        if isinstance(dim, bool):  # torch.var(x, unbiased)
            dim, unbiased = None, dim
        x = input if input.dim() else input.unsqueeze(0)
        dims = _dims(axis if dim is None else dim, x.dim())
        spread = Gaussian.trusted(*moments(x.mean, x.var, dims, float(unbiased) if correction is None else correction))
        results = [spread, mean(x, dims, keepdim=True)] if with_mean else [spread]
        if not (keepdim or keepdims) or not input.dim():
            results = [result.map(lambda t: t.squeeze(dims)) for result in results]
        return tuple(results) if with_mean else results[0]

    return answer


for _name, _moments in (("var", norms.variance), ("std", norms.deviation)):
    RULES.rule(*every(_name))(_spread(_moments, with_mean=False))
    RULES.rule(*every(f"{_name}_mean"))(_spread(_moments, with_mean=True))
