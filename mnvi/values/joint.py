"""Vectors with all covariances between their entries: :class:`JointGaussian`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mnvi.moments._torch import values_can_be_read
from mnvi.moments.joint import correlation_factor
from mnvi.values.base import RandomValue, check_tensors, tree_node
from mnvi.values.gaussian import Gaussian


@tree_node
@dataclass(init=False, repr=False, eq=False)
class JointGaussian(RandomValue):
    r"""Vectors :math:`Z \sim \mathcal N(\mu, C)` with all covariances between their entries; batch entries independent.

    It goes through fully connected networks. Linear layers (with or without posterior), ReLU, dropout, and sums and
    products with known numbers have rules; :func:`mnvi.covariance.rule` adds others. A diagonal or zero covariance
    becomes a full matrix only when something needs it.

    Args:
        mean: :math:`\mu`, [..., n].
        cov: :math:`C`, [..., n, n], same dtype and device; assumed to be symmetric.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.JointGaussian(torch.zeros(1, 2), torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]))
        >>> y = torch.relu(x) * 2
        >>> y.cov
        tensor([[[1.3634, 0.5814],
                 [0.5814, 1.3634]]])
        >>> y.marginals().var
        tensor([[1.3634, 1.3634]])
    """

    mean: Tensor
    spread: Tensor | None  # None: known; [..., n]: independent entries; [..., n, n]

    _fields = ("mean", "spread")
    _readable = ".mean, .var and .cov"
    __slots__ = ("mean", "spread")

    def __init__(self, mean: Tensor, cov: Tensor) -> None:
        _check(mean, cov)
        self.mean = mean
        self.spread = cov

    @classmethod
    def trusted(cls, mean: Tensor, spread: Tensor | None = None) -> JointGaussian:
        """Make a ``JointGaussian`` without checking its values.

        Args:
            mean: [..., n].
            spread: the covariances [..., n, n]; variances [..., n] of independent entries; None for known values.

        Example:
            >>> import torch, mnvi
            >>> mnvi.JointGaussian.trusted(torch.zeros(1, 2), torch.ones(1, 2)).cov
            tensor([[[1., 0.],
                     [0., 1.]]])
        """
        out = cls.__new__(cls)
        out.mean = mean
        out.spread = spread
        return out

    @property
    def is_full(self) -> bool:
        """Whether ``spread`` holds the full covariances, [..., n, n]."""
        return self.spread is not None and self.spread.dim() > self.mean.dim()

    @property
    def cov(self) -> Tensor:
        """Covariances, [..., n, n]."""
        if self.spread is None:
            return self.mean.new_zeros((*self.mean.shape, self.mean.shape[-1]))
        return self.spread if self.is_full else torch.diag_embed(self.spread)

    @property
    def var(self) -> Tensor:
        """Variances, the diagonal of the covariance, [..., n]."""
        if self.spread is None:
            return torch.zeros_like(self.mean)
        return self.spread.diagonal(dim1=-2, dim2=-1) if self.is_full else self.spread

    def marginals(self) -> Gaussian:
        """The entries as independent Gaussians, without their covariances."""
        return Gaussian.trusted(self.mean, self.var)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        r"""Draw :math:`z = \mu + L\varepsilon` with :math:`LL^\top = C`, shape ``[num_samples, ..., n]``.

        An approximate covariance need not be positive definite. If it is not, the correlations are divided by 1.0001,
        1.01, 1.1, or as much as it takes; variances do not change.

        Example:
            >>> import torch, mnvi
            >>> x = mnvi.JointGaussian(torch.zeros(2), torch.ones(2, 2))
            >>> z = x.sample(5, torch.Generator().manual_seed(0))
            >>> torch.allclose(z[:, 0], z[:, 1], atol=0.01)
            True
        """
        noise = self._noise(num_samples, generator)
        if self.spread is None or not self.is_full:
            return self.mean + self.std * noise
        return self.mean + self.std * (correlation_factor(self.cov) @ noise.unsqueeze(-1)).squeeze(-1)

    def __getitem__(self, index: Any) -> Any:
        """``x[batch index]``, ``x[..., entries]`` or both; one entry ``x[..., 0]`` is a :class:`mnvi.Gaussian`."""
        batch: tuple = index if isinstance(index, tuple) else (index,)
        entries: tuple = ()
        places = [place for place, part in enumerate(batch) if part is Ellipsis]
        if places:
            batch, entries = batch[: places[0]], batch[places[0] + 1 :]
        if not entries and sum(map(_dims_of, batch)) == self.dim():
            batch, entries = batch[:-1], batch[-1:]
        where = f"JointGaussian of shape {tuple(self.shape)}: index {index!r}"
        if sum(map(_dims_of, batch)) >= self.dim() or [_dims_of(part) for part in entries] not in ([], [1]):
            raise IndexError(f"{where} must be x[batch] or x[..., i]")
        if entries and _is_list(entries[0]) and any(map(_is_list, batch)):
            raise IndexError(f"{where} pairs each example with an entry; for all pairs, write x[batch][..., i]")
        x = self._each(lambda t: t[batch]) if batch else self
        return _entries(x, entries[0]) if entries else x

    def _each(self, function: Callable[[Tensor], Tensor]) -> JointGaussian:
        return JointGaussian.trusted(function(self.mean), None if self.spread is None else function(self.spread))

    def __repr__(self) -> str:
        return f"JointGaussian(mean={self.mean}, cov={self.cov})"


def _entries(x: JointGaussian, index: Any) -> JointGaussian | Gaussian:
    if isinstance(index, int):
        return Gaussian.trusted(x.mean[..., index], x.var[..., index])
    chosen = torch.arange(x.shape[-1], device=x.device)[index]
    if chosen.dim() == 0:
        return Gaussian.trusted(x.mean[..., chosen], x.var[..., chosen])
    if chosen.dim() != 1:
        raise IndexError(f"JointGaussian: entries {index!r} must be a number, a slice or a list of numbers")
    if x.spread is None or not x.is_full:
        return x._each(lambda t: t.index_select(-1, chosen))
    return JointGaussian.trusted(
        x.mean.index_select(-1, chosen), x.spread.index_select(-1, chosen).index_select(-2, chosen)
    )


def _dims_of(index: Any) -> int:
    """How many dimensions a part of an index consumes."""
    if index is None or isinstance(index, bool):
        return 0
    places = _places(index)
    return places.dim() if places is not None and places.dtype == torch.bool else 1


def _is_list(index: Any) -> bool:
    """Whether a part of an index is a list of positions; torch pairs several such lists."""
    places = _places(index)
    return places is not None and places.dim() > 0


def _places(index: Any) -> Tensor | None:
    return torch.as_tensor(index) if isinstance(index, Sequence) or hasattr(index, "__array__") else None


def _check(mean: Tensor, cov: Tensor) -> None:
    check_tensors("JointGaussian", mean, "cov", cov)
    if mean.dim() == 0 or cov.shape != (*mean.shape, mean.shape[-1]):
        raise ValueError(
            f"JointGaussian: mean has shape {tuple(mean.shape)} and cov {tuple(cov.shape)}; expected [..., n] and "
            "[..., n, n]"
        )
    if mean.dtype != cov.dtype:
        raise TypeError(f"JointGaussian: mean is {mean.dtype} and cov {cov.dtype}; convert one with .to(dtype)")
    if values_can_be_read(cov) and cov.numel():
        if not cov.detach().isfinite().all():
            raise ValueError("JointGaussian: cov has an entry that is NaN or infinite")
        lowest = cov.detach().diagonal(dim1=-2, dim2=-1).amin()
        if lowest < 0:
            raise ValueError(f"JointGaussian: cov has {lowest.item():g} on its diagonal; variances must be >= 0")
        var = cov.detach().diagonal(dim1=-2, dim2=-1)
        if (cov.detach().square() > 1.01 * var.unsqueeze(-1) * var.unsqueeze(-2)).any():
            raise ValueError(
                "JointGaussian: cov has a correlation beyond 1: |cov[i, j]| must be <= sqrt(var[i]·var[j])"
            )
