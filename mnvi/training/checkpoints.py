"""The state of a training in one file, from which the same call resumes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]


def save(path: Path, state: State) -> None:
    """Write the state so that a stop at any moment leaves the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        torch.save(state, new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def load(path: Path, settings: State) -> State | None:
    """The state in a file, or None if there is no file.

    Args:
        path: the file.
        settings: those of this call, which must be those of the call that wrote the file; only ``epochs`` may grow.
    """
    if not path.exists():
        return None
    try:
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        written: State = state["settings"]
    except Exception as error:  # torch's reader raises many kinds
        raise ValueError(
            f"fit: checkpoint={str(path)!r} is not a checkpoint of mnvi.fit; delete it, or name another file"
        ) from error
    for name, value in settings.items():
        old = written.get(name)
        if old != value and not (name == "epochs" and old is not None and old < value):
            raise ValueError(
                f"fit: checkpoint={str(path)!r} is of a training with {name}={old!r}, this call has {value!r}; delete "
                f"the file, name another one, or call with {name}={old!r}"
            )
    return state


def generator_states(generators: dict[str, torch.Generator], device: torch.device) -> dict[str, Tensor]:
    """The states of torch's global generators and of those given."""
    states = {name: generator.get_state() for name, generator in generators.items()}
    states["cpu"] = torch.get_rng_state()
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state(device)
    return states


def restore_generators(states: dict[str, Tensor], generators: dict[str, torch.Generator], device: torch.device) -> None:
    """Set all generators as they were when :func:`generator_states` was called."""
    for name, generator in generators.items():
        if name in states:
            generator.set_state(states[name])
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)
