"""One call of every rule that users bring beyond activations and layers; the conformance suites run over all of them.

Each takes a Gaussian of shape [3, 4, 4] with float32 or float64 entries. Those in POSITIVE read it as positive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import einops
import torch
import torch.nn.functional as F
from torch import Tensor

import mnvi

Rule = Callable[[Any], Any]
SHAPE = (3, 4, 4)
PICKED = torch.tensor([2, 0, 2])
PLACES = torch.tensor([[0, 2, 1, 2], [1, 3, 0, 0], [2, 0, 2, 1], [0, 1, 0, 0]])


def known(*shape: int, like: Any) -> Tensor:
    """Numbers that are exact in both precisions."""
    return (torch.arange(torch.Size(shape).numel()).view(shape) % 7 - 3).to(like.dtype) / 4


def grid(like: Any) -> Tensor:
    return known(3, 2, 2, 2, like=like) / 2


def sparse(like: Any) -> Tensor:
    places = torch.tensor([[0, 1, 2, 2], [1, 3, 0, 2]])
    return torch.sparse_coo_tensor(places, known(4, like=like), (3, 4), check_invariants=True)


POSITIVE: dict[str, Rule] = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log": torch.log,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log10": torch.log10,
    "power": lambda x: torch.pow(x, 0.3),
}
RULES: dict[str, Rule] = {
    "2-norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "1-norm": lambda x: torch.norm(x, p=1, dim=-1),
    "largest absolute value": lambda x: torch.norm(x, p=float("inf"), dim=-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "var": lambda x: torch.var(x, -1),
    "std": lambda x: torch.std(x, (1, 2)),
    "rms norm": lambda x: F.rms_norm(x, (4,), eps=1e-6),
    "cosine similarity": lambda x: F.cosine_similarity(x[:1], x[1:], dim=-1),
    "cdist": lambda x: torch.cdist(x[:1], x[1:2]),
    "pairwise distance": lambda x: F.pairwise_distance(x[0], x[1]),
    "scatter": lambda x: torch.zeros_like(x[0].mean).scatter(1, PLACES[:, :2], x[1, :, :2]),
    "scatter_add": lambda x: torch.zeros_like(x[0].mean).scatter_add(1, PLACES, x[1]),
    "scatter_reduce": lambda x: x[0].scatter_reduce(1, PLACES, x[1], "mean"),
    "index_add": lambda x: torch.index_add(x[0], 0, PICKED, x[1, :3]),
    "index_copy": lambda x: torch.index_copy(x[0], 0, torch.tensor([2, 0, 1]), x[1, :3]),
    "index_put": lambda x: torch.index_put(x[0], (PICKED,), x[1, :3], accumulate=True),
    "gather": lambda x: x[0].gather(1, PLACES),
    "sparse product": lambda x: torch.sparse.mm(sparse(x), x[0]),
    "cumsum": lambda x: torch.cumsum(x, 1),
    "prod": lambda x: torch.prod(x, -1),
    "cumprod": lambda x: torch.cumprod(x, -1),
    "einsum of three": lambda x: torch.einsum("ij,jk,kl->il", x[0], x[1], known(4, 2, like=x)),
    "einops": lambda x: einops.reduce(einops.rearrange(x, "b (h k) w -> b h (k w)", k=2), "b h w -> b w", "mean"),
    "grid_sample": lambda x: F.grid_sample(x[:, None], grid(x), align_corners=False),
    "topk": lambda x: torch.topk(x, 2).values,
    "sort": lambda x: torch.sort(x, 1).values,
    "median": lambda x: torch.median(x, -1).values,
    "local response norm": lambda x: F.local_response_norm(x, 3),
    "pooling by a norm": lambda x: F.lp_pool1d(x, 2.0, 2),
    "max_unpool": lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2),
    "Fourier transform": lambda x: torch.fft.irfft(torch.fft.rfft(x) * known(3, like=x), n=4),
    "Fourier transform, real part": lambda x: torch.fft.rfft(x).real,
    "a comparison as a mask": lambda x: torch.where(x > 0, x, 0.0),
    "centred": lambda x: x - torch.mean(x, -1, keepdim=True),
    "function of itself": lambda x: x * torch.sigmoid(x) + x,
    "sum with its transpose": lambda x: x + x.mT,
    "Gram matrix": lambda x: torch.matmul(x.mT, x),
}


def positive(x: mnvi.Gaussian) -> mnvi.Gaussian:
    """A value of the same spread in units of its mean that a root or logarithm can read."""
    return mnvi.Gaussian.trusted(x.mean.abs() + 0.5, x.var)
