"""Matrix products and sums over indices, of Gaussians with tensors and with independent Gaussians."""

from __future__ import annotations

import operator
import string
from typing import Any

import torch
from torch import Tensor

from mnvi.moments import products
from mnvi.moments._torch import in_dynamo
from mnvi.moments.multilinear import multilinear
from mnvi.moments.precision import full_precision, widened
from mnvi.moments.sparse import squared
from mnvi.rules.table import RULES, every
from mnvi.values.base import refuse_complex
from mnvi.values.gaussian import Gaussian

Value = Gaussian | Tensor


def _means(*values: Value) -> list[Tensor]:
    return [x.mean if isinstance(x, Gaussian) else x for x in values]


def _contract(function: Any, a: Value, b: Value) -> Gaussian:
    """Moments of a map that is linear in each of its two operands and uses no entry twice in one output."""
    if a is b:
        raise ValueError("a matrix product of a Gaussian with itself: its factors are not independent")
    refuse_complex(*_means(a, b))
    mean = function(*_means(a, b))
    dtype = next(x.var.dtype for x in (a, b) if isinstance(x, Gaussian))
    if torch.float64 in (mean.dtype, dtype):
        dtype = torch.float64
    with full_precision(mean):
        known_a, known_b = (widened(x).to(dtype) for x in _means(a, b))
        if not isinstance(b, Gaussian):
            assert isinstance(a, Gaussian)
            return Gaussian.trusted(mean, function(a.var.to(dtype), squared(known_b)))
        if not isinstance(a, Gaussian):
            return Gaussian.trusted(mean, function(squared(known_a), b.var.to(dtype)))
        var_a, var_b = a.var.to(dtype), b.var.to(dtype)
        return Gaussian.trusted(mean, function(var_a, var_b + known_b.square()) + function(known_a.square(), var_b))


@RULES.rule(*every("matmul"), Tensor.__matmul__, operator.matmul)
def matmul(input: Value, other: Value, *, out: None = None) -> Gaussian:
    return _contract(torch.matmul, input, other)


@RULES.rule(*every("bmm", "mm"), torch.sparse.mm)
def mm(input: Value, mat2: Value, *, out: None = None) -> Gaussian:
    return matmul(input, mat2)


@RULES.rule(*every("mv"))
def mv(input: Value, vec: Value, *, out: None = None) -> Gaussian:
    return matmul(input, vec)


@RULES.rule(Tensor.__rmatmul__)
def rmatmul(input: Value, other: Value) -> Gaussian:
    return matmul(other, input)


@RULES.rule(Tensor.matmul)
def matmul_method(input: Value, other: Value) -> Gaussian:
    if in_dynamo() and not isinstance(input, Gaussian):
        # Dynamo turns `gaussian @ tensor` into tensor.matmul(gaussian), still in torch 2.15; nothing tells them apart
        raise RuntimeError("inside torch.compile write torch.matmul(a, b) instead of a @ b where one is a Gaussian")
    return matmul(input, other)


@RULES.rule(*every("dot"))
def dot(input: Value, tensor: Value, *, out: None = None) -> Gaussian:
    return inner(input, tensor)


@RULES.rule(*every("inner", "vdot"))
def inner(input: Value, other: Value, *, out: None = None) -> Gaussian:
    if input is other and isinstance(input, Gaussian) and input.dim() == 1:
        squares = products.square(input.mean, input.var)
        return Gaussian.trusted(squares[0].sum(), squares[1].sum())
    return _contract(torch.inner, input, other)


def _added(input: Any, a: Value, b: Value, beta: float, alpha: float) -> Gaussian:
    if isinstance(input, Gaussian) and (input is a or input is b):
        raise ValueError("the Gaussian added to a product is also a factor, so it is not independent of the product")
    matrices: list[Any] = [a, b]
    product = torch.matmul(*matrices)
    return torch.add(product if alpha == 1 else product * alpha, input, alpha=beta)  # type: ignore[return-value]


@RULES.rule(*every("addmm"), torch.sparse.addmm)
def addmm(input: Any, mat1: Value, mat2: Value, *, beta: float = 1, alpha: float = 1, out: None = None) -> Gaussian:
    return _added(input, mat1, mat2, beta, alpha)


@RULES.rule(*every("baddbmm"))
def baddbmm(
    input: Any, batch1: Value, batch2: Value, *, beta: float = 1, alpha: float = 1, out: None = None
) -> Gaussian:
    return _added(input, batch1, batch2, beta, alpha)


@RULES.rule(*every("addmv"))
def addmv(input: Any, mat: Value, vec: Value, *, beta: float = 1, alpha: float = 1, out: None = None) -> Gaussian:
    return _added(input, mat, vec, beta, alpha)


@RULES.rule(*every("outer", "ger"))
def outer(input: Value, vec2: Value, *, out: None = None) -> Gaussian:
    return einsum("i,j->ij", input, vec2)


