"""Classification: sampled and closed-form expectations, weights, labels that do not count, and dense predictions."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from likelihood_conformance import BATCH, LikelihoodConformance
from scipy import integrate, stats
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

import mnvi

SAMPLES = 100_000
STANDARD_ERRORS = 5.0


def logits(*shape: int, spread: float = 1.0) -> mnvi.Gaussian:
    return mnvi.Gaussian(2 * torch.randn(shape).double(), spread * (0.5 + torch.rand(shape).double()))


class TestSampledCategorical(LikelihoodConformance):
    features = 3
    own_samples = 4000

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.CategoricalLikelihood(num_samples=4000, generator=torch.Generator().manual_seed(0))

    def targets(self) -> Tensor:
        return torch.tensor([0, 1, 2, 2, 1, 0])

    def support(self, p: Distribution) -> tuple[Tensor, float]:
        return torch.arange(3).view(-1, 1).expand(-1, BATCH), 1.0

    def test_variances_of_the_two_parts_add_up_to_that_of_the_prediction(self) -> None:
        with pytest.raises(TypeError, match=r"classes have no standard deviation; use uncertainty\(out\)"):
            self.likelihood().standard_deviations(self.output())

    def test_parts_of_the_standard_deviation_are_those_of_sampled_outputs(self) -> None:
        with pytest.raises(TypeError, match="classes have no standard deviation"):
            mnvi.Likelihood.standard_deviations(self.likelihood(), self.output())

    def test_known_outputs_have_no_epistemic_part(self) -> None:
        assert (self.likelihood().uncertainty(self.output().mean).epistemic == 0).all()


class TestSecondOrderCategorical(TestSampledCategorical):
    own_samples = math.inf
    expectation_error = 0.03
    prediction_error = 0.02

    def likelihood(self) -> mnvi.Likelihood:
        return mnvi.CategoricalLikelihood(approximation="second_order")

    # uncertainties are sampled whatever the approximation
    def test_aleatoric_entropy_is_the_mean_over_sampled_outputs(self) -> None:
        parts = [mnvi.CategoricalLikelihood(2, a).uncertainty(self.output().mean).total for a in ("sampling", "probit")]
        torch.testing.assert_close(*parts)


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integer_dtype_serves_as_labels(dtype: torch.dtype) -> None:
    assert mnvi.CategoricalLikelihood().expected_log_prob(logits(3, 2), torch.tensor([0, 1, 1], dtype=dtype)).shape == (
        3,
    )


OPTIONS: dict[str, dict] = {
    "weights": {"class_weights": [1.0, 0.0, 3.5, 0.25]},
    "smoothing": {"label_smoothing": 0.2},
    "ignored": {"ignore_index": 2},
    "all": {"class_weights": [1.0, 0.5, 3.5, 0.25], "label_smoothing": 0.1, "ignore_index": -100},
}


def torchs_loss(logits: Tensor, y: Tensor, reduction: str, options: dict) -> Tensor:
    given = {"weight" if name == "class_weights" else name: value for name, value in options.items()}
    if "weight" in given:
        given["weight"] = torch.tensor(given["weight"]).double()
    return F.cross_entropy(logits, y, reduction=reduction, **given)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dense", [False, True], ids=["rows", "dense"])
def test_weights_smoothing_and_ignored_labels_mean_what_they_mean_in_torch(name: str, dense: bool) -> None:
    options = OPTIONS[name]
    logits = torch.randn(2, 4, 3, 5).double() if dense else torch.randn(7, 4).double()
    y = torch.randint(4, (2, 3, 5) if dense else (7,))
    y.view(-1)[::3] = options.get("ignore_index", 0)
    like = mnvi.CategoricalLikelihood(class_dim=1, **options)
    torch.testing.assert_close(like.expected_log_prob(logits, y), -torchs_loss(logits, y, "none", options))
    torch.testing.assert_close(like.mean_log_prob(logits, y), -torchs_loss(logits, y, "mean", options))
    terms = mnvi.ELBO(like, num_data=7)(logits, y, kl=0)
    torch.testing.assert_close(terms.nll, torchs_loss(logits, y, "mean", options))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("approximation", ["sampling", "second_order", "probit"])
def test_options_combine_expected_logarithms_of_all_classes(name: str, approximation: str) -> None:
    options, out, y = OPTIONS[name], logits(5, 4), torch.tensor([0, 1, 2, 3, 3])

    def like(**given: object) -> mnvi.CategoricalLikelihood:
        return mnvi.CategoricalLikelihood(50, approximation, torch.Generator().manual_seed(0), **given)  # type: ignore[arg-type]

    logs = torch.stack([like().expected_log_prob(out, torch.full((5,), k)) for k in range(4)], -1)
    weights, smoothing = torch.tensor(options.get("class_weights", [1.0] * 4)), options.get("label_smoothing", 0.0)
    expected = smoothing / 4 * (weights * logs).sum(-1)
    expected += (1 - smoothing) * weights[y] * logs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    expected[y == options.get("ignore_index", -1)] = 0
    torch.testing.assert_close(like(**options).expected_log_prob(out, y), expected)


def test_ignored_labels_have_no_gradient_and_a_batch_of_them_costs_nothing() -> None:
    like = mnvi.CategoricalLikelihood(ignore_index=-1)
    mean = torch.randn(3, 4).requires_grad_()
    out = mnvi.Gaussian(mean, torch.ones(3, 4))
    (gradient,) = torch.autograd.grad(like.mean_log_prob(out, torch.tensor([2, -1, -1])), mean)
    assert gradient[0].abs().sum() > 0 and (gradient[1:] == 0).all()
    nothing = like.mean_log_prob(out, torch.full((3,), -1))
    (gradient,) = torch.autograd.grad(nothing, mean)
    assert nothing == 0 and (gradient == 0).all()


def test_an_ignored_label_may_be_outside_the_dtypes_range() -> None:
    like = mnvi.CategoricalLikelihood(ignore_index=-100)
    assert like.expected_log_prob(torch.zeros(2, 3), torch.tensor([0, 2], dtype=torch.uint8)).shape == (2,)


def test_options_change_neither_prediction_nor_checkpoint() -> None:
    out = torch.randn(3, 4)
    like = mnvi.CategoricalLikelihood(**OPTIONS["all"])
    assert torch.equal(like.predictive(out).probs, mnvi.CategoricalLikelihood().predictive(out).probs)
    assert not like.state_dict() and like.double().class_weights.dtype == torch.float64


@pytest.mark.parametrize("approximation", ["sampling", "second_order", "probit"])
@pytest.mark.parametrize("kind", ["tensor", "gaussian", "samples"])
def test_classes_in_dimension_one_are_those_moved_to_the_end(approximation: str, kind: str) -> None:
    out, y = logits(2, 3, 4, 5), torch.randint(3, (2, 4, 5))
    given, moved = {
        "tensor": (out.mean, out.mean.movedim(1, -1)),
        "gaussian": (out, out.movedim(1, -1)),
        "samples": (mnvi.Samples(out.sample(3)), None),
    }[kind]
    moved = moved if moved is not None else mnvi.Samples(given.values.movedim(2, -1))

    def like(class_dim: int) -> mnvi.CategoricalLikelihood:
        generator = torch.Generator().manual_seed(0)
        return mnvi.CategoricalLikelihood(8, approximation, generator, class_dim=class_dim)

    value = like(1).expected_log_prob(given, y)
    assert value.shape == (2, 4, 5) and torch.equal(value, like(-1).expected_log_prob(moved, y))
    assert torch.equal(like(1).expected_log_prob(given, y), like(-3).expected_log_prob(given, y))
    assert torch.equal(like(1).predictive(given).probs, like(-1).predictive(moved).probs)
    assert all(map(torch.equal, like(1).uncertainty(given), like(-1).uncertainty(moved)))


def in_parts(elements: int, seed: int = 0, samples: int = 4000, **options: object) -> mnvi.CategoricalLikelihood:
    generator = torch.Generator().manual_seed(seed)
    return mnvi.CategoricalLikelihood(samples, generator=generator, max_elements=elements, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["gaussian", "joint", "known joint"])
def test_parts_give_what_all_samples_at_once_give(kind: str) -> None:
    out, y = logits(2, 3, 4), torch.randint(4, (2, 3))
    if kind == "joint":
        out = mnvi.JointGaussian.trusted(out.mean, torch.diag_embed(out.var) + 0.1)
    if kind == "known joint":
        out = mnvi.JointGaussian.trusted(out.mean)
    one, all_at_once = 4000 * 4, 10**9
    samples = torch.log_softmax(out.sample(4000), -1)
    chosen = samples.gather(-1, y.expand(4000, 2, 3).unsqueeze(-1)).squeeze(-1)
    error = 7 * chosen.std(0) / math.sqrt(4000)  # of a difference: five times the root of two
    value = in_parts(one).expected_log_prob(out, y)
    assert ((value - in_parts(all_at_once).expected_log_prob(out, y)).abs() <= error + 1e-12).all()
    difference = in_parts(one).predictive(out).probs - in_parts(all_at_once).predictive(out).probs
    assert (difference.abs() <= 7 * samples.exp().std(0) / math.sqrt(4000) + 1e-12).all()
    for part, expected in zip(in_parts(one).uncertainty(out), in_parts(all_at_once).uncertainty(out), strict=True):
        torch.testing.assert_close(part, expected, rtol=0, atol=0.05)


def test_parts_repeat_with_the_generator_and_with_the_global_one() -> None:
    out, y = logits(5, 3), torch.randint(3, (5,))
    assert torch.equal(in_parts(60, 1, 10).expected_log_prob(out, y), in_parts(60, 1, 10).expected_log_prob(out, y))
    assert not torch.equal(in_parts(60, 1, 10).expected_log_prob(out, y), in_parts(60, 2, 10).expected_log_prob(out, y))
    like = mnvi.CategoricalLikelihood(10, max_elements=60)
    values = []
    for _ in range(2):
        torch.manual_seed(5)
        values.append((like.expected_log_prob(out, y), like.predictive(out).probs))
    assert all(map(torch.equal, *values)) and not torch.equal(like.predictive(out).probs, values[0][1])


def test_gradients_of_parts_match_finite_differences() -> None:
    out, y = logits(1, 3, 2, 2), torch.randint(3, (1, 2, 2))

    def value(mean: Tensor, var: Tensor) -> Tensor:
        like = in_parts(15, samples=5, class_dim=1, label_smoothing=0.1)
        return like.expected_log_prob(mnvi.Gaussian.trusted(mean, var), y)

    assert torch.autograd.gradcheck(value, (out.mean.requires_grad_(), out.var.requires_grad_()))


def test_memory_of_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part draws more than allowed, and the backward pass keeps nothing that grows with the samples."""
    drawn, kept = [], []
    sample = mnvi.Gaussian.sample

    def counted(self: mnvi.Gaussian, *args: object) -> Tensor:
        drawn.append(len(values := sample(self, *args)) * self.mean.numel())  # type: ignore[arg-type]
        return values

    monkeypatch.setattr(mnvi.Gaussian, "sample", counted)
    mean = torch.zeros(2, 5, 16, 16).requires_grad_()
    out, y = mnvi.Gaussian(mean, torch.ones(2, 5, 16, 16)), torch.zeros(2, 16, 16, dtype=torch.long)
    like = in_parts(10_000, samples=100, class_dim=1)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        value = like.mean_log_prob(out, y)
    assert max(drawn) <= 10_000 and sum(drawn) == 100 * mean.numel()
    assert sum(kept) < 6 * mean.numel()
    value.backward()
    assert max(drawn) <= 10_000 and sum(drawn) == 2 * 100 * mean.numel()


