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
        return dict(zip(own, values, strict=True))  # in the order of the layers, under other names
    if Path(weights).suffix in (".pt", ".pth"):
        found = files.read_tensors(weights, "you")
        state: dict[str, Tensor] = found.get("state_dict", found) if isinstance(found, dict) else found.state_dict()
        return state
    from mnvi._torchvision import torchvision

    name = network.rpartition(":")[2]
    try:
        entry: Any = torchvision.models.get_model_weights(name)[weights]
        released: dict[str, Tensor] = entry.get_state_dict(progress=False, check_hash=True)
    except KeyError as error:
        known = ", ".join(torchvision.models.get_model_weights(name).__members__)
        raise StudyError(f"weights: {weights} is none of {name}'s in torchvision ({known})") from error
    except OSError as error:
        raise StudyError(f"weights: {weights} of {name} cannot be downloaded ({error})") from error
    return released


def _last(net: nn.Module) -> str:
    """Name of the last linear or convolution layer, whose shape depends on the number of classes."""
    kinds = (nn.Linear, nn.Conv2d)
    return [name for name, layer in net.named_modules() if isinstance(layer, kinds)][-1]


def _misfit(own: dict[str, Tensor], state: dict[str, Tensor], last: str) -> str | None:
    if missing := [name for name in own if name not in state]:
        return f"has no {missing[0]}"
    if surplus := [name for name in state if name not in own]:
        return f"has {surplus[0]}, which the network has not"
    wrong = [name for name in own if own[name].shape != state[name].shape and name.rpartition(".")[0] != last]
    return f"{wrong[0]} has the shape {list(state[wrong[0]].shape)}, not {list(own[wrong[0]].shape)}" if wrong else None
