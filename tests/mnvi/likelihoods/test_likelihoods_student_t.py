"""Regression with outliers: expectations by quadrature, and the prediction as a mixture of Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from likelihood_conformance import BATCH, LikelihoodConformance
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution, StudentT

import mnvi


def real_line(p: Distribution) -> tuple[Tensor, Tensor]:
    """Points and weights of the trapezoidal rule, dense around zero, that reach far into the tails."""
    t = torch.linspace(-12, 12, 2401).double().view(-1, *[1] * len(p.batch_shape))
    return torch.sinh(t).expand(-1, *p.batch_shape), torch.cosh(t) * 0.01


class TestStudentT(LikelihoodConformance):
    features = 2
    prediction_error = 1e-4

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.StudentTLikelihood(df=5.0).double()

    def targets(self) -> Tensor:
        return torch.linspace(-4, 4, BATCH).double()

    def support(self, p: Distribution) -> tuple[Tensor, Tensor]:
        return real_line(p)


class TestLearntDegreesOfFreedom(TestStudentT):
    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.StudentTLikelihood(df=5.0, learn_df=True).double()


class TestSeveralOutputs(TestStudentT):
    features = 6

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.StudentTLikelihood(df=5.0, outputs=3).double()

    def targets(self) -> Tensor:
        return torch.linspace(-4, 4, 3 * BATCH).double().view(BATCH, 3)


def expected_log_prob(y: float, mean: float, mean_var: float, log_scale_var: float, df: float) -> float:
    """By dense Gauss–Hermite quadrature for the log-scale, around 0, and a fine grid for the location."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = np.linspace(-13, 13, 200_001)
    mass = stats.norm.pdf(z) * (z[1] - z[0])
    square = np.square(y - mean - math.sqrt(mean_var) * z)
    total = 0.0
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        if weight > 1e-14:
            total += weight * (mass * np.log1p(square * math.exp(-2 * math.sqrt(log_scale_var) * node) / df)).sum()
    return float(stats.t.logpdf(0, df) - 0.5 * (df + 1) * total)


ERRORS = [(0.0, 1e-5), (0.25, 1e-5), (1.0, 2e-3)]  # by the variance of the log-scale, as the docstring states


@pytest.mark.parametrize(("log_scale_var", "error"), ERRORS)
@pytest.mark.parametrize("mean_var", [0.1, 1.0, 100.0])
def test_expectations_are_the_double_integral(mean_var: float, log_scale_var: float, error: float) -> None:
    for y in (0.0, 2.0, 30.0):
        out = mnvi.Gaussian(torch.tensor([0.5, 0.0]).double(), torch.tensor([mean_var, log_scale_var]).double())
        value = mnvi.StudentTLikelihood(df=4.0).expected_log_prob(out, torch.tensor(y).double())
        assert float(value) == pytest.approx(expected_log_prob(y, 0.5, mean_var, log_scale_var, 4.0), abs=error)


@pytest.mark.parametrize(("df", "reach"), [(1.0, 4), (3.0, 4), (4.0, 4), (8.0, 2), (30.0, 1), (1000.0, 1)])
def test_the_mixture_has_students_tails(df: float, reach: int) -> None:
    known = mnvi.Gaussian(torch.zeros(1, 2).double(), torch.zeros(1, 2).double())
    y = torch.logspace(-1, reach, 60).double().unsqueeze(-1)
    p = mnvi.StudentTLikelihood(df=df).predictive(known)
    torch.testing.assert_close(p.log_prob(y), StudentT(df).log_prob(y), rtol=0, atol=1e-4)


def test_the_mixture_has_a_cumulative_distribution() -> None:
    out = mnvi.Gaussian(torch.zeros(1, 2).double(), torch.zeros(1, 2).double())
    p = mnvi.StudentTLikelihood(df=4.0).predictive(out)
    assert float(p.cdf(torch.tensor([1.5]).double())) == pytest.approx(stats.t.cdf(1.5, 4.0), abs=1e-5)
    assert mnvi.metrics.interval_coverage(p, torch.tensor([2.0]).double(), 0.9) == 1


