"""Expected log-likelihoods and predictive distributions against sampling and quadrature."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

import mnvi

SAMPLES = 100_000
STANDARD_ERRORS = 5.0


def heads(*shape: int) -> mnvi.Gaussian:
    return mnvi.Gaussian(torch.randn(*shape, 2).double(), torch.rand(*shape, 2).double() * 0.8)


def logits(*shape: int, spread: float = 1.0) -> mnvi.Gaussian:
    return mnvi.Gaussian(2 * torch.randn(shape).double(), spread * (0.5 + torch.rand(shape).double()))


def assert_mean_of_samples(value: Tensor, samples: Tensor) -> None:
    error = samples.std(0) / math.sqrt(len(samples))
    assert ((value - samples.mean(0)).abs() <= STANDARD_ERRORS * error).all()


def test_gaussian_expected_log_prob_is_the_mean_over_sampled_heads() -> None:
    out, y = heads(6), torch.randn(6).double()
    mean, log_var = out.sample(SAMPLES).unbind(-1)
    value = mnvi.GaussianLikelihood().expected_log_prob(out, y)
    assert_mean_of_samples(value, Normal(mean, (0.5 * log_var).exp()).log_prob(y))


def test_gaussian_expected_log_prob_is_the_double_integral() -> None:
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


def test_gaussian_predictive_has_mean_and_variance_of_sampled_targets() -> None:
    out = heads(6)
    mean, log_var = out.sample(SAMPLES).unbind(-1)
    y = Normal(mean, (0.5 * log_var).exp()).sample()
    p = mnvi.GaussianLikelihood().predictive(out)
    assert isinstance(p, Normal)
    assert_mean_of_samples(p.mean, y)
    assert_mean_of_samples(p.variance, (y - p.mean).square())


def test_known_output_is_the_limit_of_zero_variance() -> None:
    out, y = heads(6).mean, torch.randn(6).double()
    limit = mnvi.Gaussian(out, torch.zeros_like(out))
    like = mnvi.GaussianLikelihood()
    noise = Normal(out[:, 0], (0.5 * out[:, 1]).exp())
    torch.testing.assert_close(like.expected_log_prob(out, y), noise.log_prob(y))
    torch.testing.assert_close(like.expected_log_prob(limit, y), noise.log_prob(y))
    torch.testing.assert_close(like.predictive(out).log_prob(y), noise.log_prob(y))


def test_gaussian_samples_are_averaged_and_predict_a_mixture() -> None:
    values, y = torch.randn(8, 5, 2).double(), torch.randn(5).double()
    like, out = mnvi.GaussianLikelihood(), mnvi.Samples(values)
    each = Normal(values[..., 0], (0.5 * values[..., 1]).exp()).log_prob(y)
    torch.testing.assert_close(like.expected_log_prob(out, y), each.mean(0))
    p = like.predictive(out)
    assert isinstance(p, MixtureSameFamily)
    torch.testing.assert_close(p.log_prob(y), each.logsumexp(0) - math.log(8))


def test_homoscedastic_noise_is_one_learnt_number() -> None:
    like = mnvi.GaussianLikelihood(homoscedastic=True, init_log_noise=-1.0).double()
    out = mnvi.Gaussian(torch.randn(4, 3).double(), torch.rand(4, 3).double())
    y = torch.randn(4, 3).double()
    assert [name for name, _ in like.named_parameters()] == ["log_noise"]
    samples = Normal(out.sample(SAMPLES), math.exp(-0.5)).log_prob(y)
    assert_mean_of_samples(like.expected_log_prob(out, y).detach(), samples)
    torch.testing.assert_close(like.predictive(out).variance, out.var + math.exp(-1.0))
    assert like.predictive(out.mean).stddev.shape == (4, 3)
    sampled = like.predictive(mnvi.Samples(out.sample(7)))
    assert sampled.batch_shape == (4, 3)


def test_heteroscedastic_likelihood_has_no_parameters() -> None:
    assert not list(mnvi.GaussianLikelihood().parameters())


@pytest.mark.parametrize("kind", ["tensor", "gaussian", "samples"])
@pytest.mark.parametrize("homoscedastic", [False, True])
def test_gaussian_uncertainty_adds_up(kind: str, homoscedastic: bool) -> None:
    like = mnvi.GaussianLikelihood(homoscedastic=homoscedastic).double()
    out = heads(5) if not homoscedastic else logits(5)
    given = {"tensor": out.mean, "gaussian": out, "samples": mnvi.Samples(out.sample(50))}[kind]
    parts = like.uncertainty(given)
    assert [part.shape for part in parts] == [(5,)] * 3
    torch.testing.assert_close(parts.total, parts.aleatoric + parts.epistemic)
    assert (parts.epistemic >= -1e-12).all()
    if kind != "samples":
        torch.testing.assert_close(parts.total, like.predictive(given).entropy())


def test_gaussian_gradcheck() -> None:
    y = torch.randn(3).double()

    def value(mean: Tensor, var: Tensor) -> Tensor:
        return mnvi.GaussianLikelihood().expected_log_prob(mnvi.Gaussian.trusted(mean, var), y)

    out = heads(3)
    assert torch.autograd.gradcheck(value, (out.mean.requires_grad_(), out.var.requires_grad_()))


def exact_expectations(mean: float, var: float) -> tuple[float, float]:
    """E[log σ(d)] and E[σ(d)] for the difference d of two logits."""

    def over(function: object) -> float:
        return integrate.quad(lambda d: function(d) * stats.norm.pdf(d, mean, math.sqrt(var)), mean - 12, mean + 12)[0]

    return over(lambda d: -np.logaddexp(0, -d)), over(lambda d: 1 / (1 + math.exp(-d)))


def test_categorical_sampling_is_the_integral_for_two_classes() -> None:
    out = mnvi.Gaussian(torch.tensor([[1.0, -0.5]]).double(), torch.tensor([[0.6, 0.9]]).double())
    log_prob, prob = exact_expectations(1.5, 1.5)
    like = mnvi.CategoricalLikelihood(num_samples=SAMPLES)
    samples = torch.log_softmax(out.sample(SAMPLES), -1)[:, 0, 0]
    error = STANDARD_ERRORS * samples.std() / math.sqrt(SAMPLES)
    assert abs(like.expected_log_prob(out, torch.tensor([0])) - log_prob) <= error
    error = STANDARD_ERRORS * samples.exp().std() / math.sqrt(SAMPLES)
    assert abs(like.predictive(out).probs[0, 0] - prob) <= error


def test_categorical_sampling_error_falls_like_one_over_root_samples() -> None:
    """The spread of the estimate is that of one sample over √S: 100 times the samples, a tenth of the spread."""
    out, y = logits(1, 4), torch.tensor([2])
    spreads = []
    for samples in (10, 1000):
        like = mnvi.CategoricalLikelihood(num_samples=samples)
        spreads.append(torch.stack([like.expected_log_prob(out, y) for _ in range(400)]).std())
    assert float(spreads[0] / spreads[1]) == pytest.approx(10.0, rel=0.2)  # each known to 1/√800 = 3.5 %


def test_categorical_samples_and_known_outputs() -> None:
    values, y = torch.randn(8, 5, 3).double(), torch.randint(3, (5,))
    like = mnvi.CategoricalLikelihood()
    each = torch.log_softmax(values, -1)
    expected = torch.stack([each[:, i, label] for i, label in enumerate(y.tolist())], -1).mean(0)
    torch.testing.assert_close(like.expected_log_prob(mnvi.Samples(values), y), expected)
    torch.testing.assert_close(like.predictive(mnvi.Samples(values)).probs, each.exp().mean(0))
    plain = values[0]
    torch.testing.assert_close(
        like.expected_log_prob(plain, y), -torch.nn.functional.cross_entropy(plain, y, reduction="none")
    )
    torch.testing.assert_close(like.predictive(plain).probs, plain.softmax(-1))


def test_categorical_works_on_further_batch_dimensions() -> None:
    """One label per pixel: everything before the classes is batch."""
    for approximation in ("sampling", "second_order", "probit"):
        like = mnvi.CategoricalLikelihood(approximation=approximation)
        out, y = logits(2, 5, 4), torch.randint(4, (2, 5))
        assert like.expected_log_prob(out, y).shape == (2, 5)
        assert like.predictive(out).probs.shape == (2, 5, 4)


ERRORS = {  # as the docstring states: variances up to, error of a probability, of the expected logarithm
    "second_order": [(0.15, 0.002, 0.01), (0.75, 0.03, 0.04), (1.5, 0.08, 0.1)],
    "probit": [(0.15, 0.02, None), (0.75, 0.08, None), (1.5, 0.12, None)],
}


@pytest.mark.parametrize("approximation", list(ERRORS))
@pytest.mark.parametrize("classes", [2, 10])
def test_approximations_err_no_more_than_documented(approximation: str, classes: int) -> None:
    like = mnvi.CategoricalLikelihood(approximation=approximation)
    for largest, of_prob, of_log in ERRORS[approximation]:
        out = logits(25, classes, spread=largest / 1.5)
        samples = torch.log_softmax(out.sample(SAMPLES), -1)
        noise = STANDARD_ERRORS / math.sqrt(SAMPLES)
        probs = samples.exp()
        assert ((like.predictive(out).probs - probs.mean(0)).abs() <= of_prob + noise * probs.std(0)).all()
        if of_log is not None:
            y = torch.randint(classes, (25,))
            chosen = samples.gather(-1, y.expand(SAMPLES, -1).unsqueeze(-1)).squeeze(-1)
            value = like.expected_log_prob(out, y)
            assert ((value - chosen.mean(0)).abs() <= of_log + noise * chosen.std(0)).all()


@pytest.mark.parametrize("approximation", ["sampling", "second_order", "probit"])
def test_approximations_are_exact_at_zero_variance(approximation: str) -> None:
    out, y = logits(6, 4), torch.randint(4, (6,))
    known = mnvi.Gaussian(out.mean, torch.zeros_like(out.var))
    like = mnvi.CategoricalLikelihood(approximation=approximation)
    torch.testing.assert_close(like.predictive(known).probs, out.mean.softmax(-1))
    torch.testing.assert_close(like.expected_log_prob(known, y), Categorical(logits=out.mean).log_prob(y))


@pytest.mark.parametrize("approximation", ["second_order", "probit"])
def test_deterministic_approximations_repeat_and_have_right_gradients(approximation: str) -> None:
    like, y = mnvi.CategoricalLikelihood(approximation=approximation), torch.tensor([0, 2])

    def value(mean: Tensor, var: Tensor) -> Tensor:
        return like.expected_log_prob(mnvi.Gaussian.trusted(mean, var), y)

    out = logits(2, 3)
    assert torch.equal(value(out.mean, out.var), value(out.mean, out.var))
    assert torch.autograd.gradcheck(value, (out.mean.requires_grad_(), out.var.requires_grad_()))


@pytest.mark.parametrize("approximation", ["sampling", "second_order", "probit"])
def test_predictions_are_probabilities_even_at_huge_variances(approximation: str) -> None:
    out = mnvi.Gaussian(20 * torch.randn(50, 5), torch.full((50, 5), 1e4))
    probs = mnvi.CategoricalLikelihood(approximation=approximation).predictive(out).probs
    assert (probs >= 0).all() and torch.allclose(probs.sum(-1), torch.ones(50))


def test_generator_repeats_results_whatever_the_global_state() -> None:
    out, y = logits(5, 3), torch.randint(3, (5,))

    def draw(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        like = mnvi.CategoricalLikelihood(num_samples=8, generator=torch.Generator().manual_seed(seed))
        return like.expected_log_prob(out, y), like.predictive(out).probs, like.uncertainty(out).total

    first = draw(1)
    torch.manual_seed(77)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(1), strict=True))
    assert not torch.equal(first[0], draw(2)[0])


def test_copies_of_a_likelihood_carry_the_generators_state_on() -> None:
    out = logits(5, 3)
    like = mnvi.CategoricalLikelihood(num_samples=8, generator=torch.Generator().manual_seed(1))
    others = copy.deepcopy(like), pickle.loads(pickle.dumps(like))
    expected = like.predictive(out).probs
    assert all(torch.equal(other.predictive(out).probs, expected) for other in others)


@pytest.mark.parametrize("kind", ["tensor", "gaussian", "samples"])
def test_categorical_uncertainty_adds_up_and_no_part_is_negative(kind: str) -> None:
    out = logits(40, 4)
    given = {"tensor": out.mean, "gaussian": out, "samples": mnvi.Samples(out.sample(30))}[kind]
    parts = mnvi.CategoricalLikelihood().uncertainty(given)
    torch.testing.assert_close(parts.total, parts.aleatoric + parts.epistemic)
    assert all((part >= 0).all() for part in parts) and (parts.total <= math.log(4) + 1e-12).all()


def test_epistemic_part_is_the_variance_of_the_logits_and_nothing_else() -> None:
    like = mnvi.CategoricalLikelihood(num_samples=4096)
    mean = torch.randn(10, 4).double()
    certain, unsure = (mnvi.Gaussian(mean, torch.full_like(mean, v)) for v in (1e-10, 4.0))
    assert like.uncertainty(certain).epistemic.max() < 1e-9
    assert (like.uncertainty(unsure).epistemic > 0.05).all()


def test_half_precision_means_give_float32_likelihoods() -> None:
    mean, var = torch.randn(4, 2).bfloat16(), torch.rand(4, 2)
    out = mnvi.Gaussian(mean, var)
    assert mnvi.GaussianLikelihood().expected_log_prob(out, torch.zeros(4)).dtype == torch.float32
    for approximation in ("sampling", "second_order", "probit"):
        like = mnvi.CategoricalLikelihood(approximation=approximation)
        assert like.expected_log_prob(out, torch.zeros(4, dtype=torch.long)).dtype == torch.float32
        assert like.predictive(out).probs.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_dtype_serves_as_labels(dtype: torch.dtype) -> None:
    assert mnvi.CategoricalLikelihood().expected_log_prob(logits(3, 2), torch.tensor([0, 1, 1], dtype=dtype)).shape == (
        3,
    )


def test_moment_matched_mixture_has_its_mean_and_variance() -> None:
    values = torch.randn(8, 5, 2).double()
    p = mnvi.GaussianLikelihood().predictive(mnvi.Samples(values))
    q = mnvi.moment_matched(p)
    torch.testing.assert_close(q.mean, values[..., 0].mean(0))
    expected = values[..., 1].exp().mean(0) + values[..., 0].var(0, correction=0)
    torch.testing.assert_close(q.variance, expected)