def test_parts_work_inside_torch_func() -> None:
    y = torch.tensor([0, 2, 1])
    like = mnvi.CategoricalLikelihood(2000, max_elements=6000)

    def value(mean: Tensor) -> Tensor:
        return like.expected_log_prob(mnvi.Gaussian.trusted(mean, torch.ones_like(mean)), y).sum()

    means = torch.randn(2, 3, 3)
    gradients = torch.func.vmap(torch.func.grad(value), randomness="different")(means)
    large = mnvi.CategoricalLikelihood(100_000)
    for mean, gradient in zip(means, gradients, strict=True):
        mean.requires_grad_()
        value_of = large.expected_log_prob(mnvi.Gaussian(mean, torch.ones(3, 3)), y).sum()
        (expected,) = torch.autograd.grad(value_of, mean)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=0.06)  # five standard errors of a probability


@pytest.mark.slow
def test_a_dense_training_step_in_parts_compiles_as_one_graph() -> None:
    net = mnvi.convert(nn.Conv2d(1, 3, 3, padding=1), mnvi.MultiplicativeNoise(1.0))
    x, y = torch.randn(2, 1, 4, 4), torch.randint(3, (2, 4, 4))
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(4000, class_dim=1, max_elements=4000 * 3 * 16), num_data=32)

    def gradients(loss: object) -> list[Tensor]:
        return list(torch.autograd.grad(loss(), list(net.parameters())))  # type: ignore[operator]

    def loss() -> Tensor:
        return elbo(net(x), y, mnvi.kl_divergence(net)).loss

    compiled = gradients(torch.compile(loss, fullgraph=True, backend="aot_eager"))
    for gradient, expected in zip(compiled, gradients(loss), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0.1, atol=0.02)  # other random numbers


