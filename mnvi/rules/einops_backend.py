"""Lets the functions of einops take a Gaussian: ``rearrange``, ``reduce``, ``repeat``, ``einsum``, ``pack`` and so on.

einops is optional. If it is installed, importing mnvi registers the backend: einops finds the subclasses of its
``AbstractBackend`` by itself. Each operation goes to the rule of the torch function that einops calls for a tensor.

``einops.layers.torch`` needs no backend, except that ``Reduce(..., 'mean')`` calls ``x.mean(...)``, which a Gaussian
does not have; use ``einops.reduce`` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from mnvi.rules.arithmetic import mean
from mnvi.rules.contractions import einsum
from mnvi.rules.shapes import cat, stack
from mnvi.values.gaussian import Gaussian

if find_spec("einops") is not None and find_spec("einops._backends") is not None:
    from einops._backends import AbstractBackend

    class GaussianBackend(AbstractBackend):
        framework_name = "mnvi"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Gaussian)

        def transpose(self, x: Gaussian, axes: Sequence[int]) -> Gaussian:
            return x.map(lambda t: t.permute(*axes))

        def reduce(self, x: Gaussian, operation: str, axes: Sequence[int]) -> Gaussian:
            dims = tuple(axes)
            if operation == "mean":
                return mean(x, dims)
            if operation == "prod":
                for dim in sorted(dims, reverse=True):
                    x = x.prod(dim)
                return x
            known = {"sum": "sum", "max": "amax", "min": "amin"}
            if operation not in known:
                rules = ", ".join(("mean", "prod", *known))
                raise ValueError(f"einops.reduce: reduction={operation!r} has no rule for a Gaussian; known: {rules}")
            reduced: Gaussian = getattr(x, known[operation])(dims)
            return reduced

        def stack_on_zeroth_dimension(self, tensors: list) -> Gaussian:
            return stack(tensors)

        def add_axis(self, x: Gaussian, new_position: int) -> Gaussian:
            return x.map(lambda t: t.unsqueeze(new_position))

        def tile(self, x: Gaussian, repeats: Sequence[int]) -> Gaussian:
            return x.map(lambda t: t.repeat(*repeats))

        def concat(self, tensors: Sequence[Any], axis: int) -> Gaussian:
            return cat(tensors, axis)

        def is_float_type(self, x: Gaussian) -> bool:
            return True

        def einsum(self, pattern: str, *x: Any) -> Gaussian:
            return einsum(pattern, *x)
