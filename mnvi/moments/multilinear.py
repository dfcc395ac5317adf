"""Sums over indices of products of several independent tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def multilinear(
    terms: Sequence[str], result: str, means: Sequence[Tensor], variances: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    r"""Moments of ``torch.einsum`` over any number of operands; exact if all entries are independent.

    The result is linear in each operand, so its variance is a sum over the non-empty sets S of random operands: the
    variances of the operands in S, times the squared coefficient of their product at the means of the others,

    .. math:: V = \sum_{S \ne \emptyset}\ \sum_{e}\ \prod_{k \in S} v^k_{e_k}\,
              \Bigl(\sum \prod_{k \notin S} \mu^k\Bigr)^2.

    The inner sum runs over indices that neither the result nor an operand in S has.

    Args:
        terms: the letters of each operand's dimensions.
        result: the letters of the result's.
        means: the operands' means.
        variances: their variances, None for a known operand.

    Example:
        >>> import torch
        >>> one = torch.ones(2)
        >>> multilinear(["i", "ij", "j"], "", [one, torch.ones(2, 2), one], [one, None, one])  # (Σx)(Σy): 4, 2·2 + 2·8
        (tensor(4.), tensor(20.))
    """
    mean = torch.einsum(f"{','.join(terms)}->{result}", *means)
    random = [i for i, var in enumerate(variances) if var is not None]
    total = torch.zeros_like(mean)
    for subset in _subsets(random):
        kept = set(result).union(*(terms[i] for i in subset))
        factors = [(terms[i], variances[i]) for i in subset]
        for group in _linked([i for i in range(len(terms)) if i not in subset], terms, kept):
            left = "".join(sorted(set("".join(terms[i] for i in group)) & kept))
            summed = torch.einsum(f"{','.join(terms[i] for i in group)}->{left}", *(means[i] for i in group))
            factors.append((left, summed.square()))
        total = total + torch.einsum(f"{','.join(term for term, _ in factors)}->{result}", *(t for _, t in factors))
    return mean, total


def _subsets(items: list[int]) -> Iterator[list[int]]:
    for bits in range(1, 1 << len(items)):
        yield [item for place, item in enumerate(items) if bits >> place & 1]


def _linked(operands: list[int], terms: Sequence[str], kept: set[str]) -> list[list[int]]:
    """Groups of operands that share an index which is not kept: their squares do not factorise."""
    groups: list[tuple[set[str], list[int]]] = []
    for operand in operands:
        letters, members = set(terms[operand]) - kept, [operand]
        apart = []
        for others, group in groups:
            if letters & others:
                letters, members = letters | others, group + members
            else:
                apart.append((others, group))
        groups = [*apart, (letters, members)]
    return [members for _, members in groups]