def test_a_dense_prediction_is_learnt() -> None:
    """A 1×1 convolution tells pixels of three colours apart, although a third of the labels is missing."""
    y = torch.randint(3, (4, 6, 6))
    x = F.one_hot(y, 3).movedim(-1, 1).float() + 0.1 * torch.randn(4, 3, 6, 6)
    labels = y.masked_fill(torch.rand(4, 6, 6) < 0.3, 255)
    net = mnvi.convert(nn.Conv2d(3, 3, 1), mnvi.MultiplicativeNoise(1.0))
    like = mnvi.CategoricalLikelihood(8, class_dim=1, ignore_index=255, max_elements=500)
    elbo, optimizer = mnvi.ELBO(like, num_data=y.numel()), torch.optim.Adam(net.parameters(), 0.1)
    for _ in range(40):
        optimizer.zero_grad()
        elbo(net(x), labels, mnvi.kl_divergence(net)).loss.backward()
        optimizer.step()
    assert (like.predictive(net(x)).probs.argmax(-1) == y).float().mean() > 0.95


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: mnvi.CategoricalLikelihood(class_dim=1).expected_log_prob(
                torch.zeros(2, 4, 3), torch.zeros(2, 4).long()
            ),
            ValueError,
            "with the classes last, but class_dim=1; leave class_dim at -1",
        ),
        (
            lambda: mnvi.CategoricalLikelihood().expected_log_prob(
                torch.zeros(2, 3, 5, 5), torch.zeros(2, 5, 5).long()
            ),
            ValueError,
            r"the classes in dimension 1; .* or write CategoricalLikelihood\(class_dim=1\)",
        ),
        (
            lambda: mnvi.CategoricalLikelihood(class_dim=1).expected_log_prob(
                torch.zeros(2, 3, 5), F.one_hot(torch.zeros(2, 5).long(), 3).movedim(-1, 1)
            ),
            ValueError,
            r"look one-hot; expected class indices of shape \(2, 5\): pass y.argmax\(1\)",
        ),
        (
            lambda: mnvi.CategoricalLikelihood(class_dim=2).predictive(torch.zeros(2, 3)),
            ValueError,
            r"class_dim=2, but the output has shape \(2, 3\)",
        ),
        (
            lambda: mnvi.CategoricalLikelihood(class_dim=1).predictive(torch.zeros(2, 1, 5)),
            ValueError,
            "a single class",
        ),
        (
            lambda: mnvi.CategoricalLikelihood(class_dim=1).predictive(
                mnvi.JointGaussian.trusted(torch.zeros(2, 3, 5))
            ),
            ValueError,
            "JointGaussian .* leave class_dim at -1",
        ),
        (
            lambda: mnvi.CategoricalLikelihood(class_weights=[1.0, 2.0]).predictive(torch.zeros(2, 3)),
            ValueError,
            r"class_weights has 2 entries, the output \(2, 3\) has 3 classes in dimension 1",
        ),
        (lambda: mnvi.CategoricalLikelihood(class_weights=[1.0, -2.0]), ValueError, "must be finite numbers >= 0"),
        (lambda: mnvi.CategoricalLikelihood(class_weights=[0.0, 0.0]), ValueError, "not all of them 0"),
        (
            lambda: mnvi.CategoricalLikelihood(class_weights="balanced"),
            ValueError,
            "must be numbers, one for each class",
        ),
        (lambda: mnvi.CategoricalLikelihood(class_weights=2.0), ValueError, "must be numbers, one for each class"),
        (lambda: mnvi.CategoricalLikelihood(label_smoothing=1.5), ValueError, "must be a finite number >= 0 and <= 1"),
        (lambda: mnvi.CategoricalLikelihood(ignore_index=0.5), ValueError, "ignore_index=0.5 must be a whole number"),
        (lambda: mnvi.CategoricalLikelihood(max_elements=0), ValueError, "max_elements=0 must be a whole number >= 1"),
        (lambda: mnvi.CategoricalLikelihood(class_dim=None), ValueError, "class_dim=None must be a whole number"),
        (
            lambda: mnvi.CategoricalLikelihood().expected_log_prob(torch.zeros(2, 3), torch.tensor([0, 255])),
            ValueError,
            r"labels run from 0 to 255; they must be in 0\.\.2; for labels that do not count, set ignore_index",
        ),
        (
            lambda: mnvi.CategoricalLikelihood(ignore_index=255).expected_log_prob(
                torch.zeros(2, 3), torch.tensor([3, 255])
            ),
            ValueError,
            r"labels run from 3 to 3; they must be in 0\.\.2$",
        ),
    ],
)
def test_mistakes_say_what_to_write(call: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"CategoricalLikelihood: .*{message}"):
        call()  # type: ignore[operator]
