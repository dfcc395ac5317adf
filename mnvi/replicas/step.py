"""Replicas that step together: stacked tensors, one recorded step for all, and shuffled data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from mnvi.elbo import Objective
from mnvi.replicas.recipe import Recipe
from mnvi.replicas.recording import Recording

Data = Sequence[tuple[Tensor, Tensor]]
State = dict[str, Tensor]


class Start(NamedTuple):
    """A replica before its training; its module is built once and dropped."""

    parameters: State  # those that are trained
    rest: State  # other parameters, and buffers
    kappa: float | Callable[[int], float]
    num_data: float
    generator: torch.Generator

    def scale(self, epoch: int) -> float:
        """Factor on the KL."""
        return (self.kappa(epoch) if callable(self.kappa) else self.kappa) / self.num_data


class Recordings:
    """The recorded steps of one kind of network, by the shape of their batch; blocks of one size share them."""

    def __init__(self, objective: Objective, compile: bool) -> None:
        self.objective = objective
        self.compile = compile
        self.found: dict[tuple, Recording] = {}
        self.names = _names(objective)
        self.tensors = tensors_of(objective)
        self.saved = list(saved_tensors(objective))

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
                    f"replicas: {own[tensor.data_ptr()]} is read from a list or another place of only the first "
                    "replica's module; read it as an attribute of its module"
                )

    def _step(self, parameters: State, rest: State, x: Tensor, y: Tensor, scale: Tensor) -> tuple:
        """Gradients of all replicas [replicas, parameters], their losses, and the updated rest."""
        buffers = dict(self.objective.named_buffers())

        def loss(parameters: State, rest: State, x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, State]:
            copied = {name: tensor.clone() if name in buffers else tensor for name, tensor in rest.items()}
            given = {place: (parameters | copied)[name] for place, name in self.names.items()}
            terms = functional_call(self.objective, given, (x, y, 0), tie_weights=False)  # the step does not use κ
            return terms.nll + scale * terms.kl, {name: given[name] for name in rest}

        step = vmap(grad_and_value(loss, has_aux=True), randomness="different")
        gradients, (losses, rest) = step(parameters, rest, x, y, scale)
        flat = [gradient.reshape(len(gradient), -1) for gradient in gradients.values()]  # one number has no dimension 1
        return torch.cat(flat, 1), losses, rest


class Block:
    """Replicas that step together."""

    def __init__(self, starts: Sequence[Start], data: Data, recipe: Recipe, recordings: Recordings) -> None:
        self.recipe = recipe
        self.recordings = recordings
        self.generators = [start.generator for start in starts]
        self.starts = starts
        self.flat, self.parameters = _flattened([start.parameters for start in starts])
        self.rest = {name: torch.stack([start.rest[name] for start in starts]) for name in starts[0].rest}
        self.optimizer = _optimizer(self.flat, recipe)
        self.data = _Shuffled(data, recipe)

    def epoch(self, epoch: int) -> Tensor:
        """One pass over the data; the mean loss of every replica."""
        scale = torch.tensor([start.scale(epoch) for start in self.starts])
        total = torch.zeros(len(self.starts))
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(epoch)
        for x, y in self.data.batches(self.generators):
            gradient, loss, self.rest = self.recording(x, y)(self.parameters, self.rest, x, y, scale)
            if self.recipe.clip is not None:
                gradient *= (self.recipe.clip / (gradient.abs().amax(1, keepdim=True) + 1e-6)).clamp(max=1)
            self.flat.grad = gradient
            self.optimizer.step()
            total += loss * y.shape[1]
        return total / self.data.seen

    def recording(self, x: Tensor, y: Tensor) -> Recording:
        example = (self.parameters, self.rest, x, y, torch.ones(len(self.starts)))
        recording = self.recordings.of(example, full=y.shape[1] == self.recipe.batch_size)
        recording.generators[:] = self.generators
        return recording

    def state(self) -> State:
        """The tensors of a module's own state, with its names and in its order."""
        tensors = self.parameters | self.rest
        return {name: tensors[name] for name in self.recordings.saved}


def _optimizer(flat: Tensor, recipe: Recipe) -> torch.optim.Optimizer:
    """torch's optimiser on the array whose rows are the networks' parameters; every entry has its own state."""
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            [flat],
            recipe.learning_rate,
            recipe.momentum,
            weight_decay=recipe.weight_decay,
            nesterov=recipe.nesterov,
            foreach=False,
        )
    amsgrad = recipe.optimizer == "amsgrad"
    return torch.optim.Adam(
        [flat], recipe.learning_rate, weight_decay=recipe.weight_decay, amsgrad=amsgrad, foreach=False
    )


class _Shuffled:
    """The examples of all replicas, in a new order every epoch; replicas with the same tensors share them."""

    def __init__(self, data: Data, recipe: Recipe) -> None:
        self.count = len(data[0][1])
        self.size = recipe.batch_size
        self.seen = self.count - self.count % self.size if recipe.drop_last else self.count  # in an epoch
        if not self.seen:
            raise ValueError(
                f"Recipe: drop_last=True leaves no batch of {self.size} among {self.count} examples; lower batch_size"
            )
        unique: dict[tuple[int, int], int] = {}
        places = [unique.setdefault((id(x), id(y)), len(unique)) for x, y in data]
        firsts = [places.index(place) for place in range(len(unique))]
        self.x = torch.cat([data[first][0] for first in firsts])
        self.y = torch.cat([data[first][1] for first in firsts])
        self.starts = torch.tensor(places)[:, None] * self.count

    def batches(self, generators: Sequence[torch.Generator]) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.stack([torch.randperm(self.count, generator=generator) for generator in generators])
        order += self.starts
        for rows in order[:, : self.seen].split(self.size, dim=1):
            chosen = rows.reshape(-1)
            yield tuple(part.index_select(0, chosen).unflatten(0, rows.shape) for part in (self.x, self.y))


def _flattened(parameters: list[State]) -> tuple[Tensor, State]:
    """All parameters in one array [replicas, parameters], and its parts under their names and shapes."""
    flat = torch.stack([torch.cat([p.flatten() for p in each.values()]) for each in parameters])
    parts = flat.split([p.numel() for p in parameters[0].values()], dim=1)
    shapes = {name: p.shape for name, p in parameters[0].items()}
    return flat, {name: part.view(len(flat), *shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}


def tensors_of(objective: Objective) -> State:
    """Parameters and buffers, each under its first name."""
    return {**dict(objective.named_parameters()), **dict(objective.named_buffers())}


def saved_tensors(objective: Objective) -> State:
    """Parameters and buffers that are part of a module's state."""
    modules = objective.named_modules()
    passing = {f"{path}.{name}".lstrip(".") for path, module in modules for name in module._non_persistent_buffers_set}
    return {name: tensor for name, tensor in tensors_of(objective).items() if name not in passing}


def _names(objective: Objective) -> dict[str, str]:
    """Maps every place where a module holds a parameter or buffer to the first name of that tensor.

    A module that occurs twice appears once: ``functional_call`` would not restore it.
    """
    first: dict[int, str] = {}
    return {
        place: first.setdefault(id(tensor), place)
        for path, module in objective.named_modules()
        for own in (module.named_parameters, module.named_buffers)
        for place, tensor in own(path, recurse=False, remove_duplicate=False)
    }
