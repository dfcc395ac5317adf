"""Many small networks trained as one: folds, runs, members of an ensemble, trials of a search.

All replicas are built by one function; each has its own data, initialisation, shuffling, noise, clipping and optimiser
state, and ends with the weights that training it alone under its seed would have given.

>>> import torch, mnvi
>>> x, y = torch.randn(100, 3), torch.randn(100)
>>> def build(k):
...     return mnvi.Objective(mnvi.models.mlp(3), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=100))
>>> recipe = mnvi.replicas.Recipe(epochs=2, batch_size=32, learning_rate=0.01)
>>> members = mnvi.replicas.train(build, [(x, y)] * 5, seeds=range(5), recipe=recipe)
>>> ensemble = mnvi.Ensemble(members.module(k).net for k in range(5))
>>> ensemble(x).values.shape
torch.Size([5, 100, 2])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from mnvi.checks import is_number
from mnvi.methods import Objective
from mnvi.optimizers import OPTIMIZERS
from mnvi.recording import Recording

_FEW = 4  # fewer replicas than this do not pay for stepping together
CACHE = 8 << 20  # bytes; replicas step together as long as what one step touches stays about this size

Build = Callable[[int], Objective]
Data = Sequence[tuple[Tensor, Tensor]]
Progress = Callable[[list[int], int, Tensor], None]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """How every replica is trained; the optimisers are torch's SGD and Adam, the schedule its MultiStepLR.

    Args:
        epochs: passes over the data.
        batch_size: the last batch of an epoch may be smaller.
        learning_rate: at the start.
        optimizer: ``"sgd"``, ``"adam"`` or ``"amsgrad"``.
        momentum, nesterov: of SGD.
        weight_decay: as in torch's optimisers, added to the gradient.
        milestones: epochs from which on the learning rate is multiplied by ``gamma``, once each.
        gamma: see there.
        clip: largest absolute entry of a replica's gradient, which is scaled down as a whole where it is larger.

    Example:
        >>> Recipe(epochs=200, batch_size=64, learning_rate=0.05, momentum=0.9, milestones=(100, 150), clip=1.0).gamma
        0.1
    """

    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    milestones: Sequence[int] = ()
    gamma: float = 0.1
    clip: float | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Recipe: {name}={value!r} must be a whole number, at least 1")
        if not is_number(self.learning_rate) or not 0 < self.learning_rate < math.inf:
            raise ValueError(f"Recipe: learning_rate={self.learning_rate!r} must be a number above 0")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"Recipe: optimizer={self.optimizer!r} is not one of {', '.join(OPTIMIZERS)}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"Recipe: clip={self.clip!r} must be above 0, or None")
        if self.nesterov and not self.momentum:
            raise ValueError("Recipe: nesterov=True needs a momentum above 0")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        return self.learning_rate * self.gamma ** sum(milestone <= epoch for milestone in self.milestones)


class Replicas:
    """Trained networks.

    Attributes:
        state: parameters and buffers of all, ``[replicas, ...]`` each, under the names of :class:`mnvi.Objective`.
        losses: mean loss of every epoch, ``[replicas, epochs]``.
        failures: replicas whose loss was not finite, with the epoch where that began. The others are not harmed.

    Example:
        >>> import torch, mnvi
        >>> def build(k):
        ...     return mnvi.Objective(mnvi.models.mlp(3), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
        >>> data = [(torch.ones(10, 3), torch.ones(10))] * 2
        >>> replicas = train(build, data, [0, 1], Recipe(epochs=1, batch_size=10, learning_rate=0.1))
        >>> len(replicas), replicas.failures, replicas.module(1).net(torch.ones(4, 3)).shape
        (2, {}, torch.Size([4, 2]))
    """

    def __init__(self, build: Build, seeds: Sequence[int], state: State, losses: Tensor) -> None:
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
        """Replica ``k`` by itself, in evaluation mode."""
        objective = _built(self.build, k, self.seeds[k])[0]
        objective.load_state_dict({name: value[k] for name, value in self.state.items()})
        return objective.eval()


def load(build: Build, seeds: Sequence[int], state: State, losses: Tensor) -> Replicas:
    """Replicas from what an earlier :func:`train` returned: its ``state`` and ``losses``, after ``torch.load``.

    Example:
        >>> import torch, mnvi
        >>> def build(k):
        ...     return mnvi.Objective(torch.nn.Linear(3, 2), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
        >>> state = {"net.weight": torch.zeros(1, 2, 3), "net.bias": torch.ones(1, 2)}
        >>> load(build, [0], state, torch.zeros(1, 1)).module(0).net(torch.ones(3))
        tensor([1., 1.], grad_fn=<ViewBackward0>)
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
    """Trains one network for every seed.

    Replicas with equally many examples step together, in blocks whose working set, measured on the recorded step,
    stays within ``CACHE`` bytes: larger ones are slower, and memory is bounded whatever the number of replicas.

    Args:
        build: ``build(k)`` makes the objective of replica k, called under ``torch.manual_seed(seeds[k])``; shuffling
            and noise go on from where it left the generator. Only weights, data, κ and N may differ between replicas.
        data: inputs and targets ``[examples, ...]`` of every replica; the same tensors may be given many times.
        seeds: one for every replica.
        recipe: how to train.
        progress: called after an epoch of a block, with the replicas of the block, the epoch (from 0) and their losses.
        compile: the step of a full batch goes through ``torch.compile``: some ten seconds first (less when the
            compiler finds it in its cache), then two to four times faster. Results agree to float precision.

    Example:
        See the module's own.
    """
    _check_data(data, seeds)
    state: State = {}
    losses = torch.empty(len(seeds), recipe.epochs)
    recordings = _Recordings(compile)
    groups = list(_groups(data))
    largest = block_size(build, data, seeds, recipe)
    if compile:  # every size of a block is compiled by itself: one that divides all groups serves them all
        common = math.gcd(*map(len, groups))
        largest = next((size for size in range(min(largest, common), _FEW, -1) if common % size == 0), largest)
    for group in groups:
        for members in _evenly(group, largest):
            chosen = [data[k] for k in members], members, [seeds[k] for k in members]
            block = _Block(build, *chosen, recipe, recordings)
            for epoch in range(recipe.epochs):
                losses[members, epoch] = block.epoch(epoch)
                if progress is not None:
                    progress(members, epoch, losses[members, epoch])
            for name, value in block.state().items():
                state.setdefault(name, value.new_empty(len(seeds), *value.shape[1:]))[members] = value
    return Replicas(build, seeds, state, losses)


def block_size(build: Build, data: Data, seeds: Sequence[int], recipe: Recipe) -> int:
    """How many replicas step together: measured on the recorded step of the first one.

    Example:
        >>> import torch, mnvi
        >>> def build(k):
        ...     return mnvi.Objective(mnvi.models.mlp(3), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=10))
        >>> data = [(torch.ones(10, 3), torch.ones(10))] * 2
        >>> block_size(build, data, [0, 1], Recipe(epochs=1, batch_size=10, learning_rate=0.1)) > 100
        True
    """
    x, y = (part[None, : recipe.batch_size] for part in data[0])
    alone = _Block(build, data[:1], [0], list(seeds[:1]), recipe, _Recordings(compile=False))
    return max(1, CACHE // alone.recording(x, y).working_set())


def _evenly(group: list[int], largest: int) -> Iterator[list[int]]:
    """Blocks of one size, or of two that differ by one: each size is recorded once."""
    count = math.ceil(len(group) / largest)
    for block in range(count):
        yield group[block * len(group) // count : (block + 1) * len(group) // count]


def _groups(data: Data) -> Iterator[list[int]]:
    """Replicas whose batches have the same shapes."""
    alike: dict[tuple, list[int]] = {}
    for k, (x, y) in enumerate(data):
        alike.setdefault((x.shape, y.shape, x.dtype, y.dtype), []).append(k)
    yield from alike.values()


class _Recordings:
    """Steps that were recorded, by the shapes of their batch; blocks of one size share them."""

    def __init__(self, compile: bool) -> None:
        self.compile = compile
        self.found: dict[tuple, Recording] = {}

    def of(self, step: Callable, example: tuple, full: bool) -> Recording:
        shapes = tuple(tensor.shape for tensor in example[-3:])
        if shapes not in self.found:
            with torch.random.fork_rng(devices=[]):
                self.found[shapes] = Recording(step, example, [], compile=self.compile and full)
        return self.found[shapes]


class _Block:
    """Replicas that step together."""

    def __init__(
        self,
        build: Build,
        data: Data,
        members: list[int],
        seeds: list[int],
        recipe: Recipe,
        recordings: _Recordings,
    ) -> None:
        self.recipe = recipe
        self.recordings = recordings
        built = [_built(build, k, seed) for k, seed in zip(members, seeds, strict=True)]
        objectives = [objective for objective, _ in built]
        self.generators = [generator for _, generator in built]
        self.objective = objectives[0]
        self.elbos = [objective.elbo for objective in objectives]
        parameters = [dict(objective.named_parameters()) for objective in objectives]
        self.flat, self.parameters = _flattened(parameters)
        buffers = [dict(objective.named_buffers()) for objective in objectives]
        self.buffers = {name: torch.stack([each[name] for each in buffers]) for name in buffers[0]}
        self.optimizer = OPTIMIZERS[recipe.optimizer](self.flat, recipe)
        self.data = _Shuffled(data)

    def epoch(self, epoch: int) -> Tensor:
        """One pass over the data; the mean loss of every replica."""
        scale = torch.tensor([_kappa(elbo, epoch) / elbo.num_data for elbo in self.elbos])
        total = torch.zeros(len(self.elbos))
        for x, y in self.data.batches(self.recipe.batch_size, self.generators):
            gradient, loss, self.buffers = self.recording(x, y)(self.parameters, self.buffers, x, y, scale)
            if self.recipe.clip is not None:
                gradient *= (self.recipe.clip / (gradient.abs().amax(1, keepdim=True) + 1e-6)).clamp(max=1)
            self.optimizer.step(gradient, self.recipe.rate(epoch))
            total += loss * y.shape[1]
        return total / self.data.count

    def recording(self, x: Tensor, y: Tensor) -> Recording:
        example = (self.parameters, self.buffers, x, y, torch.ones(len(self.elbos)))
        recording = self.recordings.of(self._step, example, full=y.shape[1] == self.recipe.batch_size)
        recording.generators[:] = self.generators
        return recording

    def _step(self, parameters: State, buffers: State, x: Tensor, y: Tensor, scale: Tensor) -> tuple:
        """Gradients of all replicas [replicas, parameters], their losses, and the buffers as they are afterwards."""

        def loss(parameters: State, buffers: State, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, State]:
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
            terms = functional_call(self.objective, {**parameters, **buffers}, (x, y))
            return terms.nll + scale * terms.kl, buffers

        step = vmap(grad_and_value(loss, has_aux=True), randomness="different")
        gradients, (losses, buffers) = step(parameters, buffers, x, y, scale)
        return torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1), losses, buffers

    def state(self) -> State:
        return {**self.parameters, **self.buffers}


class _Shuffled:
    """The examples of all replicas, in a new order every epoch; replicas given the same tensors share them."""

    def __init__(self, data: Data) -> None:
        self.count = len(data[0][1])
        unique: dict[tuple[int, int], int] = {}
        places = [unique.setdefault((id(x), id(y)), len(unique)) for x, y in data]
        firsts = [places.index(place) for place in range(len(unique))]
        self.x = torch.cat([data[first][0] for first in firsts])
        self.y = torch.cat([data[first][1] for first in firsts])
        self.starts = torch.tensor(places)[:, None] * self.count

    def batches(self, size: int, generators: Sequence[torch.Generator]) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.stack([torch.randperm(self.count, generator=generator) for generator in generators])
        order += self.starts
        for rows in order.split(size, dim=1):
            chosen = rows.reshape(-1)
            yield tuple(part.index_select(0, chosen).unflatten(0, rows.shape) for part in (self.x, self.y))


def _flattened(parameters: list[dict[str, nn.Parameter]]) -> tuple[Tensor, State]:
    """All parameters in one array [replicas, parameters], and its parts under their names and shapes."""
    flat = torch.stack([torch.cat([p.detach().flatten() for p in each.values()]) for each in parameters])
    parts = flat.split([p.numel() for p in parameters[0].values()], dim=1)
    shapes = {name: p.shape for name, p in parameters[0].items()}
    return flat, {name: part.view(len(flat), *shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}


def _built(build: Build, k: int, seed: int) -> tuple[Objective, torch.Generator]:
    """Replica ``k`` as it starts, and a generator that goes on where building it left torch's own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        objective = build(k)
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
    if not isinstance(objective, Objective):
        raise TypeError(f"replicas: build({k}) must return an mnvi.Objective, got a {type(objective).__name__}")
    return objective.train(), generator


def _kappa(elbo: object, epoch: int) -> float:
    kappa = elbo.kappa  # type: ignore[attr-defined]
    return kappa(epoch) if callable(kappa) else kappa


def _check_data(data: Data, seeds: Sequence[int]) -> None:
    if not len(data) == len(seeds) > 0:
        raise ValueError(f"replicas: data has {len(data)} entries and seeds {len(seeds)}; give one of each per replica")
    for k, (x, y) in enumerate(data):
        if len(x) != len(y) or not len(y):
            raise ValueError(f"replicas: data[{k}] has {len(x)} inputs and {len(y)} targets; both must be equally many")
