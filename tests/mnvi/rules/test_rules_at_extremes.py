"""Rules over many entries, at |μ|/σ up to 50 and variances from 1e-12 to 1e6: float32 against float64, gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rule_checks import assert_float32_keeps_the_digits_of_float64, assert_gradients_are_finite, extremes
from torch import Tensor

import mnvi

SHAPE = (3, 4, 6, 6)
ERROR = 1e-5  # float32 has 6e-8; a mean of fifty standard deviations leaves 3e-6 of one of them


def vector(length: int, like: mnvi.Gaussian) -> Tensor:
    return torch.arange(1, length + 1, dtype=like.dtype) / 4


def by_clark(function: Callable[[mnvi.Gaussian], mnvi.Gaussian]) -> Callable[[mnvi.Gaussian], mnvi.Gaussian]:
    def pool(x: mnvi.Gaussian) -> mnvi.Gaussian:
        with mnvi.options(max_pool="clark"):
            return function(x)

    return pool


def gated(x: mnvi.Gaussian) -> Tensor:
    """The variance that the value and the gate of ``glu`` would give if the sigmoid were as steep as possible."""
    value, gate = x.chunk(2, -1)
    steepest = (gate.var / 16).clamp(max=0.25)
    return (value.mean.square() + value.var) * steepest + value.var * torch.sigmoid(gate).mean.square()


# Tensors that belong to a rule are exact in float32, so that both precisions are given the same numbers.
CASES: dict[str, Callable[[mnvi.Gaussian], mnvi.Gaussian]] = {
    "batch norm in training": lambda x: F.batch_norm(x, None, None, vector(4, x), training=True),
    "batch norm in evaluation": lambda x: F.batch_norm(x, vector(4, x), vector(4, x), vector(4, x)),
    "layer norm": lambda x: F.layer_norm(x, (6, 6)),
    "group norm": lambda x: F.group_norm(x, 2, vector(4, x), vector(4, x)),
    "instance norm": F.instance_norm,
    "rms norm": lambda x: F.rms_norm(x, (6,), eps=1e-6),
    "normalize": lambda x: F.normalize(x, dim=1),
    "product": lambda x: x[0] * x[1],
    "matmul": lambda x: x[0] @ x[1],
    "mean": lambda x: torch.mean(x, (2, 3)),
    "average pooling": lambda x: F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False),
    "adaptive average pooling": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "arg-max pooling": lambda x: F.max_pool2d(x, 3, 2, padding=1),
    "adaptive arg-max pooling": lambda x: F.adaptive_max_pool2d(x, (4, 5)),
    "bilinear interpolation": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic interpolation": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "softmax": lambda x: F.softmax(x, -1),
    "log softmax": lambda x: F.log_softmax(x, -1),
    "log softmax over two": lambda x: F.log_softmax(x[..., :2], -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "logsumexp over two dimensions": lambda x: torch.logsumexp(x, (2, 3)),
    "attention": lambda x: F.scaled_dot_product_attention(x[0], x[1], x[2]),
    "attention with normalised queries and keys": lambda x: F.scaled_dot_product_attention(
        F.normalize(x[0], dim=-1), F.normalize(x[1], dim=-1), x[2], scale=1.0
    ),
    "maximum": lambda x: torch.maximum(x[0], x[1]),
    "minimum": lambda x: torch.minimum(x[0], x[1]),
    "Clark's pooling": by_clark(lambda x: F.max_pool2d(x, 3, 2, padding=1)),
    "Clark's adaptive pooling": by_clark(lambda x: F.adaptive_max_pool2d(x, (4, 5))),
    "Clark's largest entry": by_clark(lambda x: torch.amax(x, -1)),
    "glu": F.glu,
}
# The larger of two may vary far less than either of them, a closed gate than what it holds back.
SCALES: dict[str, Callable[[mnvi.Gaussian], Tensor]] = {
    "maximum": lambda x: x.var[0] + x.var[1],
    "minimum": lambda x: x.var[0] + x.var[1],
    "Clark's pooling": lambda x: F.max_pool2d(x.var, 3, 2, padding=1),
    "Clark's adaptive pooling": lambda x: F.adaptive_max_pool2d(x.var, (4, 5)),
    "Clark's largest entry": lambda x: x.var.amax(-1),
    "glu": gated,
}
# The argument of an exponential has its own size: a logit 80 below the largest keeps 5e-6, which the variance doubles;
# scores of 10⁵ keep 0.01, in torch's own attention too.
ERRORS = {"softmax": 3e-5, "attention": 1e-2, "glu": 2e-4}  # a sigmoid is read from a table in float32


@pytest.mark.parametrize("name", CASES)
def test_float32_keeps_the_digits_of_float64_over_extreme_inputs(name):
    for x in extremes(*SHAPE):
        assert_float32_keeps_the_digits_of_float64(CASES[name], x, ERRORS.get(name, ERROR), SCALES.get(name))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_over_extreme_inputs(name):
    for x in extremes(*SHAPE):
        assert_gradients_are_finite(CASES[name], x)
