"""Weights that a network starts from: released ones, torchvision's, or those of a file. Training fine-tunes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipeline import files
from pipeline.data import released_weights
from pipeline.errors import StudyError
from pipeline.registry.pretrained import PRETRAINED


def load(net: nn.Module, weights: str, network: str) -> None:
    """Loads the weights that `weights` of an experiment names; a last layer for other classes stays random.

    Args:
        net: built for the experiment's classes.
        network: the experiment's, for torchvision's weights: `torchvision.models:resnet18`.
    """
    own = net.state_dict()
    state = _state(weights, network, own)
    if problem := _misfit(own, state, _last(net)):
        raise StudyError(f"weights: {weights}: {problem}; they are for another network than {network}")
    net.load_state_dict({name: value for name, value in state.items() if value.shape == own[name].shape}, strict=False)


def _state(weights: str, network: str, own: dict[str, Tensor]) -> dict[str, Tensor]:
    if weights in PRETRAINED:
        values = files.read_tensors(released_weights.find(weights), "python -m pipeline.train").values()
        if len(values) != len(own):
            raise StudyError(
                f"weights: {weights} has {len(values)} tensors, but {network} has {len(own)}; they are for "
                f"{PRETRAINED[weights].network}"
            )
        return dict(zip(own, values, strict=True))  # in the order of the layers, under other names
    if Path(weights).suffix in (".pt", ".pth"):
        found = files.read_tensors(weights, f"torch.save(net.state_dict(), {weights!r})")
        state = found.get("state_dict", found) if isinstance(found, dict) else None
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise StudyError(
                f"weights: {weights}: holds no state_dict; write one with torch.save(net.state_dict(), 'weights.pt')"
            )
        return state
    from mnvi._torchvision import torchvision

    name = network.rpartition(":")[2]
    try:
        offered: Any = torchvision.models.get_model_weights(name)
    except ValueError as error:
        raise StudyError(f"network: torchvision has no network {name}, and so no weights {weights} for it") from error
    try:
        released: dict[str, Tensor] = offered[weights].get_state_dict(progress=False, check_hash=True)
    except KeyError as error:
        known = ", ".join(offered.__members__)
        raise StudyError(f"weights: {weights} is none of {name}'s in torchvision ({known})") from error
    except OSError as error:
        raise StudyError(f"weights: {weights} of {name} cannot be downloaded ({error})") from error
    return released


def _last(net: nn.Module) -> str:
    """Name of the last linear or convolution layer, whose shape depends on the number of classes; "" without one."""
    kinds = (nn.Linear, nn.Conv2d)
    return next((name for name, layer in reversed([*net.named_modules()]) if isinstance(layer, kinds)), "")


def _misfit(own: dict[str, Tensor], state: dict[str, Tensor], last: str) -> str | None:
    if missing := [name for name in own if name not in state]:
        return f"has no {missing[0]}"
    if surplus := [name for name in state if name not in own]:
        return f"has {surplus[0]}, which the network has not"
    wrong = [name for name in own if own[name].shape != state[name].shape and name.rpartition(".")[0] != last]
    return f"{wrong[0]} has the shape {list(state[wrong[0]].shape)}, not {list(own[wrong[0]].shape)}" if wrong else None
