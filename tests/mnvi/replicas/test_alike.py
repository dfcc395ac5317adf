"""Modules count as different exactly if their recorded steps would differ."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import mnvi
from mnvi.replicas.alike import described

LOCK = threading.Lock()


@dataclass(frozen=True)
class Setting:
    value: float


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def with_attribute(value):
    module = nn.Linear(3, 2)
    module.extra = value
    return module


def with_hook(factor):
    module = nn.Linear(3, 2)
    module.register_forward_hook(lambda module, inputs, output: output * factor)
    return module


def of_a_class_made_here(factor):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x) * factor

    return Net()


def unregistered(value):
    return with_attribute([nn.utils.skip_init(nn.Linear, 2, 2).requires_grad_(False).apply(filled(value))])


def filled(value):
    def fill(module):
        for parameter in module.parameters():
            nn.init.constant_(parameter, value)

    return fill


def perhaps_tied(tied):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if tied:
        module[1].weight = module[0].weight
    return module


def cycle(value):
    module = with_attribute({"value": value})
    module.extra["owner"] = [module]
    return module


CASES = {
    "a number": (lambda p: nn.Dropout(p), 0.1, 0.2),
    "a whole number and a fraction": (with_attribute, 1, 1.0),
    "not a number": (with_attribute, float("nan"), 0.0),
    "a string": (lambda how: nn.GELU(how), "none", "tanh"),
    "a shape": (lambda width: nn.Linear(3, width), 2, 4),
    "a dtype": (lambda dtype: nn.Linear(3, 2, dtype=dtype), torch.float32, torch.float64),
    "what is trained": (lambda trained: nn.Linear(3, 2).requires_grad_(trained), True, False),
    "training": (lambda mode: nn.Dropout(0.1).train(mode), True, False),
    "a posterior": (lambda prior: mnvi.convert(nn.Linear(3, 2), mnvi.MeanField(prior)), 1.0, 2.0),
    "an object": (lambda value: with_attribute(Setting(value)), 1.0, 2.0),
    "slots": (lambda value: with_attribute(Slotted(value)), 1.0, 2.0),
    "a list": (lambda value: with_attribute([1, (2, {3: value})]), 4, 5),
    "a set": (lambda value: with_attribute({1, value}), 2, 3),
    "a tensor that is no buffer": (lambda value: with_attribute(torch.tensor([0.0, value])), 1.0, 2.0),
    "an array": (lambda value: with_attribute(np.array([0.0, value])), 1.0, 2.0),
    "a module that is not registered": (unregistered, 1.0, 2.0),
    "what a function encloses": (lambda value: with_attribute(lambda x: x * value), 1.0, 2.0),
    "a partial function": (lambda value: with_attribute(functools.partial(torch.add, other=value)), 1.0, 2.0),
    "a function": (with_attribute, torch.relu, torch.tanh),
    "a method": (lambda value: with_attribute(Setting(value).__eq__), 1.0, 2.0),
    "a hook": (with_hook, 1.0, 2.0),
    "a class made anew": (of_a_class_made_here, 1.0, 2.0),
    "a parametrisation": (lambda dim: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2), dim=dim), 0, 1),
    "tied weights": (perhaps_tied, True, False),
    "a cycle": (cycle, 1, 2),
    "recurrence": (lambda both: nn.LSTM(3, 4, bidirectional=both), True, False),
}


@pytest.mark.parametrize(("build", "one", "other"), CASES.values(), ids=CASES)
def test_modules_built_twice_are_alike_and_with_another_setting_are_not(build, one, other):
    assert described(build(one)) == described(build(one))
    assert hash(described(build(one))) == hash(described(build(one)))
    assert described(build(one)) != described(build(other))


def test_values_of_parameters_and_buffers_do_not_count():
    norm = nn.BatchNorm1d(2)
    changed = nn.BatchNorm1d(2).apply(filled(3.0))
    changed.running_mean += 1
    assert described(norm) == described(changed)


def test_the_state_of_a_generator_does_not_count():
    one, other = torch.Generator(), torch.Generator().manual_seed(1)
    assert described(with_attribute(one)) == described(with_attribute(other))


def test_what_cannot_be_looked_into_equals_itself_alone():
    assert described(with_attribute(LOCK)) == described(with_attribute(LOCK))
    assert described(with_attribute(threading.Lock())) != described(with_attribute(threading.Lock()))
