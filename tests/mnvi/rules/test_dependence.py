"""One value used several times: its moments are those of samples, or a warning names the line."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi
from mnvi import Gaussian

SAMPLES = 100_000
ERRORS = 5  # standard errors that a sampled moment may be off

KNOWN: dict[str, tuple[Callable, Callable]] = {
    "SiLU": (lambda x: x * torch.sigmoid(x), F.silu),
    "SiLU, method": (lambda x: x.sigmoid().mul(x), F.silu),
    "SiLU, in place": (lambda x: x.clone().mul_(x.sigmoid()), F.silu),
    "SiLU, quotient": (lambda x: x / (1 + torch.exp(-x)), F.silu),
    "GELU, BERT": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), F.gelu),
    "GELU, cdf": (lambda x: x * torch.special.ndtr(x), F.gelu),
    "GELU, GPT-2": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "GELU, fast": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "QuickGELU": (lambda x: x * torch.sigmoid(1.702 * x), lambda x: F.silu(1.702 * x) / 1.702),
    "Mish": (lambda x: x * torch.tanh(F.softplus(x)), F.mish),
    "hard swish": (lambda x: x * F.relu6(x + 3) / 6, F.hardswish),
    "leaky ReLU": (lambda x: torch.maximum(x, 0.1 * x), lambda x: F.leaky_relu(x, 0.1)),
    "square": (lambda x: x * x.view(x.shape), torch.square),
    "of a view": (lambda x: x.T * torch.sigmoid(x.T), lambda x: F.silu(x.T)),
}

SEVERAL: dict[str, Callable[[Any], Any]] = {
    "sum of a list": lambda x: sum([x, x]),
    "sum of three": lambda x: sum([x, x + 1, 2 * x]),
    "difference": lambda x: (3 * x + 1) - x,
    "add a view": lambda x: x + x.view(2, 8).view(4, 4),
    "add the transpose": lambda x: x + x.T,
    "times the transpose": lambda x: x * torch.sigmoid(x.T),
    "rolled": lambda x: x - x.roll(1, 0),
    "neighbours": lambda x: x[:, 1:] - x[:, :-1],
    "same neighbours": lambda x: x[:, 1:] * torch.sigmoid(x[:, 1:]),
    "halves": lambda x: x.chunk(2)[0] * x.chunk(2)[1].sigmoid(),
    "scaled by tensors": lambda x: (x * torch.arange(4.0)) * torch.sigmoid(x + torch.arange(4.0)[:, None]),
    "spread by a tensor": lambda x: (x[:, None] * torch.ones(2, 1)) * torch.sigmoid(x[:, None]),
    "function of a product with itself": lambda x: torch.sigmoid(x) * (x * x),
    "two functions": lambda x: torch.sigmoid(x) * torch.tanh(x),
    "entropy-like": lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x)),
    "addcmul": lambda x: torch.addcmul(x, 2 * x, torch.sigmoid(x)),
    "lerp": lambda x: torch.lerp(x, 3 * x, 0.25),
    "minimum": lambda x: torch.minimum(x, 3 * x),
    "Gram matrix": lambda x: x.T @ x,
    "Gram matrix of a function": lambda x: torch.matmul(x, torch.relu(x).mT),
    "batched Gram matrix": lambda x: torch.bmm(x.view(2, 2, 4), x.view(2, 2, 4).transpose(1, 2)),
    "source gone": lambda x: both(x.clone() + 0),
}


def both(x: Any) -> Any:
    gate, line = torch.sigmoid(x), 2 * x + 1
    del x
    return gate * line


def gaussian(*shape: int, dtype: torch.dtype = torch.float64) -> Gaussian:
    return Gaussian(torch.randn(shape, dtype=dtype), torch.rand(shape, dtype=dtype) + 0.1)


@pytest.mark.parametrize("name", KNOWN)
def test_an_activation_written_by_hand_has_the_moments_of_torch_s_own(name: str) -> None:
    by_hand, own = KNOWN[name]
    x = gaussian(4, 4)
    found, expected = by_hand(x), own(x)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.var, expected.var, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_value_used_several_times_has_the_moments_of_samples(name: str) -> None:
    function = SEVERAL[name]
    x = gaussian(4, 4)
    found, samples = function(x), torch.vmap(function)(x.sample(SAMPLES))
    squares = (samples - samples.mean(0)).square()
    for moment, values in ((found.mean, samples), (found.var, squares)):
        error = values.std(0) / SAMPLES**0.5
        assert ((moment - values.mean(0)).abs() <= ERRORS * error + 1e-9).all()


@pytest.mark.parametrize("name", KNOWN)
def test_gradients_are_those_of_torch_s_own(name: str) -> None:
    by_hand, own = KNOWN[name]
    mean, var = torch.randn(4, 4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64) + 0.1
    gradients = []
    for function in (by_hand, own):
        leaves = mean.clone().requires_grad_(), var.clone().requires_grad_()
        out = function(Gaussian(*leaves))
        gradients.append(torch.autograd.grad((out.mean.sin() + out.var).sum(), leaves))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["add the transpose", "two functions", "scaled by tensors", "Gram matrix"])
def test_gradients_of_dependent_operands(name: str) -> None:
    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        out = SEVERAL[name](Gaussian(mean, var))
        return out.mean, out.var

    x = gaussian(4, 4)
    assert torch.autograd.gradcheck(moments, (x.mean.requires_grad_(), x.var.requires_grad_()))


COMPILED = ["SiLU", "SiLU, quotient", "GELU, BERT", "GELU, GPT-2", "QuickGELU", "hard swish", "of a view"]


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_activation_written_by_hand_is_recognised(name: str) -> None:
    by_hand, own = KNOWN[name]
    x = gaussian(4, 4)
    found, expected = torch.compile(by_hand, fullgraph=True, backend="eager")(x), own(x)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.var, expected.var, rtol=1e-6, atol=1e-8)


ALIKE = [
    "sum of a list",
    "two functions",
    "halves",
    "same neighbours",
    "scaled by tensors",
    "rolled",
    "add the transpose",
]


@pytest.mark.parametrize("name", ALIKE)
def test_compiled_functions_of_one_value_are_those_of_eager_mode(name: str) -> None:
    x = gaussian(4, 4)
    found, expected = torch.compile(SEVERAL[name], fullgraph=True, backend="eager")(x), SEVERAL[name](x)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.var, expected.var)


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x * torch.sigmoid(x) + x)


def test_export_recognises_too() -> None:
    net, x = mnvi.convert(ByHand(), mnvi.MultiplicativeNoise(1.0)), torch.randn(4, 3)
    expected = net(x)
    found = torch.export.export(net, (x,)).module()(x)
    torch.testing.assert_close(found.var, expected.var)


def test_torch_func_recognises_too() -> None:
    x = gaussian(5, 4)
    found = torch.vmap(KNOWN["SiLU"][0])(x)
    torch.testing.assert_close(found.var, F.silu(x).var)
    first = torch.func.grad(lambda g: KNOWN["GELU, BERT"][0](g).var.sum())(x)
    torch.testing.assert_close(first.var, torch.func.grad(lambda g: F.gelu(g).var.sum())(x).var)


def test_what_no_rule_covers_warns_once_and_names_the_line() -> None:
    x = gaussian(3, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            torch.matmul(x, torch.relu(x))
    (only,) = caught
    assert only.category is mnvi.DependenceWarning and only.filename == __file__
    assert "matmul: its operands are functions of the same random value" in str(only.message)
    assert "test_dependence.py, line" in str(only.message)


def test_a_source_that_is_gone_warns() -> None:
    x = Gaussian(torch.zeros(2), torch.ones(2))
    a, b = torch.sigmoid(x), torch.tanh(x)
    del x  # here, since a caller may keep its arguments alive
    with pytest.warns(mnvi.DependenceWarning, match="mul: its operands"):
        a * b


def silent(x: Any) -> list[Any]:
    q, k, v = x.view(1, 4, 12).split(4, -1)
    attention = F.scaled_dot_product_attention(q, k, v)
    scores = torch.matmul(q, k.mT)
    even, odd = x[:, ::2], x[:, 1::2]
    rotated = torch.cat([-odd, even], -1) + x
    return [attention, scores, rotated, torch.where(x.mean > 0, x, 0.1 * x), x.view_as(x + 1), x[0] * x[1]]


def test_independent_entries_of_one_value_stay_silent() -> None:
    assert len(silent(gaussian(4, 12))) == 6  # warnings are errors


def test_layers_with_a_posterior_make_new_values() -> None:
    layer = mnvi.convert(nn.Linear(3, 3), mnvi.MultiplicativeNoise(1.0))
    x = gaussian(4, 3, dtype=torch.float32)
    out = layer(x)
    torch.testing.assert_close((x + out).var, x.var + out.var)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_a_wide_variance(dtype: torch.dtype) -> None:
    x = Gaussian(torch.randn(3).to(dtype), torch.rand(3))
    for out in (x * torch.sigmoid(x), x + x.view(3), torch.sigmoid(x) * torch.tanh(x)):
        assert out.mean.dtype == dtype and out.var.dtype == torch.float32


def test_the_first_order_rule_stays_first_order() -> None:
    x = gaussian(3)
    with mnvi.options(activation="taylor"):
        torch.testing.assert_close((x * torch.sigmoid(x)).var, F.silu(x).var)
        torch.testing.assert_close((torch.sigmoid(x) * torch.tanh(x)).mean, x.mean.sigmoid() * x.mean.tanh())


@pytest.mark.parametrize("name", ["SiLU", "GELU, GPT-2", "hard swish"])
def test_covariances_between_positions_are_those_of_torch_s_own(name: str) -> None:
    by_hand, own = KNOWN[name]
    layer, image = mnvi.convert(nn.Conv2d(2, 3, 3), mnvi.MultiplicativeNoise(1.0)), torch.randn(2, 2, 6, 6)
    with mnvi.options(spatial="shared_weights"):
        x = layer(image)
        found, expected = by_hand(x), own(x)
        compiled = torch.compile(lambda x: by_hand(layer(x)), fullgraph=True, backend="eager")(image)
    torch.testing.assert_close(found.shared, expected.shared, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(compiled.shared, expected.shared, rtol=1e-3, atol=1e-5)


def test_the_covariance_between_positions_of_a_sum_with_itself_is_fourfold() -> None:
    layer = mnvi.convert(nn.Conv2d(2, 3, 3), mnvi.MultiplicativeNoise(1.0))
    with mnvi.options(spatial="shared_weights"):
        x = layer(torch.randn(2, 2, 6, 6))
        torch.testing.assert_close((x + x.clone()).shared, 4 * x.shared)
