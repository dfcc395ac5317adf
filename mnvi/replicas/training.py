"""Trains many networks block by block, and holds the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mnvi.elbo import ELBO, Objective
from mnvi.methods.montecarlo import MonteCarlo
from mnvi.replicas.alike import described
from mnvi.replicas.recipe import Recipe
from mnvi.replicas.step import Block, Data, Recordings, Start, State, saved_tensors, tensors_of

_FEW = 4  # for fewer replicas, stepping together does not pay
CACHE = 8 << 20  # bytes; as many replicas step together as keep a step's memory at about this size

Build = Callable[[int], Objective]
Progress = Callable[[list[int], int, Tensor], None]
States = dict[str, Tensor | list[Tensor | None]]

# Attributes in which replicas that step together may differ besides their tensors: κ and N enter the step as numbers,
# and training does not read the others.
_OF_EACH = {ELBO: ("kappa", "num_data"), MonteCarlo: ("num_samples", "seed")}


class Replicas:
    """Trained networks.

    Attributes:
        state: parameters and buffers of all, ``[replicas, ...]`` each, under the names of :class:`mnvi.Objective`;
            if replicas differ in a shape or a name, a list with one tensor or None for each.
        losses: mean loss of every epoch, ``[replicas, epochs]``.
        failures: replicas whose loss became non-finite, each with the first such epoch. The others are not affected.

    Example:
        >>> import torch, mnvi
        >>> def build(k):
        ...     return mnvi.Objective(mnvi.models.mlp(3), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
        >>> data = [(torch.ones(10, 3), torch.ones(10))] * 2
        >>> replicas = train(build, data, [0, 1], Recipe(epochs=1, batch_size=10, learning_rate=0.1))
        >>> len(replicas), replicas.failures, replicas.module(1).net(torch.ones(4, 3)).shape
        (2, {}, torch.Size([4, 2]))
    """

    def __init__(self, build: Build, seeds: Sequence[int], state: States, losses: Tensor) -> None:
        self.build = build
        self.seeds = list(seeds)
        self.state = state
        self.losses = losses

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def failures(self) -> dict[int, int]:
        broken = ~self.losses.isfinite()
        return {k: int(broken[k].nonzero()[0]) for k in broken.any(1).nonzero().flatten().tolist()}

    def module(self, k: int) -> Objective:
        """Replica ``k`` as a module, in evaluation mode."""
        objective = _built(self.build, k, self.seeds[k])[0]
        own = saved_tensors(objective)
        saved = {name: one for name, value in self.state.items() if (one := value[k]) is not None}
        differ = [name for name in {**own, **saved} if _shape(own, name) != _shape(saved, name)]
        if differ:
            raise ValueError(
                f"replicas: state and build({k}) differ in {', '.join(differ)}; pass the build used in training"
            )
        with torch.no_grad():
            for name, tensor in own.items():  # a tensor with several names appears once
                tensor.copy_(saved[name])
        return objective.eval()


def load(build: Build, seeds: Sequence[int], state: States, losses: Tensor) -> Replicas:
    """Restore replicas from the result of an earlier :func:`train`.

    Args:
        build: the function used in training.
        seeds: the seeds used in training.
        state: the ``state`` of the trained :class:`Replicas`, after ``torch.load``.
        losses: its ``losses``, ``[replicas, epochs]``.

    Example:
        >>> import torch, mnvi
        >>> def build(k):
        ...     return mnvi.Objective(torch.nn.Linear(3, 2), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
        >>> state = {"net.weight": torch.zeros(1, 2, 3), "net.bias": torch.ones(1, 2)}
        >>> load(build, [0], state, torch.zeros(1, 1)).module(0).net(torch.ones(3)).detach()
        tensor([1., 1.])
    """
    return Replicas(build, seeds, state, losses)


def train(
    build: Build,
    data: Data,
    seeds: Sequence[int],
    recipe: Recipe,
    *,
    progress: Progress | None = None,
    compile: bool = False,
) -> Replicas:
    """Train one network for every seed.

    Replicas that are built alike and have equally many examples step together, in blocks whose working set, measured on
    the recorded step, stays within ``CACHE`` bytes: larger blocks are slower, and this bounds memory for any number of
    replicas. Every other kind of network, such as a trial of a search with its own prior, has its own step, which takes
    seconds to record.

    Args:
        build: ``build(k)`` makes the objective of replica k, called under ``torch.manual_seed(seeds[k])``; shuffling
            and noise continue from the state in which it leaves the generator. Replicas that differ only in weights,
            data, κ and N are built alike.
        data: inputs and targets ``[examples, ...]`` of every replica; the same tensors may occur many times.
        seeds: one for every replica.
        recipe: how to train.
        progress: called after an epoch of a block, with the replicas of the block, the epoch (from 0) and their losses.
        compile: compile the step of a full batch with ``torch.compile``. This takes about ten seconds (less if the
            compiler's cache has it) and makes steps two to four times faster. A step agrees with an uncompiled one to
            float precision; over a long training the different rounding acts like another seed.

    Example:
        >>> import torch, mnvi
        >>> priors = [0.1, 0.1, 10.0, 10.0]  # a search; two runs of each trial
        >>> def build(k):
        ...     net = mnvi.convert(mnvi.models.mlp(3), mnvi.MultiplicativeNoise(priors[k]))
        ...     return mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=50))
        >>> data = [(torch.randn(50, 3), torch.randn(50))] * 4
        >>> recipe = Recipe(epochs=2, batch_size=25, learning_rate=0.01, momentum=0.9, clip=1.0)
        >>> trained = train(build, data, seeds=[0, 1, 0, 1], recipe=recipe)
        >>> trained.losses.shape, trained.module(3).net[0].posterior.prior_variance
        (torch.Size([4, 2]), 10.0)
    """
    _check_data(data, seeds)
    kinds = _kinds(build, seeds)
    state, losses = _room(kinds, len(seeds)), torch.empty(len(seeds), recipe.epochs)
    for kind in kinds:
        recordings = Recordings(kind.objective, compile)
        for members in _blocks(kind, data, recipe, compile):
            starts = [kind.starts.pop(k) for k in members]
            block = Block(starts, [data[k] for k in members], recipe, recordings)
            for epoch in range(recipe.epochs):
                losses[members, epoch] = block.epoch(epoch)
                if progress is not None:
                    progress(members, epoch, losses[members, epoch])
            _put(block.state(), state, members)
    return Replicas(build, seeds, state, losses)


def block_size(build: Build, data: Data, seeds: Sequence[int], recipe: Recipe) -> int:
    """Number of replicas, among those built like the first, that step together; measured on its recorded step.

    .. math:: n = \\lfloor \\mathrm{CACHE} \\,/\\, \\text{bytes alive at once in the step of one replica} \\rfloor

    Args:
        build: as for :func:`train`.
        data: as for :func:`train`; only the first entry matters.
        seeds: as for :func:`train`.
        recipe: as for :func:`train`; only the batch size matters.

    Example:
        >>> import torch, mnvi
        >>> def build(k):
        ...     return mnvi.Objective(mnvi.models.mlp(3), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
        >>> data = [(torch.ones(10, 3), torch.ones(10))] * 2
        >>> block_size(build, data, [0, 1], Recipe(epochs=1, batch_size=10, learning_rate=0.1)) > 100
        True
    """
    _check_data(data, seeds)
    return _block_size(_kinds(build, seeds[:1])[0], data, recipe)


@dataclass
class _Kind:
    """Replicas built alike: one recorded step serves them all."""

    objective: Objective  # of the first
    starts: dict[int, Start]


def _kinds(build: Build, seeds: Sequence[int]) -> list[_Kind]:
    kinds: dict[object, _Kind] = {}
    for k, seed in enumerate(seeds):
        objective, generator = _built(build, k, seed)
        kind = kinds.setdefault(described(objective, _OF_EACH), _Kind(objective, {}))
        parameters = {name: p.detach().clone() for name, p in objective.named_parameters() if p.requires_grad}
        _check_parameters(k, parameters)
        others = {name: tensor for name, tensor in tensors_of(objective).items() if name not in parameters}
        rest = {name: tensor.detach().clone() for name, tensor in others.items()}
        kind.starts[k] = Start(parameters, rest, objective.elbo.kappa, objective.elbo.num_data, generator)
    return list(kinds.values())


def _shape(tensors: State, name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None


def _blocks(kind: _Kind, data: Data, recipe: Recipe, compile: bool) -> Iterator[list[int]]:
    groups = _groups(data, kind.starts)
    largest = _block_size(kind, data, recipe)
    if compile:  # every block size needs its own compilation: one that divides all groups serves them all
        common = math.gcd(*map(len, groups))
        largest = next((size for size in range(min(largest, common), _FEW, -1) if common % size == 0), largest)
    for group in groups:
        yield from _evenly(group, largest)


def _block_size(kind: _Kind, data: Data, recipe: Recipe) -> int:
    first = next(iter(kind.starts))
    x, y = (part[None, : recipe.batch_size] for part in data[first])
    alone = Block([kind.starts[first]], [data[first]], recipe, Recordings(kind.objective, compile=False))
    return max(1, CACHE // alone.recording(x, y).working_set())


def _room(kinds: Sequence[_Kind], count: int) -> States:
    """Memory for the state of ``count`` replicas: a list for tensors that not all replicas have in one shape."""
    state: States = {}
    tensors = [saved_tensors(kind.objective) for kind in kinds]
    for name in dict.fromkeys(name for each in tensors for name in each):
        found = [each[name].detach() for each in tensors if name in each]
        alike = len(found) == len(kinds) and len({(tensor.shape, tensor.dtype) for tensor in found}) == 1
        state[name] = found[0].new_empty(count, *found[0].shape) if alike else [None] * count
    return state


def _put(tensors: State, state: States, members: list[int]) -> None:
    for name, values in tensors.items():
        place = state[name]
        if isinstance(place, Tensor):
            place[members] = values
        else:
            for k, value in zip(members, values, strict=True):
                place[k] = value.clone()


def _evenly(group: list[int], largest: int) -> Iterator[list[int]]:
    """Blocks of one size, or of two sizes that differ by one; each size is recorded once."""
    count = math.ceil(len(group) / largest)
    for block in range(count):
        yield group[block * len(group) // count : (block + 1) * len(group) // count]


def _groups(data: Data, members: Iterable[int]) -> list[list[int]]:
    """Replicas whose batches have the same shapes."""
    alike: dict[tuple, list[int]] = {}
    for k in members:
        x, y = data[k]
        alike.setdefault((x.shape, y.shape, x.dtype, y.dtype), []).append(k)
    return list(alike.values())


def _built(build: Build, k: int, seed: int) -> tuple[Objective, torch.Generator]:
    """Replica ``k`` before training, and a generator that continues where building it left torch's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        objective = build(k)
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
    if not isinstance(objective, Objective):
        raise TypeError(f"replicas: build({k}) must return an mnvi.Objective, got a {type(objective).__name__}")
    return objective.train(), generator


def _check_parameters(k: int, parameters: State) -> None:
    if not parameters:
        raise ValueError(f"replicas: build({k}) has no parameter to train; requires_grad is False for all")
    kinds = {parameter.dtype: name for name, parameter in parameters.items()}
    if len(kinds) > 1:
        found = ", ".join(f"{name} is {dtype}" for dtype, name in kinds.items())
        raise ValueError(f"replicas: build({k}) has parameters of several types ({found}); convert them to one")


def _check_data(data: Data, seeds: Sequence[int]) -> None:
    if not isinstance(data, Sequence):
        raise TypeError(f"replicas: data must be a list of (inputs, targets), got a {type(data).__name__}")
    if not len(data) == len(seeds) > 0:
        raise ValueError(f"replicas: data has {len(data)} entries and seeds {len(seeds)}; give one of each per replica")
    for k, pair in enumerate(data):
        if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            found = ", ".join(type(part).__name__ for part in pair)
            raise TypeError(f"replicas: data[{k}] must be two tensors, inputs and targets, got ({found})")
        x, y = pair
        if len(x) != len(y) or not len(y):
            raise ValueError(f"replicas: data[{k}] has {len(x)} inputs and {len(y)} targets; both must be equally many")
