"""Known sparse matrices: the variance goes through the squared entries."""

from __future__ import annotations

import torch
from torch import Tensor

_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def squared(factor: Tensor) -> Tensor:
    """The square of each entry of a dense or sparse tensor, in the same layout.

    Entries that a COO tensor holds several times are added before they are squared.

    Example:
        >>> import torch
        >>> twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), check_invariants=True)
        >>> squared(twice).to_dense()
        tensor([9., 0.])
    """
    if factor.layout in _BY_ROWS:
        return _with_values(factor, factor.crow_indices(), factor.col_indices())
    if factor.layout in _BY_COLUMNS:
        return _with_values(factor, factor.ccol_indices(), factor.row_indices())
    return factor.coalesce().square() if factor.is_sparse else factor.square()


def _with_values(factor: Tensor, compressed: Tensor, plain: Tensor) -> Tensor:
    values = factor.values().square()
    return torch.sparse_compressed_tensor(
        compressed, plain, values, factor.shape, layout=factor.layout, check_invariants=False
    )
