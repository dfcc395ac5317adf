import copy
import functools
import inspect
import pickle
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import mnvi
from mnvi.conversion.mean_calls import call_method, with_mean_calls


class Averaging(nn.Module):
    """Averages with the tensor's method, as many published networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(self.conv(x), keepdim=False) * torch.ones(1).mean()

    def pooled(self, x: Tensor, keepdim: bool = True) -> Tensor:
        return x.mean((2, 3), keepdim=keepdim)


class Inheriting(Averaging):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.zeros(3).mean()


class Spreading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).var(1)


@pytest.mark.parametrize("kind", [Averaging, Inheriting])
def test_a_model_that_averages_with_the_method_gives_mean_and_variance(kind: type[nn.Module]) -> None:
    net, x = kind(), torch.randn(2, 3, 8, 8)
    out = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))(x)
    conv = mnvi.convert(net.conv, mnvi.MultiplicativeNoise(prior_variance=1.0))(x)
    torch.testing.assert_close(out.mean, net(x))
    torch.testing.assert_close(out.var, conv.var.mean((2, 3)) / 36)


def test_the_models_own_class_is_left_as_it_was() -> None:
    forward = Averaging.forward
    converted = mnvi.convert(Averaging(), mnvi.MultiplicativeNoise(prior_variance=1.0))
    assert Averaging.forward is forward
    assert isinstance(converted, Averaging)
    assert type(converted).__name__ == "Averaging"


def test_a_class_without_such_calls_stays_itself() -> None:
    assert with_mean_calls(nn.Sequential) is nn.Sequential


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_and_pickles_give_the_same_output(copied) -> None:
    net, x = mnvi.convert(Inheriting(), mnvi.MultiplicativeNoise(prior_variance=1.0)), torch.randn(2, 3, 8, 8)
    out, again = net(x), copied(net)(x)
    assert torch.equal(out.mean, again.mean) and torch.equal(out.var, again.var)


def test_a_call_of_var_gives_the_variance_of_the_entries() -> None:
    net, x = mnvi.convert(Spreading(), mnvi.MultiplicativeNoise(prior_variance=1.0)), torch.ones(2, 3)
    assert torch.equal(net(x).mean, torch.var(net.layer(x), 1).mean)


def test_code_whose_source_cannot_be_read_is_refused() -> None:
    namespace: dict = {"nn": nn}
    exec("class Hidden(nn.Sequential):\n    def forward(self, x):\n        return self[0](x).mean(1)", namespace)
    with pytest.raises(ValueError, match=r"Hidden\.forward calls \.mean"):
        mnvi.convert(namespace["Hidden"](nn.Linear(2, 2)), mnvi.MultiplicativeNoise(prior_variance=1.0))


def doubled(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return 2 * function(*args, **kwargs)

    return wrapper


def averaged(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs).mean(1)

    return wrapper


def through_a_list(function: Callable) -> Callable:
    functions = [function]

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return functions[0](*args, **kwargs)

    return wrapper


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)


class InLambda(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return (lambda y: y.mean(1))(self.layer(x))


class InComprehension(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return next(iter([y.mean(1) for y in (self.layer(x),)]))


class InNestedFunction(Layered):
    def forward(self, x: Tensor) -> Tensor:
        def average(y: Tensor) -> Tensor:
            return y.mean(1)

        return average(self.layer(x))


class InStaticMethod(Layered):
    @staticmethod
    def average(y: Tensor) -> Tensor:
        return y.mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.average(self.layer(x))


class InClassMethod(Layered):
    dim = 1

    @classmethod
    def average(cls, y: Tensor) -> Tensor:
        return y.mean(cls.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.average(self.layer(x))


class InProperty(Layered):
    @property
    def average(self) -> Tensor:
        return self.last.mean(1)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.average


class InLambdaAttribute(Layered):
    average = lambda self, y: y.mean(1)  # noqa: E731

    def forward(self, x: Tensor) -> Tensor:
        return self.average(self.layer(x))


class WithPrivateNames(Layered):
    def __dim(self) -> int:
        return 1

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(self.__dim())


class InWrapper(Layered):
    @averaged
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Halving(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1) * 0.5


class InDecorated(Layered):
    @doubled
    @torch.no_grad()
    def forward(self, x: Tensor, half: float = 0.5) -> Tensor:
        """Twice the half."""
        return self.layer(x).mean(1) * half


class Overriding(Halving):
    def forward(self, x: Tensor) -> Tensor:
        return torch.mean(self.layer(x), 1)


KINDS = [
    InLambda,
    InComprehension,
    InNestedFunction,
    InStaticMethod,
    InClassMethod,
    InProperty,
    InLambdaAttribute,
    WithPrivateNames,
    InWrapper,
    InDecorated,
    Overriding,
]


def converted(net: nn.Module) -> nn.Module:
    return mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_calls_are_found_wherever_the_class_makes_them(kind: type[Layered]) -> None:
    net, x = kind(), torch.randn(2, 3)
    out, layer = converted(net)(x), converted(net.layer)(x)
    torch.testing.assert_close(out.mean, net.layer(x).mean(1))
    torch.testing.assert_close(out.var, layer.var.mean(1) / 4)


def test_a_rewritten_function_keeps_its_decorators_and_descriptions() -> None:
    forward = type(converted(InDecorated())).forward
    assert forward is not InDecorated.forward
    assert forward.__doc__ == "Twice the half." and forward.__qualname__ == "InDecorated.forward"
    assert inspect.signature(forward) == inspect.signature(InDecorated.forward)
    assert not converted(InDecorated())(torch.ones(1, 3)).mean.requires_grad


def test_a_decorator_that_cannot_be_rebuilt_is_left_alone() -> None:
    class Decorated(Layered):
        @through_a_list
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean(1)

    assert with_mean_calls(Decorated) is Decorated


def test_lambdas_that_share_a_line_are_left_alone() -> None:
    class Two(Layered):
        first, second = lambda self, y: y.mean(1), lambda self, y: y.mean(0)

    assert with_mean_calls(Two) is Two


SCALE = 1.0


class Scaled(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(1) * SCALE


def test_a_global_changed_after_conversion_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = converted(Scaled()), torch.ones(1, 3)
    before = net(x).mean
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    torch.testing.assert_close(net(x).mean, 3 * before)
    assert "_mnvi_call_method" not in globals()


def test_a_free_variable_assigned_after_conversion_is_seen() -> None:
    class Late(Layered):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean(1) * scale

    net, x = converted(Late()), torch.ones(1, 3)
    with pytest.raises(NameError, match="scale"):
        net(x)
    scale = 0.0
    assert torch.equal(net(x).mean, torch.zeros(1))


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ("return x.mean(1)", True),
        ("return x.mean(dim=1)", True),
        ("return x.mean(*self.dims)", True),
        ("return x.mean(*self.dims, **self.options)", True),
        ("return (lambda y: y.std(1))(x)", True),
        ("return x - self.mean", False),
        ("return self.add(x, self.mean)", False),
        ("return self.add(self.mean, *self.dims)", False),
        ("self.mean = x; return x", False),
        ("return torch.mean(x, 1)", False),
    ],
)
def test_unreadable_code_is_refused_only_where_it_calls_the_method(body: str, refused: bool) -> None:
    namespace: dict = {"nn": nn, "torch": torch}
    exec(f"class Hidden(nn.Sequential):\n    def forward(self, x):\n        {body}", namespace)
    if refused:
        with pytest.raises(ValueError, match=r"Hidden\.forward calls .* use torch\.mean\(x, dim\)"):
            with_mean_calls(namespace["Hidden"])
    else:
        assert with_mean_calls(namespace["Hidden"]) is namespace["Hidden"]


def test_a_joint_gaussian_answers_by_its_own_rules() -> None:
    value = mnvi.JointGaussian(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3) + 1)
    with pytest.raises(mnvi.NoRuleError, match="JointGaussian"):
        call_method(value, "var", 0)
    assert torch.equal(call_method(torch.ones(2, 3), "mean", 1), torch.ones(2))


def gap(x: Tensor) -> Tensor:
    return x.mean(1)


class Lambda(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("function", [lambda x: x.mean(1), gap])
def test_a_function_that_a_module_holds_is_adapted_in_the_copy_alone(function) -> None:
    written = nn.Sequential(nn.Linear(3, 4), Lambda(function))
    net = converted(written)
    assert torch.equal(net(torch.ones(1, 3)).var, net[0](torch.ones(1, 3)).var.mean(1) / 4)
    assert written[1].function is function


def twice(x: Tensor) -> Tensor:
    return 2 * gap(x)


def around(x: Tensor, depth: int) -> Tensor:
    return gap(x) if depth == 0 else around(x, depth - 1)


class CallsByName(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return gap(self.layer(x))


class CallsFurtherAway(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return twice(self.layer(x)) / 2


class CallsAround(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return around(self.layer(x), 0)


@pytest.mark.parametrize("kind", [CallsByName, CallsFurtherAway, CallsAround])
def test_functions_that_a_method_calls_by_name_are_rewritten_for_it_alone(kind: type[Layered]) -> None:
    codes = [function.__code__ for function in (gap, twice, around)]
    net, x = converted(kind()), torch.ones(1, 3)
    torch.testing.assert_close(net(x).var, net.layer(x).var.mean(1) / 4)
    assert [function.__code__ for function in (gap, twice, around)] == codes
    assert torch.equal(copy.deepcopy(net)(x).var, net(x).var)


def test_a_function_that_is_replaced_after_conversion_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = converted(CallsByName()), torch.ones(1, 3)
    monkeypatch.setitem(globals(), "gap", lambda x: x[:, 0])
    assert torch.equal(net(x).mean, net.layer(x).mean[:, 0])


def test_a_function_called_as_an_attribute_is_not_rewritten() -> None:
    class Calling(Layered):
        def forward(self, x: Tensor) -> Tensor:
            return functions.gap(self.layer(x))

    functions = SimpleNamespace(gap=gap)
    net = converted(Calling())
    line = gap.__code__.co_firstlineno + 1
    with pytest.raises(TypeError, match=rf"write torch.mean\(x, ...\) \(.*test_mean_calls.py, line {line}, in gap\)"):
        net(torch.ones(1, 3))


def test_a_local_name_hides_a_global_function() -> None:
    class Hiding(Layered):
        def forward(self, x: Tensor) -> Tensor:
            gap = torch.sin
            return gap(self.layer(x))

    net, x = converted(Hiding()), torch.ones(1, 3)
    assert torch.equal(net(x).mean, torch.sin(net.layer(x)).mean)
