r"""Batch norm over the images of all workers.

torch's own SyncBatchNorm needs GPUs and knows no variances. This one normalises means and variances as
:func:`mnvi.moments.batch_norms.batch_norm` does, with the statistics of the *global* batch: each worker sends count,
mean and sum of squares of its means, in one all-reduce a layer, and

.. math:: m = \frac{\sum_w n_w m_w}{\sum_w n_w}, \qquad s = \frac{\sum_w q_w + n_w (m_w - m)^2}{\sum_w n_w}

The gradient of the statistics goes back to the images of all workers by another all-reduce. A worker that has no share
of an epoch's last batch takes part with one image of it, which then counts twice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import mnvi
from mnvi.rules.options import current


class _Sum(torch.autograd.Function):
    """The sum over workers; its gradient is the sum of the workers' gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Synced(nn.BatchNorm2d):
    """Takes tensors and Gaussians; with one worker, and in evaluation, it is plain batch norm with the same state.

    It does not derive from torch's SyncBatchNorm, which DDP refuses on CPUs.
    """

    def forward(self, x: Any) -> Any:
        if not (self.training and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(x)
        gaussian = isinstance(x, mnvi.Gaussian)
        if not gaussian and not isinstance(x, Tensor):
            raise TypeError(f"batch norm over workers: expected a tensor or a Gaussian, got {type(x).__name__}")
        mean = x.mean if gaussian else x
        centre, spread, count = _statistics(mean)
        self._track(centre.detach(), spread.detach(), count)
        scale = torch.rsqrt(spread + self.eps)
        gain = scale if self.weight is None else scale * self.weight
        shape = (1, -1, *(1 for _ in mean.shape[2:]))
        normal = (mean - centre.view(shape)) * gain.view(shape)
        if self.bias is not None:
            normal = normal + self.bias.view(shape)
        normal = normal.to(mean.dtype)
        if not gaussian:
            return normal
        if current().batch_norm == "constant_scale":
            gain = scale.detach() if self.weight is None else scale.detach() * self.weight
        return mnvi.Gaussian(normal, x.var * gain.square().view(shape).to(x.var.dtype))

    @torch.no_grad()
    def _track(self, centre: Tensor, spread: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(centre.to(self.running_mean.dtype), share)
        self.running_var.lerp_((spread * (count / (count - 1))).to(self.running_var.dtype), share)


def _statistics(mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and biased variance of each channel over all workers, and the number of values that they are of."""
    wide = mean if mean.dtype == torch.float64 else mean.float()
    dims = [dim for dim in range(wide.dim()) if dim != 1]
    own = wide.mean(dims)
    squares = (wide - own.view(1, -1, *(1 for _ in dims[1:]))).square().sum(dims)
    counts = torch.full_like(own, wide.numel() / wide.shape[1])
    slots = torch.zeros(dist.get_world_size(), 3, len(own), dtype=wide.dtype, device=wide.device)
    slots[dist.get_rank()] = torch.stack([counts, own, squares])
    each, means, rest = _Sum.apply(slots).unbind(1)  # [workers, channels]
    total = each.detach().sum(0)
    centre = (each.detach() * means).sum(0) / total
    spread = (rest + each.detach() * (means - centre).square()).sum(0) / total
    return centre, spread, total


def synchronise(net: nn.Module) -> None:
    """Replaces the batch norms of images in a network, which keeps its parameters and buffers."""
    for name, child in net.named_children():
        if type(child) is nn.BatchNorm2d:
            setattr(net, name, _synced(child))
        else:
            synchronise(child)


def _synced(plain: nn.BatchNorm2d) -> Synced:
    tracked = plain.track_running_stats
    new = Synced(plain.num_features, plain.eps, plain.momentum, affine=plain.affine, track_running_stats=tracked)
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(new, name, getattr(plain, name))
    return new.train(plain.training)
