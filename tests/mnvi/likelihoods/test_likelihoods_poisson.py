"""Counts: exact expectations, and the distribution of a count whose rate is uncertain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from likelihood_conformance import BATCH, LikelihoodConformance
from scipy import special, stats
from torch import Tensor
from torch.distributions import Distribution

import mnvi
from mnvi.likelihoods import PoissonLogNormal


class TestPoisson(LikelihoodConformance):
    features = 2

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.PoissonLikelihood()

    def targets(self) -> Tensor:
        return torch.arange(2.0 * BATCH).double().view(BATCH, 2)

    def support(self, p: Distribution) -> tuple[Tensor, float]:
        return torch.arange(400.0).double().view(-1, 1, 1).expand(-1, *p.batch_shape), 1.0


def log_prob(y: float, mean: float, std: float) -> float:
    """By a dense trapezoidal rule around the peak of the integrand."""
    u = np.linspace(-60, 60, 600_001)
    exponent = -0.5 * u * u + y * (mean + std * u) - np.exp(np.minimum(mean + std * u, 700))
    top = exponent.max()
    area = np.trapezoid(np.exp(exponent - top), u) / math.sqrt(2 * math.pi)
    return float(top + math.log(area) - special.gammaln(y + 1))


ERRORS = [(1e-3, 1e-6), (0.5, 1e-6), (1.0, 1e-6), (2.0, 1e-4), (4.0, 3e-3)]  # as the docstring states


@pytest.mark.parametrize(("std", "error"), ERRORS)
def test_log_probabilities_are_the_integral(std: float, error: float) -> None:
    for mean in (-3.0, 0.0, 4.0):
        y = torch.tensor([0.0, 1.0, 7.0, 300.0]).double()
        p = PoissonLogNormal(torch.tensor(mean).double(), torch.tensor(std).double())
        exact = [log_prob(count, mean, std) for count in y.tolist()]
        assert p.log_prob(y).tolist() == pytest.approx(exact, abs=error, rel=1e-9)


def test_a_narrow_peak_far_from_the_mean_is_found() -> None:
    """A count of a million has a peak of relative width 1/1000 in the rate."""
    p = PoissonLogNormal(torch.tensor(12.0).double(), torch.tensor(1.0).double())
    assert float(p.log_prob(torch.tensor(1e6).double())) == pytest.approx(log_prob(1e6, 12.0, 1.0), abs=1e-6)


@pytest.mark.parametrize("mean", [-4.0, 0.0, 3.0])
@pytest.mark.parametrize("std", [0.0, 0.3, 1.0])
def test_entropies_are_the_sums_over_counts(mean: float, std: float) -> None:
    out = mnvi.Gaussian(torch.tensor([mean]).double(), torch.tensor([std**2]).double())
    p = mnvi.PoissonLikelihood().predictive(out)
    logs = p.log_prob(torch.arange(6000.0).double().view(-1, 1))
    parts = mnvi.PoissonLikelihood().uncertainty(out)
    assert float(parts.total) == pytest.approx(float(-(logs.exp() * logs).sum()), abs=1e-6)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    logs = torch.from_numpy(stats.poisson.logpmf(np.arange(6000), np.exp(mean + std * nodes[:, None])))
    each = -(logs.exp() * logs.clamp(min=-1e300)).sum(1)
    expected = float((torch.from_numpy(weights) * each).sum() / weights.sum())
    assert float(parts.aleatoric) == pytest.approx(expected, abs=1e-5)


def test_drawn_counts_have_the_mean_and_the_variance() -> None:
    p = PoissonLogNormal(torch.tensor([0.5, 2.0]), torch.tensor([0.3, 0.6]))
    y = p.sample((100_000,)).double()
    assert ((y.mean(0) - p.mean).abs() < 5 * y.std(0) / math.sqrt(len(y))).all()
    squares = (y - p.mean).square()
    assert ((squares.mean(0) - p.variance).abs() < 5 * squares.std(0) / math.sqrt(len(y))).all()


def test_distributions_expand_and_check_their_arguments() -> None:
    p = PoissonLogNormal(torch.tensor(0.0), torch.tensor(1.0), validate_args=True).expand((3, 2))
    assert p.batch_shape == (3, 2) and p.sample((4,)).shape == (4, 3, 2)
    with pytest.raises(ValueError, match="scale"):
        PoissonLogNormal(torch.tensor(0.0), torch.tensor(-1.0), validate_args=True)
    with pytest.raises(ValueError, match="support"):
        p.log_prob(torch.tensor(0.5))


def test_the_moment_matched_gaussian_has_its_mean_and_variance() -> None:
    p = mnvi.PoissonLikelihood().predictive(mnvi.Gaussian(torch.ones(3), torch.full((3,), 0.2)))
    normal = mnvi.moment_matched(p)
    torch.testing.assert_close(normal.mean, p.mean)
    torch.testing.assert_close(normal.variance, p.variance)


def test_whole_numbers_of_integer_dtype_are_targets() -> None:
    out = mnvi.Gaussian(torch.zeros(2), torch.ones(2))
    like = mnvi.PoissonLikelihood()
    assert torch.equal(
        like.expected_log_prob(out, torch.tensor([3, 0])), like.expected_log_prob(out, torch.tensor([3.0, 0]))
    )


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        (torch.tensor([1.0, 0.5]), ValueError, r"targets contain 0\.5; they must be counts.*StudentTLikelihood"),
        (torch.tensor([-1, 3]), ValueError, "targets contain -1"),
        (torch.tensor([True, False]), TypeError, "must be real numbers, got torch.bool"),
        (torch.zeros(2, 1), ValueError, r"shape \(2, 1\), expected \(2,\)"),
        (torch.zeros(2, device="meta"), ValueError, "targets are on meta, the output on cpu"),
    ],
)
def test_mistakes_say_what_to_write(y: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"PoissonLikelihood: .*{message}"):
        mnvi.PoissonLikelihood().expected_log_prob(torch.zeros(2), y)