def test_many_degrees_of_freedom_are_a_gaussian() -> None:
    out, y = mnvi.Gaussian(torch.randn(5, 2).double(), torch.rand(5, 2).double() * 0.2), torch.randn(5).double()
    halved = mnvi.Gaussian(out.mean * torch.tensor([1.0, 2.0]), out.var * torch.tensor([1.0, 4.0]))  # log-variance
    student, gaussian = mnvi.StudentTLikelihood(df=1e5), mnvi.GaussianLikelihood()
    torch.testing.assert_close(
        student.expected_log_prob(out, y), gaussian.expected_log_prob(halved, y), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("kind", ["gaussian", "samples"])
def test_the_entropy_is_the_integral(kind: str) -> None:
    out = mnvi.Gaussian(torch.tensor([[0.3, -0.5]]).double(), torch.tensor([[0.8, 0.1]]).double())
    given = out if kind == "gaussian" else mnvi.Samples(out.sample(5))
    like = mnvi.StudentTLikelihood(df=4.0)
    p = like.predictive(given)
    y, weight = real_line(p)
    logs = p.log_prob(y)
    torch.testing.assert_close(like.uncertainty(given).total, -(weight * logs.exp() * logs).sum(0), rtol=0, atol=1e-4)


def test_learnt_degrees_of_freedom_find_those_of_the_data() -> None:
    like = mnvi.StudentTLikelihood(df=20.0, learn_df=True).double()
    y = StudentT(torch.tensor(4.0).double()).sample((20_000,))
    out = torch.zeros(20_000, 2).double()
    optimizer = torch.optim.Adam(like.parameters(), 0.5)
    for _ in range(100):
        optimizer.zero_grad()
        mnvi.ELBO(like, num_data=len(y))(out, y, kl=0).loss.backward()
        optimizer.step()
    assert float(like.df.detach()) == pytest.approx(4.0, rel=0.1)
    assert not list(mnvi.StudentTLikelihood(df=4.0).parameters())


def test_an_outlier_costs_its_logarithm_and_pulls_less_than_its_distance() -> None:
    out = mnvi.Gaussian(torch.zeros(2, 2).requires_grad_(), torch.full((2, 2), 0.1))
    value = mnvi.StudentTLikelihood(df=4.0).expected_log_prob(out, torch.tensor([10.0, 1000.0]))
    (pull,) = torch.autograd.grad(value.sum(), out.mean)
    assert float((value[0] - value[1]).detach()) == pytest.approx(5 * math.log(100), rel=0.05)
    assert pull[0, 0] > 50 * pull[1, 0] > 0


def test_below_two_degrees_of_freedom_there_is_no_variance() -> None:
    parts = mnvi.StudentTLikelihood(df=1.5).standard_deviations(mnvi.Gaussian(torch.zeros(1, 2), torch.ones(1, 2)))
    assert parts.aleatoric.isinf() and parts.total.isinf() and parts.epistemic == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mnvi.StudentTLikelihood(df=0.0), "df=0.0 must be a finite number > 0"),
        (lambda: mnvi.StudentTLikelihood(df=2.0, learn_df=True), "df=2.0 must be a finite number > 2"),
        (lambda: mnvi.StudentTLikelihood(outputs=0), "outputs=0 must be a whole number >= 1"),
        (
            lambda: mnvi.StudentTLikelihood().predictive(torch.zeros(3, 1)),
            r"last dimension must be 2, mean and log-scale; got shape \(3, 1\)\. If these are the targets",
        ),
        (
            lambda: mnvi.StudentTLikelihood().predictive(torch.zeros(3, 6)),
            r"got shape \(3, 6\)\. For 3 targets, each with both heads, use outputs=3",
        ),
        (
            lambda: mnvi.StudentTLikelihood(outputs=2).predictive(torch.zeros(3, 6)),
            r"last dimension must be 2·outputs = 4, mean and log-scale of each; got shape \(3, 6\)",
        ),
    ],
)
def test_mistakes_say_what_to_write(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"StudentTLikelihood: .*{message}"):
        make()  # type: ignore[operator]
