"""Deep ensembles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mnvi.methods.montecarlo import seeded, tensor_from
from mnvi.moments.checking import check_number
from mnvi.values.samples import Samples


class Ensemble(nn.Module):
    """Deep ensemble (Lakshminarayanan et al., 2017): networks that differ only in their initialisation.

    Returns :class:`mnvi.Samples`, [members, batch, ...]. Its expected log-likelihood is the mean over members, so one
    loss trains them all, each with 1/members of the gradient it would have alone.

    Args:
        members: deterministic networks.
        stacked: evaluate all members in one vectorised pass; they must be built alike. In training, members with
            buffers, such as those of batch norm, still run one by one, because their buffers change.

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
        """Build members with a function; the k-th call runs under the seed ``seed + k``.

        Args:
            factory: builds a network with fresh random weights.
            num_members: number of members.
            seed: seed of the first member; torch's global generator is restored.
            settings: further arguments of :class:`Ensemble`.
        """
        check_number("Ensemble.of: num_members", num_members, least=1, whole=True)
        if isinstance(factory, nn.Module):
            raise TypeError("Ensemble.of: factory must be a function that builds a member, e.g. lambda: models.mlp(13)")
        members = []
        for k in range(num_members):
            with seeded(seed + k, torch.get_default_device()):
                members.append(factory())
        return cls(members, **settings)

    def forward(self, x: Tensor) -> Samples:
        has_buffers = any(True for _ in self.members[0].buffers())
        if self.stacked and not (self.training and has_buffers):
            return Samples(self._vectorised(x))
        return Samples(torch.stack([tensor_from(member, x) for member in self.members]))

    def _vectorised(self, x: Tensor) -> Tensor:
        states = [{**dict(member.named_parameters()), **dict(member.named_buffers())} for member in self.members]
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}

        def member(state: dict[str, Tensor]) -> Tensor:
            return tensor_from(lambda x: functional_call(self.members[0], state, (x,)), x)

        values: Tensor = torch.vmap(member, randomness="different")(stacked)
        return values
