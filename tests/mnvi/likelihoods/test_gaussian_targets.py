"""Regression with Gaussian noise: closed forms, several outputs, and outputs far outside any sensible range."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from likelihood_conformance import BATCH, LikelihoodConformance, assert_mean_of_samples
from scipy import stats
from torch import Tensor, nn
from torch.distributions import Distribution, MixtureSameFamily, Normal

import mnvi

SAMPLES = 100_000


class TestGaussian(LikelihoodConformance):
    features = 2
    matches_moments = True

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.GaussianLikelihood()

    def targets(self) -> Tensor:
        return torch.linspace(-2, 2, BATCH).double()

    def support(self, p: Distribution) -> tuple[Tensor, float]:
        return torch.linspace(-40, 40, 4001).double().view(-1, *[1] * len(p.batch_shape)), 0.02

    # The entropy is a Gaussian's: its parts are not those of the mixture over sampled log-variances.
    def test_aleatoric_entropy_is_the_mean_over_sampled_outputs(self) -> None:
        out = self.output()
        parts, known = self.likelihood().uncertainty(out), self.likelihood().uncertainty(out.mean)
        torch.testing.assert_close(parts.aleatoric, known.aleatoric)


class TestSeveralOutputs(TestGaussian):
    features = 6

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.GaussianLikelihood(outputs=3)

    def targets(self) -> Tensor:
        return torch.linspace(-2, 2, 3 * BATCH).double().view(BATCH, 3)


class TestHomoscedastic(TestGaussian):
    features = 3

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.GaussianLikelihood(homoscedastic=True, init_log_noise=-1.0).double()

    def targets(self) -> Tensor:
        return torch.linspace(-2, 2, 3 * BATCH).double().view(BATCH, 3)


class TestHomoscedasticForEachOutput(TestHomoscedastic):
    def likelihood(self) -> mnvi.Likelihood:
        like = mnvi.GaussianLikelihood(homoscedastic=True, init_log_noise=-1.0, outputs=3).double()
        with torch.no_grad():
            like.log_noise += torch.arange(3)
        return like


def heads(*shape: int) -> mnvi.Gaussian:
    return mnvi.Gaussian(torch.randn(*shape, 2).double(), torch.rand(*shape, 2).double() * 0.8)


def test_expectation_is_the_double_integral() -> None:
    mean, mean_var, log_noise, log_noise_var, y = 0.7, 0.3, -0.4, 0.6, 1.5
    double = torch.float64
    out = mnvi.Gaussian(
        torch.tensor([mean, log_noise], dtype=double), torch.tensor([mean_var, log_noise_var], dtype=double)
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    m = mean + math.sqrt(mean_var) * nodes[:, None]
    c = log_noise + math.sqrt(log_noise_var) * nodes[None, :]
    exact = (weights[:, None] * weights[None, :] * stats.norm.logpdf(y, m, np.exp(c / 2))).sum()
    value = mnvi.GaussianLikelihood().expected_log_prob(out, torch.tensor(y, dtype=double))
    assert float(value) == pytest.approx(exact, rel=1e-10)


def test_predictive_has_mean_and_variance_of_sampled_targets() -> None:
    out = heads(6)
    mean, log_var = out.sample(SAMPLES).unbind(-1)
    y = Normal(mean, (0.5 * log_var).exp()).sample()
    p = mnvi.GaussianLikelihood().predictive(out)
    assert isinstance(p, Normal)
    assert_mean_of_samples(p.mean, y)
    assert_mean_of_samples(p.variance, (y - p.mean).square())


def test_samples_predict_a_mixture() -> None:
    p = mnvi.GaussianLikelihood().predictive(mnvi.Samples(torch.randn(8, 5, 2)))
    assert isinstance(p, MixtureSameFamily) and p.batch_shape == (5,)


def test_homoscedastic_noise_is_one_learnt_number() -> None:
    like = mnvi.GaussianLikelihood(homoscedastic=True, init_log_noise=-1.0).double()
    out = mnvi.Gaussian(torch.randn(4, 3).double(), torch.rand(4, 3).double())
    assert [(name, p.shape) for name, p in like.named_parameters()] == [("log_noise", ())]
    torch.testing.assert_close(like.predictive(out).variance, out.var + math.exp(-1.0))


def test_heteroscedastic_likelihood_has_no_parameters() -> None:
    assert not list(mnvi.GaussianLikelihood().parameters())


def test_entropy_of_a_gaussian_is_that_of_its_prediction() -> None:
    like, out = mnvi.GaussianLikelihood(), heads(5)
    for given in (out, out.mean):
        torch.testing.assert_close(like.uncertainty(given).total, like.predictive(given).entropy())


def test_moment_matched_mixture_has_its_mean_and_variance() -> None:
    values = torch.randn(8, 5, 2).double()
    p = mnvi.GaussianLikelihood().predictive(mnvi.Samples(values))
    q = mnvi.moment_matched(p)
    torch.testing.assert_close(q.mean, values[..., 0].mean(0))
    expected = values[..., 1].exp().mean(0) + values[..., 0].var(0, correction=0)
    torch.testing.assert_close(q.variance, expected)


def test_outputs_are_read_as_unflatten_would() -> None:
    out, y = mnvi.Gaussian(torch.randn(4, 6), torch.rand(4, 6)), torch.randn(4, 3)
    pairs = mnvi.GaussianLikelihood().expected_log_prob(out.unflatten(-1, (3, 2)), y)
    assert torch.equal(mnvi.GaussianLikelihood(outputs=3).expected_log_prob(out, y), pairs)


def test_standard_deviations_of_several_outputs_belong_to_their_outputs() -> None:
    mean = torch.tensor([[0.0, math.log(4.0), 0.0, math.log(9.0)]])
    out = mnvi.Gaussian(mean, torch.tensor([[1.0, 0.0, 16.0, 0.0]]))
    for like, given in (
        (mnvi.GaussianLikelihood(outputs=2), out),
        (mnvi.GaussianLikelihood(), out.unflatten(-1, (2, 2))),
        (mnvi.GaussianLikelihood(outputs=2), mnvi.JointGaussian.trusted(out.mean, torch.diag_embed(out.var))),
    ):
        parts = like.standard_deviations(given)
        torch.testing.assert_close(parts.aleatoric, torch.tensor([[2.0, 3.0]]))
        torch.testing.assert_close(parts.epistemic, torch.tensor([[1.0, 4.0]]))
        torch.testing.assert_close(parts.total, torch.tensor([[math.sqrt(5), 5.0]]))


def plain_formula(mean: Tensor, var: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Expected log-likelihood and predictive standard deviation without bounds."""
    (mu, c), (v_mu, v_c) = mean.unbind(-1), var.unbind(-1)
    value = -0.5 * (math.log(2 * math.pi) + c + torch.exp(0.5 * v_c - c) * (v_mu + (mu - 0.0 - y).square()))
    return value, (v_mu + torch.exp(c + 0.5 * v_c)).sqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_changes_no_bit_of_ordinary_values_and_gradients(dtype: torch.dtype) -> None:
    mean = torch.empty(2000, 2, dtype=dtype).uniform_(-15, 15).requires_grad_()
    var = torch.empty(2000, 2, dtype=dtype).uniform_(0, 12).requires_grad_()
    y = torch.randn(2000, dtype=dtype)
    out = mnvi.Gaussian.trusted(mean, var)
    like = mnvi.GaussianLikelihood()
    given = like.expected_log_prob(out, y), like.predictive(out).stddev
    for value, expected in zip(given, plain_formula(mean, var, y), strict=True):
        assert torch.equal(value, expected)
        ours = torch.autograd.grad(value.sum(), (mean, var), retain_graph=True)
        theirs = torch.autograd.grad(expected.sum(), (mean, var), retain_graph=True)
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("posterior", [None, mnvi.MultiplicativeNoise(10.0), mnvi.MeanField(10.0)], ids=str)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_on_inputs_400_times_too_large_stays_finite_and_comes_back(
    posterior: mnvi.Posterior | None, optimizer: str
) -> None:
    x = 400 * torch.randn(100, 8)
    y = torch.sin(x[:, 0] / 400)
    net: nn.Module = mnvi.models.mlp(8)
    if posterior is not None:
        net = mnvi.convert(net, posterior)
    objective = mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=100, kappa=0.01))
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    steps, losses = kind(net.parameters(), lr=0.03), []
    for _ in range(60):
        steps.zero_grad()
        loss = objective(x, y).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        assert loss.isfinite() and norm.isfinite()
        steps.step()
        losses.append(loss.item())
    assert losses[0] > 1e12 and losses[-1] < 0.01 * losses[0]
    assert all(parameter.isfinite().all() for parameter in net.parameters())


