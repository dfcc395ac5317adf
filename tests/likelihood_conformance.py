"""What every likelihood must satisfy; each likelihood's test class inherits this suite and names its settings."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

import mnvi

SAMPLES = 40_000
STANDARD_ERRORS = 5.0
BATCH = 6


def assert_mean_of_samples(value: Tensor, samples: Tensor, error: float = 0.0, own_samples: float = math.inf) -> None:
    """Within five standard errors of the mean over dimension 0, plus a documented error."""
    spread = samples.std(0) * math.sqrt(1 / len(samples) + 1 / own_samples)
    assert ((value - samples.mean(0)).abs() <= STANDARD_ERRORS * spread + error).all()


class LikelihoodConformance:
    """Settings: override what differs.

    features: size of the output's last dimension.
    matches_moments: the prediction is a Gaussian with the mean and variance of the targets, not their distribution.
    expectation_error, prediction_error: documented errors of an expected logarithm, and of a predicted one.
    own_samples: number of samples that the likelihood itself draws.
    """

    features: int
    matches_moments = False
    expectation_error = 1e-5
    prediction_error = 1e-5
    own_samples = math.inf

    def likelihood(self) -> mnvi.Likelihood:
        raise NotImplementedError

    def targets(self) -> Tensor:
        raise NotImplementedError

    def support(self, p: Distribution) -> tuple[Tensor, Tensor | float]:
        """Points [points, ...] and their weights, over which a prediction sums to one."""
        raise NotImplementedError

    def output(self) -> mnvi.Gaussian:
        generator = torch.Generator().manual_seed(3)
        mean, var = (torch.randn(BATCH, self.features, generator=generator, dtype=torch.float64) for _ in range(2))
        return mnvi.Gaussian(mean, 0.4 * torch.sigmoid(var))

    def joint(self) -> mnvi.JointGaussian:
        out = self.output()
        n = out.shape[-1]
        correlation = 0.6 * torch.ones(n, n).double() + 0.4 * torch.eye(n).double()
        return mnvi.JointGaussian(out.mean, correlation * out.std.unsqueeze(-1) * out.std.unsqueeze(-2))

    def test_without_variance_the_expectation_is_the_log_probability(self) -> None:
        mean, y = self.output().mean, self.targets()
        plain = self.likelihood().predictive(mean).log_prob(y)
        for out in (mean, mnvi.Gaussian(mean, torch.zeros_like(mean)), mnvi.JointGaussian.trusted(mean)):
            torch.testing.assert_close(self.likelihood().expected_log_prob(out, y), plain, rtol=1e-6, atol=1e-6)

    def test_without_variance_the_prediction_is_that_of_known_values(self) -> None:
        mean, y = self.output().mean, self.targets()
        known = mnvi.Gaussian(mean, torch.zeros_like(mean))
        plain = self.likelihood().predictive(mean).log_prob(y)
        value = self.likelihood().predictive(known).log_prob(y)
        torch.testing.assert_close(value, plain, rtol=0, atol=self.prediction_error)

    def test_expectation_is_the_mean_over_sampled_outputs(self) -> None:
        out, y = self.output(), self.targets()
        each = self.each(out.sample(SAMPLES), y)
        value = self.likelihood().expected_log_prob(out, y)
        assert_mean_of_samples(value, each, self.expectation_error, self.own_samples)

    def test_covariances_count_in_the_expectation(self) -> None:
        out, y = self.joint(), self.targets()
        each = self.each(out.sample(SAMPLES), y)
        value = self.likelihood().expected_log_prob(out, y)
        assert_mean_of_samples(value, each, self.expectation_error, self.own_samples)

    def test_samples_are_averaged(self) -> None:
        values, y = self.output().sample(7), self.targets()
        out, like = mnvi.Samples(values), self.likelihood()
        torch.testing.assert_close(like.expected_log_prob(out, y), self.each(values, y).mean(0))
        members = torch.stack([like.predictive(one).log_prob(y) for one in values])
        expected = members.logsumexp(0) - math.log(len(values))
        torch.testing.assert_close(like.predictive(out).log_prob(y), expected, rtol=1e-6, atol=1e-6)

    def test_prediction_is_the_mean_of_predictions_for_sampled_outputs(self) -> None:
        for out in (self.output(), self.joint()):
            values, y = out.sample(SAMPLES), self.targets()
            p, known = self.likelihood().predictive(out), self.likelihood().predictive(values)
            if not self.matches_moments:
                each = known.log_prob(y.expand(SAMPLES, *y.shape)).exp()
                assert_mean_of_samples(p.log_prob(y).exp(), each, self.prediction_error, self.own_samples)
                continue
            assert_mean_of_samples(p.mean, known.mean)
            assert_mean_of_samples(p.variance, known.variance + (known.mean - p.mean).square())

    def test_predictions_sum_to_one(self) -> None:
        for out in (self.output(), self.output().mean, mnvi.Samples(self.output().sample(3))):
            p = self.likelihood().predictive(out)
            points, weight = self.support(p)
            total = (p.log_prob(points).exp() * weight).sum(0)
            torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-4)

    def test_variances_of_the_two_parts_add_up_to_that_of_the_prediction(self) -> None:
        out = self.output()
        for given in (out, out.mean, mnvi.Samples(out.sample(9)), self.joint()):
            total, aleatoric, epistemic = self.likelihood().standard_deviations(given)
            torch.testing.assert_close(total.square(), aleatoric.square() + epistemic.square())
            predicted = self.likelihood().predictive(given).stddev
            torch.testing.assert_close(total, predicted, rtol=max(1e-5, self.prediction_error), atol=0)
            assert total.shape == aleatoric.shape == epistemic.shape == self.targets().shape

    def test_parts_of_the_standard_deviation_are_those_of_sampled_outputs(self) -> None:
        out = self.output()
        known = self.likelihood().predictive(out.sample(SAMPLES))
        parts = self.likelihood().standard_deviations(out)
        assert_mean_of_samples(parts.aleatoric.square(), known.variance, 1e-12)
        mean = known.mean.mean(0)
        assert_mean_of_samples(parts.epistemic.square(), (known.mean - mean).square())

    def test_known_outputs_have_no_epistemic_part(self) -> None:
        mean = self.output().mean
        assert (self.likelihood().standard_deviations(mean).epistemic == 0).all()
        assert (self.likelihood().uncertainty(mean).epistemic.abs() < 1e-12).all()

    def test_entropies_add_up_and_the_epistemic_part_is_not_negative(self) -> None:
        out = self.output()
        for given in (out, out.mean, mnvi.Samples(out.sample(9)), self.joint()):
            total, aleatoric, epistemic = self.likelihood().uncertainty(given)
            torch.testing.assert_close(total, aleatoric + epistemic)
            assert (epistemic >= -1e-12).all() and total.shape == self.targets().shape

    def test_aleatoric_entropy_is_the_mean_over_sampled_outputs(self) -> None:
        out = self.output()
        values = out.sample(2_000)
        each = self.likelihood().uncertainty(values).total
        value = self.likelihood().uncertainty(out).aleatoric
        assert_mean_of_samples(value, each, 1e-4, self.own_samples)

    def test_gradients_match_finite_differences(self) -> None:
        out, y = self.output(), self.targets()

        def value(mean: Tensor, var: Tensor) -> Tensor:
            return self.likelihood().expected_log_prob(mnvi.Gaussian.trusted(mean, var), y)

        assert torch.autograd.gradcheck(value, (out.mean.requires_grad_(), out.var.requires_grad_()), atol=1e-5)

    def test_gradients_of_predictions_match_finite_differences(self) -> None:
        out, y = self.output(), self.targets()

        def value(mean: Tensor, var: Tensor) -> Tensor:
            return self.likelihood().predictive(mnvi.Gaussian.trusted(mean, var)).log_prob(y)

        tolerance = max(1e-5, self.prediction_error)
        assert torch.autograd.gradcheck(value, (out.mean.requires_grad_(), out.var.requires_grad_()), atol=tolerance)

    @pytest.mark.filterwarnings("ignore:Anomaly")
    def test_gradients_are_finite_without_noise(self) -> None:
        mean = self.output().mean.float().requires_grad_()
        var = torch.zeros_like(mean).requires_grad_()
        value = self.likelihood().float().expected_log_prob(mnvi.Gaussian.trusted(mean, var), self.targets())
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(value.sum(), (mean, var)))

    def test_float32_agrees_with_float64(self) -> None:
        out, y = self.output(), self.targets()
        rough = mnvi.Gaussian(out.mean.float(), out.var.float())
        value = self.likelihood().float().expected_log_prob(rough, y.float() if y.is_floating_point() else y)
        assert value.dtype == torch.float32
        if self.own_samples == math.inf:
            exact = self.likelihood().expected_log_prob(out, y)
            torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)
        else:  # torch draws other numbers in float32, whatever the seed
            each = self.each(out.sample(SAMPLES), y)
            assert_mean_of_samples(value.double(), each, self.expectation_error, self.own_samples)

    def test_float32_agrees_with_float64_on_the_same_samples(self) -> None:
        values, y = self.output().sample(50), self.targets()
        rough_y = y.float() if y.is_floating_point() else y
        value = self.likelihood().float().expected_log_prob(mnvi.Samples(values.float()), rough_y)
        exact = self.likelihood().expected_log_prob(mnvi.Samples(values), y)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision_means_give_float32_results(self, dtype: torch.dtype) -> None:
        out, y = self.output(), self.targets()
        y = y.float() if y.is_floating_point() else y
        value = self.likelihood().float().expected_log_prob(mnvi.Gaussian(out.mean.to(dtype), out.var.float()), y)
        assert value.dtype == torch.float32 and value.isfinite().all()

    @pytest.mark.parametrize("mean", [-1e4, -300.0, 300.0, 1e4])
    @pytest.mark.parametrize("var", [0.0, 1e4, 1e8])
    def test_outputs_far_too_large_stay_finite(self, mean: float, var: float) -> None:
        like, y = self.likelihood().float(), self.targets()
        y = y.float() if y.is_floating_point() else y
        inputs = [torch.full((BATCH, self.features), number).requires_grad_() for number in (mean, var)]
        value = like.expected_log_prob(mnvi.Gaussian.trusted(*inputs), y)
        gradients = torch.autograd.grad(value.sum(), inputs)
        assert value.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)
        for out in (mnvi.Gaussian.trusted(*inputs), inputs[0]):
            p = like.predictive(out)
            assert p.log_prob(y).isfinite().all() and all(part.isfinite().all() for part in like.uncertainty(out))
            if not isinstance(p, torch.distributions.Categorical):
                assert p.mean.isfinite().all() and all(part.isfinite().all() for part in like.standard_deviations(out))

    def test_copies_and_pickles_give_the_same(self) -> None:
        out, y, like = self.output(), self.targets(), self.likelihood()
        file = io.BytesIO()
        torch.save(like, file)
        others = copy.deepcopy(like), torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        expected = like.expected_log_prob(out, y)
        assert all(torch.equal(other.expected_log_prob(out, y), expected) for other in others)

    def test_another_shape_of_targets_is_refused(self) -> None:
        y = self.targets()
        with pytest.raises(ValueError, match=r"have shape \(5,.*expected"):
            self.likelihood().expected_log_prob(self.output(), y[:5])

    def test_targets_that_are_no_tensor_are_refused(self) -> None:
        with pytest.raises(TypeError, match=r"must be a torch\.Tensor, got list; use torch\.as_tensor"):
            self.likelihood().expected_log_prob(self.output(), self.targets().tolist())  # type: ignore[arg-type]

    def test_targets_before_the_output_are_refused(self) -> None:
        with pytest.raises(TypeError, match="pass the output before the targets"):
            self.likelihood().expected_log_prob(torch.zeros(BATCH, dtype=torch.long), self.output().mean)

    def test_an_output_of_another_type_is_refused(self) -> None:
        name = type(self.likelihood()).__name__
        with pytest.raises(
            TypeError, match=rf"{name}: out must be a tensor, mnvi\.Gaussian or mnvi\.Samples, got tuple"
        ):
            self.likelihood().predictive((self.output().mean, self.output().var))  # type: ignore[arg-type]

    def each(self, values: Tensor, y: Tensor) -> Tensor:
        """Log-probability of the targets under each of many known outputs."""
        return self.likelihood().predictive(values).log_prob(y.expand(len(values), *y.shape))
