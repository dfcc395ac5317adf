"""The table of rules: adding, finding, naming, and honouring in-place calls."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mnvi
from mnvi.rules import table
from mnvi.rules.table import RULES, RuleTable, every


class Value:
    """A value with its own table, so that the Gaussian's stays unchanged."""

    table = RuleTable("Value", "value_rule")

    def __init__(self, content: object) -> None:
        self.content = content

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return cls.table.answer(func, args, kwargs or {})

    def become(self, other: Value) -> Value:
        self.content = other.content
        return self


@pytest.fixture(autouse=True)
def empty_table() -> None:
    Value.table = RuleTable("Value", "value_rule")


def test_function_without_a_rule_is_refused_by_name() -> None:
    with pytest.raises(
        mnvi.NoRuleError, match=r"no rule for torch\.erf on a Value; give it one with @value_rule\(torch\.erf\)"
    ):
        torch.erf(Value(1))


def test_missing_rule_is_a_type_error_that_offers_ways_out() -> None:
    x = mnvi.Gaussian(torch.zeros(2, 2), torch.ones(2, 2))
    with pytest.raises(TypeError) as caught:
        torch.linalg.det(x)
    assert all(part in str(caught.value) for part in ("torch.linalg.det", "@mnvi.rule", "x.mean"))


def test_rule_gets_the_arguments_of_the_call() -> None:
    @Value.table.rule(torch.softmax, F.softmax)
    def softmax(x: Value, *args: object, **kwargs: object) -> tuple:
        return x, args, kwargs

    x = Value(1)
    assert torch.softmax(x, 2) == (x, (2,), {})
    assert F.softmax(x, dim=3)[0] is x


def test_input_by_its_name_goes_to_the_first_place_unless_the_rule_has_that_name() -> None:
    Value.table.rule(torch.softmax)(lambda x, dim: (x, dim))
    Value.table.rule(torch.where)(lambda condition, input, other: (condition, input, other))
    x = Value(1)
    assert torch.softmax(dim=2, input=x) == (x, 2)
    mask = torch.ones(1)
    assert torch.where(condition=mask, input=x, other=mask)[1] is x
    Value.table.rule(*every("erf"))(lambda x: Value("new"))
    assert torch.erf_(input=x) is x and x.content == "new"


def test_rule_for_a_function_that_dispatches_by_itself() -> None:
    @torch.overrides.wrap_torch_function(lambda x: (x,))
    def own(x: object) -> object:
        return x

    Value.table.rule(own)(lambda x: "answered")
    assert own(Value(1)) == "answered"


def test_decorated_function_stays_what_it_was() -> None:
    def handler(x: Value) -> Value:
        return x

    assert Value.table.rule(torch.erf)(handler) is handler


def test_last_rule_counts() -> None:
    Value.table.rule(torch.erf)(lambda x: "first")
    Value.table.rule(torch.erf)(lambda x: "second")
    assert torch.erf(Value(1)) == "second"


def test_only_the_named_functions_have_the_rule() -> None:
    Value.table.rule(torch.erf)(lambda x: x)
    assert torch.erf in Value.table and torch.erfc not in Value.table
    with pytest.raises(mnvi.NoRuleError):
        torch.erfc(Value(1))


def test_rule_for_something_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected torch functions, e\.g\. @value_rule\(torch\.erf\), got 'erf'"):
        Value.table.rule("erf")


def test_every_finds_all_spellings_and_the_in_place_ones() -> None:
    found = every("relu")
    assert {torch.relu, torch.relu_, F.relu, Tensor.relu, Tensor.relu_} <= set(found)
    with pytest.raises(AttributeError, match="no operation named no_such_thing"):
        every("no_such_thing")


def test_in_place_spelling_changes_the_value_itself() -> None:
    Value.table.rule(*every("erf"))(lambda x: Value("new"))
    x = Value("old")
    assert torch.erf(x).content == "new" and x.content == "old"
    assert torch.erf_(x) is x and x.content == "new"


def test_in_place_argument_changes_the_value_itself() -> None:
    Value.table.rule(F.elu)(lambda x, alpha=1.0, inplace=False: Value("new"))
    x = Value("old")
    assert F.elu(x, inplace=True) is x and x.content == "new"


def test_out_argument_is_refused() -> None:
    Value.table.rule(torch.erf)(lambda x, out=None: x)
    with pytest.raises(TypeError, match=r"torch\.erf: out= cannot hold a Value"):
        torch.erf(Value(1), out=torch.zeros(1))


def test_users_rule_and_has_rule() -> None:
    assert not mnvi.rules.has_rule(torch.linalg.matrix_exp)

    @mnvi.rule(torch.linalg.matrix_exp)
    def matrix_exp(x: mnvi.Gaussian) -> mnvi.Gaussian:
        return mnvi.Gaussian(torch.linalg.matrix_exp(x.mean), torch.zeros_like(x.var))

    try:
        assert mnvi.rules.has_rule(torch.linalg.matrix_exp)
        out = torch.linalg.matrix_exp(mnvi.Gaussian(torch.zeros(2, 2), torch.ones(2, 2)))
        assert torch.equal(out.mean, torch.eye(2))
    finally:
        RULES._rules.pop(torch.linalg.matrix_exp)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda x: x.item(), "plain numbers"),
        (lambda x: x.backward(), "gradients start from a loss"),
        (lambda x: torch.equal(x, x), r"compare x\.mean"),
        (lambda x: x.max(), r"leave the covariances out with mnvi\.Gaussian\(x\.mean, x\.var\)"),
        (lambda x: torch.gt(x, 0), "leave the covariances out"),
    ],
)
def test_a_hint_says_what_to_use_where_no_rule_makes_sense(call, hint) -> None:
    with pytest.raises(mnvi.NoRuleError, match=hint):
        call(mnvi.JointGaussian(torch.zeros(2), torch.eye(2)))


def test_hints_about_functions_that_a_gaussian_answers_are_for_other_values() -> None:
    for name in table._OF_GAUSSIANS.split():
        assert mnvi.rules.has_rule(getattr(torch.Tensor, name))
