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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from mnvi.alike import described
from mnvi.checks import is_number
from mnvi.methods import Objective
from mnvi.montecarlo import MonteCarlo
from mnvi.objective import ELBO
from mnvi.optimizers import OPTIMIZERS
from mnvi.recording import Recording

_FEW = 4  # fewer replicas than this do not pay for stepping together
CACHE = 8 << 20  # bytes; replicas step together as long as what one step touches stays about this size

Build = Callable[[int], Objective]
Data = Sequence[tuple[Tensor, Tensor]]
Progress = Callable[[list[int], int, Tensor], None]
State = dict[str, Tensor]
States = dict[str, Tensor | list[Tensor | None]]

# What replicas that step together may differ in besides their tensors: κ and N go into the step as numbers, and in
# training nothing reads the others.
_OF_EACH = {ELBO: ("kappa", "num_data"), MonteCarlo: ("num_samples", "seed")}


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_above(value: Any, bound: float) -> bool:
    return is_number(value) and bound < value < math.inf


def _are_epochs(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(_is_whole(value, 0) for value in values)


_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "epochs": (lambda value: _is_whole(value, 1), "a whole number, at least 1"),
    "batch_size": (lambda value: _is_whole(value, 1), "a whole number, at least 1"),
    "learning_rate": (lambda value: _is_above(value, 0), "a finite number above 0"),
    "optimizer": (lambda value: isinstance(value, str) and value in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
    "momentum": (lambda value: is_number(value) and 0 <= value < 1, "a number from 0 to below 1"),
    "nesterov": (lambda value: isinstance(value, bool), "True or False"),
    "weight_decay": (lambda value: is_number(value) and 0 <= value < math.inf, "a finite number, at least 0"),
    "milestones": (_are_epochs, "a list of epochs, whole numbers of at least 0"),
    "gamma": (lambda value: _is_above(value, 0), "a finite number above 0"),
    "clip": (lambda value: value is None or _is_above(value, 0), "a finite number above 0, or None"),
}


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
        for name, (allowed, expected) in _ALLOWED.items():
            value = getattr(self, name)
            if not allowed(value):
                raise ValueError(f"Recipe: {name}={value!r} must be {expected}")
        for name in ("momentum", "nesterov"):
            value = getattr(self, name)
            if value and self.optimizer != "sgd":
                raise ValueError(f"Recipe: {name}={value!r} is for sgd, not for {self.optimizer}; leave it out")
        if self.nesterov and not self.momentum:
            raise ValueError("Recipe: nesterov=True needs a momentum above 0")

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch."""
        return self.learning_rate * self.gamma ** sum(milestone <= epoch for milestone in self.milestones)


class Replicas:
    """Trained networks.

    Attributes:
        state: parameters and buffers of all, ``[replicas, ...]`` each, under the names of :class:`mnvi.Objective`;
            where replicas differ in a shape or a name, a list with one tensor, or None, for each.
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
        """Replica ``k`` by itself, in evaluation mode."""
        objective = _built(self.build, k, self.seeds[k])[0]
        own = _saved(objective)
        saved = {name: one for name, value in self.state.items() if (one := value[k]) is not None}
        differ = [name for name in {**own, **saved} if _shape(own, name) != _shape(saved, name)]
        if differ:
            raise ValueError(
                f"replicas: state and build({k}) differ in {', '.join(differ)}; give the build that was trained with"
            )
        with torch.no_grad():
            for name, tensor in own.items():  # a tensor that has several names is there once
                tensor.copy_(saved[name])
        return objective.eval()


def load(build: Build, seeds: Sequence[int], state: States, losses: Tensor) -> Replicas:
    """Replicas from what an earlier :func:`train` returned.

    Args:
        build: the function that they were trained with.
        seeds: those that they were trained with.
        state: the ``state`` of the trained :class:`Replicas`, after ``torch.load``.
        losses: likewise, ``[replicas, epochs]``.

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

    Replicas that were built alike and have equally many examples step together, in blocks whose working set, measured
    on the recorded step, stays within ``CACHE`` bytes: larger ones are slower, and memory is bounded whatever the
    number of replicas. Every other kind of network, such as a trial of a search with its own prior, has a step of its
    own, which takes seconds to record.

    Args:
        build: ``build(k)`` makes the objective of replica k, called under ``torch.manual_seed(seeds[k])``; shuffling
            and noise go on from where it left the generator. Replicas that differ in weights, data, κ and N alone are
            built alike.
        data: inputs and targets ``[examples, ...]`` of every replica; the same tensors may be given many times.
        seeds: one for every replica.
        recipe: how to train.
        progress: called after an epoch of a block, with the replicas of the block, the epoch (from 0) and their losses.
        compile: the step of a full batch goes through ``torch.compile``: some ten seconds first (less when the
            compiler finds it in its cache), then two to four times faster. Results agree to float precision.

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
        recordings = _Recordings(kind.objective, compile)
        for members in _blocks(kind, data, recipe, compile):
            starts = [kind.starts.pop(k) for k in members]
            block = _Block(starts, [data[k] for k in members], recipe, recordings)
            for epoch in range(recipe.epochs):
                losses[members, epoch] = block.epoch(epoch)
                if progress is not None:
                    progress(members, epoch, losses[members, epoch])
            _put(block.state(), state, members)
    return Replicas(build, seeds, state, losses)


def block_size(build: Build, data: Data, seeds: Sequence[int], recipe: Recipe) -> int:
    """How many replicas step together, of those that are built like the first: measured on its recorded step.

    .. math:: n = \\lfloor \\mathrm{CACHE} \\,/\\, \\text{bytes alive at once in the step of one replica} \\rfloor

    Args:
        build: as for :func:`train`.
        data: likewise; the first entry is looked at.
        seeds: likewise.
        recipe: likewise; the size of a batch counts.

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


class _Start(NamedTuple):
    """A replica before its training; its module is built once and let go."""

    parameters: State  # those that are trained
    rest: State  # other parameters, and buffers
    kappa: float | Callable[[int], float]
    num_data: float
    generator: torch.Generator

    def scale(self, epoch: int) -> float:
        """What the KL is multiplied by."""
        return (self.kappa(epoch) if callable(self.kappa) else self.kappa) / self.num_data


@dataclass
class _Kind:
    """Replicas that were built alike: one recorded step serves them all."""

    objective: Objective  # of the first
    starts: dict[int, _Start]


def _kinds(build: Build, seeds: Sequence[int]) -> list[_Kind]:
    kinds: dict[object, _Kind] = {}
    for k, seed in enumerate(seeds):
        objective, generator = _built(build, k, seed)
        kind = kinds.setdefault(described(objective, _OF_EACH), _Kind(objective, {}))
        parameters = {name: p.detach().clone() for name, p in objective.named_parameters() if p.requires_grad}
        _check_parameters(k, parameters)
        others = {name: tensor for name, tensor in _tensors(objective).items() if name not in parameters}
        rest = {name: tensor.detach().clone() for name, tensor in others.items()}
        kind.starts[k] = _Start(parameters, rest, objective.elbo.kappa, objective.elbo.num_data, generator)
    return list(kinds.values())


def _tensors(objective: Objective) -> State:
    """Parameters and buffers, each under its first name."""
    return {**dict(objective.named_parameters()), **dict(objective.named_buffers())}


def _saved(objective: Objective) -> State:
    """Those of them that are part of a module's state."""
    modules = objective.named_modules()
    passing = {f"{path}.{name}".lstrip(".") for path, module in modules for name in module._non_persistent_buffers_set}
    return {name: tensor for name, tensor in _tensors(objective).items() if name not in passing}


def _names(objective: Objective) -> dict[str, str]:
    """From every place where a module has a parameter or buffer to the first name of that tensor.

    A module that occurs twice is there once: ``functional_call`` would not give it back as it was.
    """
    first: dict[int, str] = {}
    return {
        place: first.setdefault(id(tensor), place)
        for path, module in objective.named_modules()
        for own in (module.named_parameters, module.named_buffers)
        for place, tensor in own(path, recurse=False, remove_duplicate=False)
    }


def _shape(tensors: State, name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None


def _blocks(kind: _Kind, data: Data, recipe: Recipe, compile: bool) -> Iterator[list[int]]:
    groups = _groups(data, kind.starts)
    largest = _block_size(kind, data, recipe)
    if compile:  # every size of a block is compiled by itself: one that divides all groups serves them all
        common = math.gcd(*map(len, groups))
        largest = next((size for size in range(min(largest, common), _FEW, -1) if common % size == 0), largest)
    for group in groups:
        yield from _evenly(group, largest)


def _block_size(kind: _Kind, data: Data, recipe: Recipe) -> int:
    first = next(iter(kind.starts))
    x, y = (part[None, : recipe.batch_size] for part in data[first])
    alone = _Block([kind.starts[first]], [data[first]], recipe, _Recordings(kind.objective, compile=False))
    return max(1, CACHE // alone.recording(x, y).working_set())


def _room(kinds: Sequence[_Kind], count: int) -> States:
    """Where the state of so many replicas goes: a list for what not all of them have in one shape."""
    state: States = {}
    tensors = [_saved(kind.objective) for kind in kinds]
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
    """Blocks of one size, or of two that differ by one: each size is recorded once."""
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


class _Recordings:
    """The recorded steps of one kind of network, by the form of their batch; blocks of one size share them."""

    def __init__(self, objective: Objective, compile: bool) -> None:
        self.objective = objective
        self.compile = compile
        self.found: dict[tuple, Recording] = {}
        self.names = _names(objective)
        self.tensors = _tensors(objective)
        self.saved = list(_saved(objective))

    def of(self, example: tuple, full: bool) -> Recording:
        form = tuple((tensor.shape, tensor.dtype) for tensor in example[-3:])
        if form not in self.found:
            with torch.random.fork_rng(devices=[]):
                recording = Recording(self._step, example, [], compile=self.compile and full)
            self._check_read(recording.captured())
            self.found[form] = recording
        return self.found[form]

    def _check_read(self, captured: Iterable[Tensor]) -> None:
        own = {tensor.data_ptr(): name for name, tensor in self.tensors.items() if tensor.numel()}
        for tensor in captured:
            if tensor.data_ptr() in own:
                raise ValueError(
                    f"replicas: {own[tensor.data_ptr()]} is read from a list or another place that only the first "
                    "replica's module has; read it as an attribute of its module"
                )

    def _step(self, parameters: State, rest: State, x: Tensor, y: Tensor, scale: Tensor) -> tuple:
        """Gradients of all replicas [replicas, parameters], their losses, and the rest as it is afterwards."""
        buffers = dict(self.objective.named_buffers())

        def loss(parameters: State, rest: State, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, State]:
            copied = {name: tensor.clone() if name in buffers else tensor for name, tensor in rest.items()}
            given = {place: (parameters | copied)[name] for place, name in self.names.items()}
            terms = functional_call(self.objective, given, (x, y), tie_weights=False)
            return terms.nll + scale * terms.kl, {name: given[name] for name in rest}

        step = vmap(grad_and_value(loss, has_aux=True), randomness="different")
        gradients, (losses, rest) = step(parameters, rest, x, y, scale)
        return torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1), losses, rest


class _Block:
    """Replicas that step together."""

    def __init__(self, starts: Sequence[_Start], data: Data, recipe: Recipe, recordings: _Recordings) -> None:
        self.recipe = recipe
        self.recordings = recordings
        self.generators = [start.generator for start in starts]
        self.starts = starts
        self.flat, self.parameters = _flattened([start.parameters for start in starts])
        self.rest = {name: torch.stack([start.rest[name] for start in starts]) for name in starts[0].rest}
        self.optimizer = OPTIMIZERS[recipe.optimizer](self.flat, recipe)
        self.data = _Shuffled(data)

    def epoch(self, epoch: int) -> Tensor:
        """One pass over the data; the mean loss of every replica."""
        scale = torch.tensor([start.scale(epoch) for start in self.starts])
        total = torch.zeros(len(self.starts))
        for x, y in self.data.batches(self.recipe.batch_size, self.generators):
            gradient, loss, self.rest = self.recording(x, y)(self.parameters, self.rest, x, y, scale)
            if self.recipe.clip is not None:
                gradient *= (self.recipe.clip / (gradient.abs().amax(1, keepdim=True) + 1e-6)).clamp(max=1)
            self.optimizer.step(gradient, self.recipe.rate(epoch))
            total += loss * y.shape[1]
        return total / self.data.count

    def recording(self, x: Tensor, y: Tensor) -> Recording:
        example = (self.parameters, self.rest, x, y, torch.ones(len(self.starts)))
        recording = self.recordings.of(example, full=y.shape[1] == self.recipe.batch_size)
        recording.generators[:] = self.generators
        return recording

    def state(self) -> State:
        """What a module's own state has, under its names and in its order."""
        tensors = self.parameters | self.rest
        return {name: tensors[name] for name in self.recordings.saved}


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


def _flattened(parameters: list[State]) -> tuple[Tensor, State]:
    """All parameters in one array [replicas, parameters], and its parts under their names and shapes."""
    flat = torch.stack([torch.cat([p.flatten() for p in each.values()]) for each in parameters])
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


def _check_parameters(k: int, parameters: State) -> None:
    if not parameters:
        raise ValueError(f"replicas: build({k}) has no parameter to train; requires_grad is False for all")
    kinds = {parameter.dtype: name for name, parameter in parameters.items()}
    if len(kinds) > 1:
        found = ", ".join(f"{name} is {dtype}" for dtype, name in kinds.items())
        raise ValueError(f"replicas: build({k}) has parameters of several types ({found}); convert them to one")


def _check_data(data: Data, seeds: Sequence[int]) -> None:
    if not len(data) == len(seeds) > 0:
        raise ValueError(f"replicas: data has {len(data)} entries and seeds {len(seeds)}; give one of each per replica")
    for k, (x, y) in enumerate(data):
        if len(x) != len(y) or not len(y):
            raise ValueError(f"replicas: data[{k}] has {len(x)} inputs and {len(y)} targets; both must be equally many")