@RULES.rule(torch.tensordot)
def tensordot(a: Value, b: Value, dims: Any = 2, out: None = None) -> Gaussian:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    of_a, of_b = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    sizes_a, sizes_b = [a.shape[d] for d in of_a], [b.shape[d] for d in of_b]
    if sizes_a != sizes_b:
        raise ValueError(f"tensordot: the dimensions to sum over have the sizes {sizes_a} and {sizes_b}")
    pairs = [list(of_a), list(of_b)]
    return _contract(lambda a, b: torch.tensordot(a, b, pairs), a, b)


@RULES.rule(torch.einsum)
def einsum(equation: Any, *operands: Any) -> Gaussian:
    r"""Exact for any number of independent operands; three and more: :func:`mnvi.moments.multilinear.multilinear`.

    If only one operand has a summed index, or the other is broadcast along it, that sum comes first, so that no entry
    occurs twice in one output. Then :math:`V = V_a(V_b + B\circ B) + (A\circ A)V_b` as in a matrix product.
    """
    if not isinstance(equation, str):
        raise TypeError("einsum: for a Gaussian the indices must be given as a string, e.g. 'bij,bjk->bik'")
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    random = [id(x) for x in operands if isinstance(x, Gaussian)]
    if len(set(random)) < len(random):
        raise TypeError("einsum: two operands are the same Gaussian, which is not independent of itself")
    terms, result = parsed(equation, operands)
    if len(operands) > 2:
        return _several(terms, result, operands)
    if len(operands) == 1:
        return operands[0].map(lambda t: torch.einsum(f"{terms[0]}->{result}", t))
    sizes = [dict(zip(term, x.shape, strict=True)) for term, x in zip(terms, operands, strict=True)]
    for i in sizes[0].keys() & sizes[1].keys():
        if sizes[0][i] != sizes[1][i] and 1 not in (sizes[0][i], sizes[1][i]):
            raise ValueError(f"einsum: index {i!r} of {equation!r} has the sizes {sizes[0][i]} and {sizes[1][i]}")
    kept, reduced = [], []
    for own, other, term, operand in zip(sizes, reversed(sizes), terms, operands, strict=True):
        contracted = [i for i in own if other.get(i) == own[i]]
        keep = "".join(i for i in own if i in result or i in contracted)
        kept.append(keep)
        reduced.append(_rearranged(f"{term}->{keep}", operand))
    return _contract(lambda a, b: torch.einsum(f"{kept[0]},{kept[1]}->{result}", a, b), *reduced)


def _several(terms: list[str], result: str, operands: tuple) -> Gaussian:
    sizes: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    kept, means, variances = [], [], []
    for term, x in zip(terms, operands, strict=True):
        repeated = tuple(d for d, letter in enumerate(term) if x.shape[d] == 1 < sizes[letter])  # broadcast: no index
        mean, var = (x.mean, x.var) if isinstance(x, Gaussian) else (x, None)
        kept.append("".join(letter for d, letter in enumerate(term) if d not in repeated))
        means.append(mean.squeeze(repeated))
        variances.append(None if var is None else var.squeeze(repeated))
    refuse_complex(*means)
    expectation = torch.einsum(f"{','.join(kept)}->{result}", *means)
    dtype = torch.float64 if expectation.dtype == torch.float64 else torch.float32
    with full_precision(expectation):
        wide = [None if var is None else var.to(dtype) for var in variances]
        var = multilinear(kept, result, [mean.to(dtype) for mean in means], wide)[1]
    return Gaussian.trusted(expectation, var)


def parsed(equation: str, operands: tuple) -> tuple[list[str], str]:
    """Indices of the operands and of the result, which default to einsum's convention; each dimension under an ellipsis
    gets a letter."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    letters = inputs.replace("...", "").replace(",", "")
    if not arrow:
        result = ("..." if "..." in inputs else "") + "".join(sorted(i for i in set(letters) if letters.count(i) == 1))
    if len(terms) != len(operands):
        raise ValueError(f"einsum: {equation!r} has {len(terms)} operands, but {len(operands)} are given")
    unused = [i for i in string.ascii_letters if i not in letters]
    hidden = [x.dim() - len(term.replace("...", "")) for term, x in zip(terms, operands, strict=True)]
    for term, x, count in zip(terms, operands, hidden, strict=True):
        if count < 0 or (count > 0 and "..." not in term):
            raise ValueError(f"einsum: {term!r} does not fit an operand of shape {tuple(x.shape)}")
    most = max(hidden)
    covered = "".join(unused[:most])
    spelled = [term.replace("...", covered[most - count :]) for term, count in zip(terms, hidden, strict=True)]
    return spelled, result.replace("...", covered)


def _rearranged(equation: str, operand: Value) -> Value:
    if isinstance(operand, Gaussian):
        return operand.map(lambda t: torch.einsum(equation, t))
    return torch.einsum(equation, operand)
