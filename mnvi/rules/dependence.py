"""Values that are not independent: what happens where two operands are functions of one value.

The rules take different operands for independent. Around every rule, :func:`follow` notes which results are functions
of a single value, entry by entry. If two operands have a common source, each entry of the result is either a function
of one entry of it, ``x * torch.sigmoid(x)``, or of two entries, which are independent as all entries are.
:mod:`mnvi.rules.composites` has the moments of the former; the rule itself is right for the latter.
:mod:`mnvi.rules.copies` looks for sums over copies of one entry, :mod:`mnvi.rules.own_means` after ``x - x.mean()``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import is_compiling
from mnvi.rules.composites import composite
from mnvi.rules.copies import check_sum, note_joined
from mnvi.rules.dependence_warning import warn_about_operands
from mnvi.rules.entries import same_entries, some_entries, transposed_entries
from mnvi.rules.gradients import refuse_cut_gradient
from mnvi.rules.options import current
from mnvi.rules.own_means import note_average, with_own_mean
from mnvi.rules.positions import of_a_function
from mnvi.rules.recognition import slope_and_offset
from mnvi.rules.steps import KNOWN, Known, Path, Step, known_as, step
from mnvi.rules.sums import added_by
from mnvi.rules.table import RULES
from mnvi.values.gaussian import Gaussian
from mnvi.values.origin import Origin, common_ancestor, continued, origin_of

# Functions that read another operand's shape, or put values side by side.
_NOT_COMBINED = (
    torch.where,
    torch.broadcast_tensors,
    Tensor.where,
    Tensor.view_as,
    Tensor.reshape_as,
    Tensor.expand_as,
    Tensor.type_as,
    Tensor.to,
    operator.setitem,
)
_JOIN = (torch.cat, torch.concat, torch.concatenate, torch.stack, torch.hstack, torch.vstack)
_MATRIX_PRODUCTS = (torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm, operator.matmul)


def follow(function: Callable, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Apply a rule, taking into account and noting where values come from."""
    operands = [value for value in (*args, *kwargs.values()) if isinstance(value, Gaussian)]
    if not is_compiling():
        if not torch.is_grad_enabled():
            refuse_cut_gradient(operands)
        for name, value, dims, groups in added_by(function, args, kwargs):
            check_sum(name, value, dims, groups)
    if operands and all([value is operands[0] for value in operands]):  # rules recognise an operand that occurs twice
        result, known = handler(*args, **kwargs), known_as(function)
        if known is not None:
            _note(result, operands[0], known, args, kwargs)
        else:
            note_average(result, operands[0], function, args, kwargs)
        return result
    if function in _JOIN:
        result = handler(*args, **kwargs)
        note_joined(result, function, args, kwargs)
        return result
    source, known = common_ancestor(operands) if operands else None, known_as(function)
    if source is None or function in _NOT_COMBINED:
        result = handler(*args, **kwargs)
        return result if known is None else with_own_mean(result, known, args, kwargs)
    if known is not None:
        return _elementwise(source, known, handler, args, kwargs)
    return _contracted(source, operands, function, handler, args, kwargs)


def _elementwise(source: Origin, known: Known, handler: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A result whose entries follow from one entry each of the common source, or from several independent ones."""
    made = step(known, args, kwargs, source)
    same = same_entries(source.shape, made.paths)
    if same is False:
        return handler(*args, **kwargs)
    moments = source.moments() or _recovered(made, args, kwargs)
    if moments is None and source.parent is not None:  # the source is gone; perhaps what it was made of is not
        return _elementwise(source.parent, known, handler, args, kwargs)
    if same is None or moments is None:
        warn_about_operands(known.plain)
        return handler(*args, **kwargs)
    dependent = composite(made, *moments)
    if same is True:
        if current().spatial == "shared_weights" and not made.moves and not made.has_tensors:
            dependent = of_a_function(dependent, lambda value: composite(made, value.mean, value.var), source.value())
        made.spreads = any(value.shape != dependent.shape for value in args if isinstance(value, Gaussian))
        continued(dependent, source, made)
        return dependent
    apart, where = handler(*args, **kwargs), same.to(dependent.device)
    return Gaussian.trusted(
        torch.where(where, dependent.mean, apart.mean), torch.where(where, dependent.var, apart.var)
    )


def _recovered(made: Step, args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The moments of a source that is gone, from an operand that is a multiple of it plus a constant."""
    operands = [value for value in (*args, *kwargs.values()) if isinstance(value, Gaussian)]
    for operand, path in zip(operands, made.paths, strict=True):
        line = None if path.moves or path.has_tensors or not path.is_affine else slope_and_offset(path)
        if line is not None and line[0] != 0:
            return (operand.mean - line[1]) / line[0], operand.var / line[0] ** 2
    return None


def _contracted(
    source: Origin, operands: list[Gaussian], function: Callable, handler: Callable, args: tuple, kwargs: dict[str, Any]
) -> Any:
    """A sum over products, right for operands without common entries and for a matrix times its transpose."""
    paths = [Path(value.origin.steps_from(source)) for value in operands]
    if some_entries(source.shape, paths) is False:
        return handler(*args, **kwargs)
    result, moments = handler(*args, **kwargs), source.moments()
    if function in _MATRIX_PRODUCTS and moments is not None and transposed_entries(source.shape, *paths):
        a, b = paths
        across = Path((*b.steps, Step(KNOWN[Tensor.transpose], (Path(), -2, -1))))
        diagonal = composite(Step(KNOWN[torch.mul], (a, across)), *moments).sum(-1).unsqueeze(-1)
        where = torch.eye(result.shape[-1], dtype=torch.bool, device=result.device)
        mean, var = torch.where(where, diagonal.mean, result.mean), torch.where(where, diagonal.var, result.var)
        return Gaussian.trusted(mean, var)
    warn_about_operands(getattr(function, "__name__", str(function)))
    return result


def _note(result: Any, operand: Gaussian, known: Known, args: tuple, kwargs: dict[str, Any]) -> None:
    if isinstance(result, Gaussian):
        if result.origin is None and result is not operand:
            source = origin_of(operand)
            spreads = not known.moves and result.shape != operand.shape
            made = step(known, args, kwargs, source, None, spreads)
            continued(result, source, made, operand if known.moves else None)
    elif isinstance(result, tuple | list):
        source = origin_of(operand)
        for piece, value in enumerate(result):
            continued(value, source, step(known, args, kwargs, source, piece), operand)


RULES.follow = follow
