"""The questions about how torch runs operations: each answer where it can be yes, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from mnvi.moments._torch import (
    differentiation_levels,
    in_dynamo,
    is_compiling,
    is_fused,
    is_traced,
    taking_forward_derivatives,
    values_can_be_read,
)
from mnvi.moments.differentiation import differentiated_again
from mnvi.moments.tracing import for_compiler

WHILE_COMPILING = (in_dynamo, is_compiling, is_fused, is_traced)  # the others have no meaning inside Dynamo
NAMES = ("in_dynamo", "is_compiling", "is_fused", "is_traced", "taking_forward_derivatives")
QUESTIONS = dict(zip(NAMES, (*WHILE_COMPILING, taking_forward_derivatives), strict=True))


def answers() -> set[str]:
    return {name for name, ask in QUESTIONS.items() if ask()}


def compiled(seen: list[set[str]]) -> None:
    def function(x: Tensor) -> Tensor:
        for power, ask in enumerate(WHILE_COMPILING):
            if ask():
                x = x + 2.0**power
        return x

    found = int(torch.compile(function, backend="eager", fullgraph=True)(torch.zeros(1)).item())
    seen.append({name for i, name in enumerate(QUESTIONS) if found >> i & 1})


def torch_takes_compiling_for_exporting() -> bool:
    """Whether torch is one of the versions, 2.11 among them, whose `is_exporting` answers yes in all compiled code."""
    ask = torch.compile(lambda x: x + 1 if torch.compiler.is_exporting() else x, backend="eager", fullgraph=True)
    return bool(ask(torch.zeros(1)) == 1)


def exported(seen: list[set[str]]) -> None:
    class Asks(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(answers())
            return x + 1

    torch.export.export(Asks(), (torch.zeros(1),), strict=False)


def mapped(seen: list[set[str]]) -> None:
    torch.func.vmap(lambda x: (seen.append(answers()), x)[1])(torch.zeros(2))


def forward_mode(seen: list[set[str]]) -> None:
    with forward_ad.dual_level():
        seen.append(answers())


def recorded_for_the_compiler(seen: list[set[str]]) -> None:
    with for_compiler():
        seen.append(answers())


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        (lambda seen: seen.append(answers()), set()),
        (compiled, {"in_dynamo", "is_compiling", "is_fused", "is_traced"}),
        (exported, {"is_compiling", "is_traced"}),
        (mapped, {"is_traced"}),
        (forward_mode, {"taking_forward_derivatives"}),
        (recorded_for_the_compiler, {"is_fused"}),
    ],
    ids=["eager", "compiled", "exported", "torch.func", "forward mode", "recorded"],
)
def test_every_question_has_its_own_meaning(way: Callable[[list[set[str]]], None], expected: set[str]) -> None:
    seen: list[set[str]] = []
    way(seen)
    if way is compiled and torch_takes_compiling_for_exporting():
        expected = expected - {"is_fused"}
    assert seen and all(found == expected for found in seen)


def test_a_frame_that_dynamo_has_given_up_is_not_compiled() -> None:
    class Refusing:
        """Fails while it is traced, as a rule that has no compiled form does; Dynamo then runs it in eager mode."""

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> tuple[bool, bool]:
            if torch.compiler.is_compiling():
                raise RuntimeError("not while compiling")
            return is_compiling(), in_dynamo()

    answers: Any = torch.compile(lambda a, b: a @ b, backend="eager")(torch.zeros(2, 2), Refusing())
    assert answers == (False, False)


def test_values_can_be_read_of_plain_tensors_alone() -> None:
    assert values_can_be_read(torch.zeros(2))
    assert not values_can_be_read(torch.zeros(2, device="meta"))
    with FakeTensorMode():
        assert not values_can_be_read(torch.zeros(2))
    torch.func.vmap(lambda x: (_refuse(values_can_be_read(x)), x)[1])(torch.zeros(2))


def _refuse(answer: bool) -> None:
    assert not answer


def test_nested_gradients_differentiate_again() -> None:
    found: list[tuple[int, bool]] = []

    def function(x: Tensor) -> Tensor:
        found.append((len(differentiation_levels(x)), differentiated_again(x)))
        return x.square().sum()

    torch.func.grad(function)(torch.ones(2))
    torch.func.grad(lambda x: torch.func.grad(function)(x).sum())(torch.ones(2))
    assert found == [(1, False), (2, True)]