@pytest.mark.parametrize("method", ["noise", "dvi", "ensemble"])
def test_predictions_far_from_the_data_are_finite(method: str) -> None:
    field = mnvi.convert(mnvi.models.mlp(8), mnvi.MeanField(1.0))
    net = {
        "noise": mnvi.convert(mnvi.models.mlp(8), mnvi.MultiplicativeNoise(1.0)),
        "dvi": mnvi.DVI(field),
        "ensemble": mnvi.Ensemble([mnvi.models.mlp(8) for _ in range(3)]),
    }[method]
    out, like = net(1e6 * torch.randn(20, 8)), mnvi.GaussianLikelihood()
    p = like.predictive(out)
    assert p.mean.isfinite().all() and p.stddev.isfinite().all() and p.log_prob(torch.zeros(20)).isfinite().all()
    assert all(part.isfinite().all() for part in (*like.uncertainty(out), *like.standard_deviations(out)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mnvi.GaussianLikelihood(outputs=2.5), "outputs=2.5 must be a whole number >= 1"),
        (
            lambda: mnvi.GaussianLikelihood().predictive(torch.zeros(3, 4)),
            r"got shape \(3, 4\)\. For a network that returns only the mean use homoscedastic=True\. For 2 targets, "
            "each with both heads, use outputs=2",
        ),
        (
            lambda: mnvi.GaussianLikelihood(outputs=2).predictive(torch.zeros(3, 2)),
            r"last dimension must be 2·outputs = 4, mean and log-variance of each; got shape \(3, 2\)",
        ),
        (
            lambda: mnvi.GaussianLikelihood(homoscedastic=True, outputs=2).predictive(torch.zeros(3)),
            r"last dimension must be outputs = 2, the means; got shape \(3,\)",
        ),
    ],
)
def test_mistakes_say_what_to_write(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"GaussianLikelihood: .*{message}"):
        make()  # type: ignore[operator]
