"""The last layer of a trained network: its name, and the features that it gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mnvi.layers.registry import BAYESIAN

Batches = Iterable[tuple[Tensor, Tensor]]


class Features(NamedTuple):
    """Inputs of the last layer for all data, and their targets.

    Attributes:
        name: name of the layer in the network.
        layer: the layer.
        inputs: [examples, features].
        targets: as given.
    """

    name: str
    layer: nn.Linear
    inputs: Tensor
    targets: Tensor


def as_batches(caller: str, data: Any) -> list[tuple[Tensor, Tensor]]:
    """A pair of inputs and targets, or batches of such pairs, as a list of batches; a pair may hold numpy's arrays."""
    expected = "expected a pair (inputs, targets), or batches of such pairs as a DataLoader gives them"
    if isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
        data = [tuple(_as_tensor(part) for part in data)]
    if hasattr(data, "shape") or not isinstance(data, Iterable):
        raise TypeError(f"{caller}: data is a {type(data).__name__}; {expected}")
    batches = list(data)
    if not batches:
        raise ValueError(f"{caller}: data are empty; give inputs and targets")
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
            found = f"{len(batch)} parts" if isinstance(batch, tuple | list) else f"a {type(batch).__name__}"
            raise TypeError(f"{caller}: a batch of data has {found}; {expected}")
    return batches


def device_of(net: nn.Module) -> torch.device:
    """The device of a network's parameters, where its inputs must be."""
    found = next(net.parameters(), None)
    return torch.device("cpu") if found is None else found.device


def targets_of(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """All targets, on the device of the network."""
    return torch.cat([targets for _, targets in batches]).to(device_of(net))


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    found = torch.as_tensor(values)
    return found.to(torch.get_default_dtype()) if found.is_floating_point() else found


@torch.no_grad()
def name_of_last_layer(caller: str, net: nn.Module, example: Tensor) -> str:
    """The name of the linear or convolution layer that a forward pass calls last."""
    called: list[str] = []
    kinds = tuple(BAYESIAN)
    hooks = [
        module.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, module in net.named_modules()
        if isinstance(module, kinds)
    ]
    training = net.training
    try:
        net.eval()(example.to(device_of(net)))
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    if not called:
        raise ValueError(f"{caller}: the network calls no linear or convolution layer, so it has no last one")
    return called[-1]


@torch.no_grad()
def features_of(caller: str, net: nn.Module, data: Any) -> Features:
    """Run the network once over all data and keep what its last layer gets.

    The last layer must be linear, and its output the network's.
    """
    batches = as_batches(caller, data)
    name = name_of_last_layer(caller, net, batches[0][0])
    layer = net.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise TypeError(
            f"{caller}: the last layer, {name!r}, is a {type(layer).__name__}; expected a torch.nn.Linear, whose "
            "posterior is computed from its inputs"
        )
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    training = net.training
    try:
        net.eval()
        out = None
        for x, _ in batches:
            out = net(x.to(device_of(net)))
    finally:
        net.train(training)
        hook.remove()
    if not isinstance(out, Tensor) or not torch.equal(out, layer(seen[-1])):
        raise ValueError(
            f"{caller}: the network's output is not that of its last layer, {name!r}; what follows it, such as a "
            "softmax, belongs in the likelihood"
        )
    return Features(name, layer, torch.cat(seen), targets_of(net, batches))


def with_layer(net: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The network with one layer replaced; the replacement itself if that layer is the whole network."""
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(net.get_submodule(parent), last, layer)
    return net
