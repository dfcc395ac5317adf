"""Methods that answer with samples: repeated passes through a random network, and several networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mnvi.outputs import Samples


class MonteCarlo(nn.Module):
    r"""Several passes through a network whose outputs are random, as one batched pass.

    .. math:: h^s = f(x;\, \varepsilon^s), \qquad s = 1 \dots S

    The batch is repeated S times, so every example of every pass must draw noise of its own; dropout and
    :class:`mnvi.Sampled` posteriors do. Returns :class:`mnvi.Samples`, [S, batch, ...].

    Args:
        net: a network on tensors with something random in it.
        num_samples: S in evaluation.
        train_samples: S in training.
        chunk: how many passes at once, to bound memory; None for all.
        seed: gives the same noise in every evaluation, whatever was drawn before, and leaves torch's global generator
            as it was. The noise depends on the batch size and on ``chunk``. None (default): noise comes from the global
            generator, so ``torch.manual_seed`` repeats a run. ``torch.compile`` needs None.

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
        _check_count("num_samples", num_samples)
        _check_count("train_samples", train_samples)
        if chunk is not None:
            _check_count("chunk", chunk)
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
        with _seeded(self.seed, x.device):
            return Samples(torch.cat([self._passes(x, size) for size in sizes]))

    def _passes(self, x: Tensor, count: int) -> Tensor:
        repeated = x.expand(count, *x.shape).flatten(0, 1)
        return _tensor_from(self.net, repeated).unflatten(0, (count, -1))

    def extra_repr(self) -> str:
        return (
            f"num_samples={self.num_samples}, train_samples={self.train_samples}, chunk={self.chunk}, seed={self.seed}"
        )


class _MCDropout(MonteCarlo):
    def train(self, mode: bool = True) -> _MCDropout:
        super().train(mode)
        for module in self._dropouts():
            module.train()
        return self

    def _dropouts(self) -> Iterator[nn.Module]:
        return (m for m in self.net.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0)


def mc_dropout(net: nn.Module, num_samples: int = 8, **settings: Any) -> MonteCarlo:
    """MC Dropout (Gal & Ghahramani, 2016): dropout stays active in evaluation, everything else does as it is told.

    Call ``train()`` and ``eval()`` on what is returned, not on ``net``.

    Args:
        net: a network with dropout modules (``nn.Dropout``, ``nn.Dropout2d``, ...).
        num_samples: number of passes in evaluation.
        settings: ``train_samples``, ``chunk``, ``seed`` of :class:`MonteCarlo`.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.mc_dropout(mnvi.models.mlp(13, dropout=0.1), num_samples=8).eval()
        >>> net(torch.ones(5, 13)).values.shape
        torch.Size([8, 5, 2])
    """
    method = _MCDropout(net, num_samples, **settings)
    if not any(True for _ in method._dropouts()):
        raise ValueError(
            "mc_dropout: the network has no dropout module with p > 0 (a call of nn.functional.dropout is not seen); "
            "build it with one, e.g. mnvi.models.mlp(13, dropout=0.1)"
        )
    return method.train(net.training)


class Ensemble(nn.Module):
    """Deep ensemble (Lakshminarayanan et al., 2017): networks that differ in their initialisation alone.

    Returns :class:`mnvi.Samples`, [members, batch, ...]. Its expected log-likelihood is the mean of the members' own,
    so one loss trains them all, each with 1/members of the gradient it would have by itself.

    Args:
        members: the networks, deterministic.
        stacked: evaluate all members in one vectorised pass; they must be built alike. Members with buffers, such as
            batch norm's, take turns in training all the same, as their buffers change.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.Ensemble.of(lambda: mnvi.models.mlp(13), num_members=5, seed=0)
        >>> net(torch.ones(4, 13)).values.shape
        torch.Size([5, 4, 2])
    """

    def __init__(self, members: Iterable[nn.Module], *, stacked: bool = False) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        if not self.members:
            raise ValueError("Ensemble: members is empty; give at least one network")
        if len({id(member) for member in self.members}) < len(self.members):
            raise ValueError("Ensemble: members has the same network twice; use Ensemble.of(factory, num_members)")
        if stacked:
            shapes = [{k: v.shape for k, v in member.state_dict().items()} for member in self.members]
            if any(shape != shapes[0] for shape in shapes):
                raise ValueError("Ensemble: stacked=True needs members with the same parameters and shapes")
        self.stacked = stacked

    @classmethod
    def of(cls, factory: Callable[[], nn.Module], num_members: int = 5, seed: int = 0, **settings: Any) -> Ensemble:
        """Members from a function, the k-th one called under the seed ``seed + k``.

        Args:
            factory: builds a network with fresh random weights.
            num_members: how many.
            seed: of the first; torch's global generator is left as it was.
            settings: of :class:`Ensemble`.
        """
        _check_count("num_members", num_members)
        if isinstance(factory, nn.Module):
            raise TypeError("Ensemble.of: factory must be a function that builds a member, e.g. lambda: models.mlp(13)")
        members = []
        for k in range(num_members):
            with _seeded(seed + k, torch.get_default_device()):
                members.append(factory())
        return cls(members, **settings)

    def forward(self, x: Tensor) -> Samples:
        has_buffers = any(True for _ in self.members[0].buffers())
        if self.stacked and not (self.training and has_buffers):
            return Samples(self._vectorised(x))
        return Samples(torch.stack([_tensor_from(member, x) for member in self.members]))

    def _vectorised(self, x: Tensor) -> Tensor:
        states = [{**dict(member.named_parameters()), **dict(member.named_buffers())} for member in self.members]
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}

        def member(state: dict[str, Tensor]) -> Tensor:
            return _tensor_from(lambda x: functional_call(self.members[0], state, (x,)), x)

        values: Tensor = torch.vmap(member, randomness="different")(stacked)
        return values


def _tensor_from(net: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    out = net(x)
    if not isinstance(out, Tensor):
        raise TypeError(
            f"samples are taken of networks that return a tensor, this one returned a {type(out).__name__}; a network "
            "with posteriors is sampled when converted with mnvi.Sampled(posterior)"
        )
    return out


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} must be a whole number, at least 1")


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout and initialisers know torch's global generators only; this borrows them and gives them back."""
    devices = [] if device.type in ("cpu", "meta") else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(seed)
        yield
