"""Two classes and many labels: expectations without sampling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from likelihood_conformance import BATCH, LikelihoodConformance
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Distribution

import mnvi


class TestBernoulli(LikelihoodConformance):
    features = 3

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.BernoulliLikelihood()

    def targets(self) -> Tensor:
        return torch.tensor([[0.0, 1.0, 1.0]] * BATCH).double()

    def support(self, p: Distribution) -> tuple[Tensor, float]:
        zero = torch.zeros(p.batch_shape).double()
        return torch.stack([zero, zero + 1]), 1.0


@pytest.mark.parametrize("mean", [-6.0, -0.5, 3.0])
@pytest.mark.parametrize("std", [0.1, 0.9, 1.1, 6.0])
def test_expectations_are_the_integrals(mean: float, std: float) -> None:
    def over(function: object) -> float:
        points = [p for p in np.linspace(-40, 40, 9) if abs(p - mean) < 10 * std]
        edges = [mean - 10 * std, *points, mean + 10 * std]
        weighted = lambda z: function(z) * stats.norm.pdf(z, mean, std)  # noqa: E731
        return sum(integrate.quad(weighted, *pair)[0] for pair in itertools.pairwise(edges))

    out = mnvi.Gaussian(torch.tensor([mean]).double(), torch.tensor([std**2]).double())
    like = mnvi.BernoulliLikelihood()
    error = 1e-6 * max(1.0, std)
    yes = like.expected_log_prob(out, torch.ones(1).double())
    assert float(yes) == pytest.approx(over(lambda z: -np.logaddexp(0, -z)), abs=error)
    assert float(like.predictive(out).probs) == pytest.approx(over(lambda z: 1 / (1 + math.exp(-z))), abs=error)
    entropy = over(lambda z: np.logaddexp(0, -abs(z)) + abs(z) / (1 + math.exp(abs(z))))
    assert float(like.uncertainty(out).aleatoric) == pytest.approx(entropy, abs=error)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64])
def test_zeros_and_ones_of_any_dtype_are_targets(dtype: torch.dtype) -> None:
    out = mnvi.Gaussian(torch.randn(3), torch.rand(3))
    y = torch.tensor([0, 1, 1])
    like = mnvi.BernoulliLikelihood()
    torch.testing.assert_close(like.expected_log_prob(out, y.to(dtype)), like.expected_log_prob(out, y.float()))


def test_probabilities_are_targets_as_in_torchs_loss() -> None:
    logits, y = torch.randn(5), torch.tensor([0.0, 0.2, 0.5, 0.9, 1.0])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
    torch.testing.assert_close(mnvi.BernoulliLikelihood().expected_log_prob(logits, y), -loss)


def test_a_certain_prediction_keeps_its_digits() -> None:
    out = mnvi.Gaussian(torch.tensor([40.0]), torch.tensor([0.25]))
    exact = -math.exp(-40 + 0.125)
    value = mnvi.BernoulliLikelihood().expected_log_prob(out, torch.ones(1))
    assert float(value) == pytest.approx(exact, rel=1e-4)
    assert float(mnvi.BernoulliLikelihood().predictive(out).log_prob(torch.zeros(1))) == pytest.approx(
        -39.875, rel=1e-4
    )


def test_one_logit_agrees_with_two() -> None:
    """The difference of two logits is one logit with the sum of their variances."""
    two = mnvi.Gaussian(torch.tensor([[0.3, 1.1]]).double(), torch.tensor([[0.2, 0.4]]).double())
    one = mnvi.Gaussian(torch.tensor([0.8]).double(), torch.tensor([0.6]).double())
    like = mnvi.CategoricalLikelihood(num_samples=200_000)
    samples = torch.log_softmax(two.sample(200_000), -1)[:, 0, 1]
    error = 5 * float(samples.std()) / math.sqrt(200_000)
    sampled = like.expected_log_prob(two, torch.tensor([1]))
    exact = mnvi.BernoulliLikelihood().expected_log_prob(one, torch.ones(1))
    assert abs(float(sampled - exact)) <= error


@pytest.mark.parametrize(
    ("out", "y", "error", "message"),
    [
        (torch.zeros(3), torch.tensor([0, 1, 2]), ValueError, "run from 0 to 2; they must be 0 or 1.*Categorical"),
        (torch.zeros(3), torch.tensor([0.0, -1.0, 1.0]), ValueError, "run from -1 to 1"),
        (torch.zeros(3, 2), torch.zeros(3), ValueError, "two logits for one target are for CategoricalLikelihood"),
        (torch.zeros(3, 1), torch.zeros(3), ValueError, r"shape \(3,\), expected \(3, 1\).*out.squeeze\(-1\)"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.complex64), TypeError, "must be real numbers, got torch.complex64"),
        (torch.zeros(3), torch.zeros(3, device="meta"), ValueError, "targets are on meta, the output on cpu"),
    ],
)
def test_mistakes_say_what_to_write(out: Tensor, y: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"BernoulliLikelihood: .*{message}"):
        mnvi.BernoulliLikelihood().expected_log_prob(out, y)
