"""Methods that return samples: repeated passes through a network with random outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.methods.active_dropout import Training, calls_dropout, dropouts
from mnvi.moments.checking import check_number
from mnvi.values.samples import Samples


class MonteCarlo(nn.Module):
    r"""Several passes through a network whose outputs are random, as one batched pass.

    .. math:: h^s = f(x;\, \varepsilon^s), \qquad s = 1 \dots S

    The batch is repeated S times, so every example of every pass must draw its own noise; dropout and
    :class:`mnvi.Sampled` posteriors do. Returns :class:`mnvi.Samples`, [S, batch, ...].

    Args:
        net: a network on tensors with something random in it.
        num_samples: S in evaluation.
        train_samples: S in training.
        chunk: number of passes at once, to bound memory; None for all.
        seed: gives the same noise in every evaluation, whatever was drawn before, and restores torch's global
            generator. The noise depends on the batch size and on ``chunk``. With None (default) noise comes from the
            global generator, so ``torch.manual_seed`` repeats a run. ``torch.compile`` needs None.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(13), mnvi.Sampled(mnvi.MeanField(prior_variance=1.0)))
        >>> mnvi.MonteCarlo(net, num_samples=8).eval()(torch.ones(5, 13)).values.shape
        torch.Size([8, 5, 2])
    """

    def __init__(
        self,
        net: nn.Module,
        num_samples: int = 8,
        *,
        train_samples: int = 1,
        chunk: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("num_samples", num_samples), ("train_samples", train_samples), ("chunk", chunk)):
            if value is not None:
                check_number(f"{type(self).__name__.lstrip('_')}: {name}", value, least=1, whole=True)
        self.net = net
        self.num_samples = num_samples
        self.train_samples = train_samples
        self.chunk = chunk
        self.seed = seed

    def forward(self, x: Tensor) -> Samples:
        num_samples = self.train_samples if self.training else self.num_samples
        chunk = self.chunk or num_samples
        sizes = [min(chunk, num_samples - start) for start in range(0, num_samples, chunk)]
        if self.training or self.seed is None:
            return Samples(torch.cat([self._passes(x, size) for size in sizes]))
        with seeded(self.seed, x.device):
            return Samples(torch.cat([self._passes(x, size) for size in sizes]))

    def _passes(self, x: Tensor, count: int) -> Tensor:
        repeated = x.expand(count, *x.shape).flatten(0, 1)
        return self._outputs(repeated).unflatten(0, (count, -1))

    def _outputs(self, x: Tensor) -> Tensor:
        return tensor_from(self.net, x)

    def extra_repr(self) -> str:
        return (
            f"num_samples={self.num_samples}, train_samples={self.train_samples}, chunk={self.chunk}, seed={self.seed}"
        )


class _MCDropout(MonteCarlo):
    calls_dropout: bool

    def train(self, mode: bool = True) -> _MCDropout:
        super().train(mode)
        for module in dropouts(self.net):
            module.training = True
        return self

    def _outputs(self, x: Tensor) -> Tensor:
        if not vars(self).get("calls_dropout"):  # which files of earlier versions do not have
            return super()._outputs(x)
        with Training():
            return super()._outputs(x)


def mc_dropout(net: nn.Module, num_samples: int = 8, **settings: Any) -> MonteCarlo:
    """MC Dropout (Gal & Ghahramani, 2016): dropout stays active in evaluation; all other modules follow the mode.

    This covers dropout modules, attention with ``dropout=``, and calls of ``torch.nn.functional.dropout`` and its
    relatives in the methods of the network's modules. Call ``train()`` and ``eval()`` on the result, not on ``net``.

    Args:
        net: a network with dropout.
        num_samples: number of passes in evaluation.
        settings: ``train_samples``, ``chunk``, ``seed`` of :class:`MonteCarlo`.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.mc_dropout(mnvi.models.mlp(13, dropout=0.1), num_samples=8).eval()
        >>> net(torch.ones(5, 13)).values.shape
        torch.Size([8, 5, 2])
    """
    calls = calls_dropout(net)
    drops = any(not isinstance(module, nn.TransformerEncoderLayer) for module in dropouts(net))
    if not drops and not calls:
        raise ValueError(
            "mc_dropout: the network has no dropout module with p > 0, and its modules do not call "
            "nn.functional.dropout; build it with one, e.g. mnvi.models.mlp(13, dropout=0.1)"
        )
    method = _MCDropout(net, num_samples, **settings)
    method.calls_dropout = calls
    return method.train(net.training)


def tensor_from(net: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    out = net(x)
    if not isinstance(out, Tensor):
        raise TypeError(
            f"sampling needs a network that returns a tensor, this one returned a {type(out).__name__}; to sample one "
            "with posteriors, convert it with mnvi.Sampled(posterior)"
        )
    return out


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, the only ones that dropout and initialisers use, and restore them afterwards."""
    devices = [] if device.type in ("cpu", "meta") else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(seed)
        yield
