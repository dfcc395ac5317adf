"""Bad input: each a clear error that names the argument, what it was, and what it should be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mnvi

NAN, INF = math.nan, math.inf


def linear() -> nn.Module:
    return mnvi.convert(nn.Linear(3, 2), mnvi.MultiplicativeNoise(1.0))


def conv() -> nn.Module:
    return mnvi.convert(nn.Conv2d(3, 2, 3), mnvi.MultiplicativeNoise(1.0))


def gaussian(*shape: int) -> mnvi.Gaussian:
    return mnvi.Gaussian(torch.zeros(shape), torch.ones(shape))


def labels(y: Any, classes: int = 4) -> Tensor:
    return mnvi.CategoricalLikelihood().expected_log_prob(gaussian(3, classes), y)


def targets(y: Any, out: Any = None) -> Tensor:
    return mnvi.GaussianLikelihood().expected_log_prob(gaussian(3, 2) if out is None else out, y)


def elbo(**arguments: Any) -> mnvi.ELBO:
    return mnvi.ELBO(**{"likelihood": mnvi.CategoricalLikelihood(), "num_data": 10, **arguments})


CASES: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    # Likelihoods
    "uncertainty of a list": (
        TypeError,
        "CategoricalLikelihood: out must be a tensor, mnvi.Gaussian or mnvi.Samples, got list",
        lambda: mnvi.CategoricalLikelihood().uncertainty([1.0]),
    ),
    "complex targets": (
        TypeError,
        "GaussianLikelihood: targets must be real numbers, got torch.complex64",
        lambda: targets(torch.zeros(3, dtype=torch.complex64)),
    ),
    "boolean targets": (
        TypeError,
        "GaussianLikelihood: targets must be real numbers, got torch.bool",
        lambda: targets(torch.zeros(3, dtype=torch.bool)),
    ),
    "complex labels": (
        TypeError,
        "CategoricalLikelihood: labels must be integers, got torch.complex64",
        lambda: labels(torch.zeros(3, dtype=torch.complex64)),
    ),
    # Rules
    "rule without parentheses": (
        TypeError,
        "rule: <lambda> does not dispatch on its arguments; above a rule write e.g. @mnvi.rule(torch.erf)",
        lambda: mnvi.rule(lambda x: x),
    ),
    "joint rule without parentheses": (
        TypeError,
        "above a rule write e.g. @mnvi.covariance.rule(torch.erf)",
        lambda: mnvi.covariance.rule(lambda x: x),
    ),
    "rule for nothing": (
        TypeError,
        "rule: expected torch functions, e.g. @mnvi.rule(torch.erf), got none",
        lambda: mnvi.rule()(lambda x: x),
    ),
    # Gaussian
    "mean and var of different shape": (
        ValueError,
        "Gaussian: mean has shape (2, 3) and var (3,); they must be the same, use var.expand_as(mean)",
        lambda: mnvi.Gaussian(torch.zeros(2, 3), torch.ones(3)),
    ),
    "negative variance": (
        ValueError,
        "Gaussian: var has an entry -0.5; variances must be >= 0",
        lambda: mnvi.Gaussian(torch.zeros(2), torch.tensor([1.0, -0.5])),
    ),
    "NaN variance": (
        ValueError,
        "Gaussian: var has an entry NaN; variances must be >= 0",
        lambda: mnvi.Gaussian(torch.zeros(2), torch.tensor([1.0, NAN])),
    ),
    "variance of another dtype": (
        TypeError,
        "Gaussian: mean is torch.float32 and var torch.float64; convert one with .to(dtype)",
        lambda: mnvi.Gaussian(torch.zeros(2), torch.ones(2).double()),
    ),
    "half-precision variance beside a float32 mean": (
        TypeError,
        "Gaussian: mean is torch.float32 and var torch.bfloat16",
        lambda: mnvi.Gaussian(torch.zeros(2), torch.ones(2).bfloat16()),
    ),
    "integer mean": (
        TypeError,
        "Gaussian: mean must have a floating-point dtype, got torch.int64; call .float() on it",
        lambda: mnvi.Gaussian(torch.zeros(2, dtype=torch.long), torch.ones(2)),
    ),
    "complex variance": (
        TypeError,
        "Gaussian: var must have a floating-point dtype, got torch.complex64",
        lambda: mnvi.Gaussian(torch.zeros(2), torch.ones(2, dtype=torch.complex64)),
    ),
    "variance on another device": (
        ValueError,
        "Gaussian: mean is on cpu and var on meta; move one with .to(device)",
        lambda: mnvi.Gaussian(torch.zeros(2), torch.ones(2, device="meta")),
    ),
    "variance that is a number": (
        TypeError,
        "Gaussian: var must be a torch.Tensor, got float",
        lambda: mnvi.Gaussian(torch.zeros(2), 1.0),
    ),
    "mean that is a Gaussian": (
        TypeError,
        "Gaussian: mean must be a torch.Tensor, got Gaussian",
        lambda: mnvi.Gaussian(gaussian(2), torch.ones(2)),
    ),
    "no samples": (ValueError, "sample: num_samples=0 must be a whole number >= 1", lambda: gaussian(2).sample(0)),
    "conversion to integers": (
        TypeError,
        "a Gaussian can only be converted to a floating-point dtype; for integers take x.mean",
        lambda: gaussian(2).to(torch.long),
    ),
    "division with rounding": (
        TypeError,
        "div: rounding_mode='floor' has no meaning for a Gaussian",
        lambda: torch.div(gaussian(2), 2, rounding_mode="floor"),
    ),
    "random weights in a plain layer": (
        TypeError,
        "linear: only the input may be a Gaussian; random weights belong to a posterior, see mnvi.convert",
        lambda: nn.functional.linear(torch.ones(1, 3), gaussian(2, 3)),
    ),
    "samples without a batch": (
        ValueError,
        "Samples: values must be [num_samples >= 1, batch, ...], got shape (5,)",
        lambda: mnvi.Samples(torch.zeros(5)),
    ),
    "no member among the samples": (
        ValueError,
        "got shape (0, 5, 2)",
        lambda: mnvi.Samples(torch.zeros(0, 5, 2)),
    ),
    "samples in a list": (
        TypeError,
        "Samples: values must be a torch.Tensor, got list; use torch.stack",
        lambda: mnvi.Samples([torch.zeros(5)]),
    ),
    # layers
    "wrong number of features": (
        ValueError,
        "Linear: expected 3 input units in dimension -1, got an input of shape (5, 4)",
        lambda: linear()(torch.ones(5, 4)),
    ),
    "wrong number of channels": (
        ValueError,
        "Conv2d: expected 3 input units in dimension -3, got an input of shape (1, 4, 8, 8)",
        lambda: conv()(gaussian(1, 4, 8, 8)),
    ),
    "too few dimensions": (
        ValueError,
        "Conv2d: expected 3 input units in dimension -3, got an input of shape (8, 8)",
        lambda: conv()(torch.ones(8, 8)),
    ),
    "too many dimensions": (
        ValueError,
        "Conv2d: expected an input of 3 or 4 dimensions, got shape (1, 2, 3, 8, 8)",
        lambda: conv()(torch.ones(1, 2, 3, 8, 8)),
    ),
    "scalar input": (
        ValueError,
        "Linear: expected 3 input units in dimension -1, got an input of shape ()",
        lambda: linear()(torch.tensor(1.0)),
    ),
    "input of another dtype": (
        TypeError,
        "Linear: the input is torch.float64, the weight torch.float32; convert one with .to(dtype)",
        lambda: linear()(torch.ones(1, 3).double()),
    ),
    "input on another device": (
        ValueError,
        "Linear: the input is on meta, the weight on cpu; move one with .to(device)",
        lambda: linear()(torch.ones(1, 3, device="meta")),
    ),
    "input that is no tensor": (
        TypeError,
        "Linear: the input must be a tensor or mnvi.Gaussian, got list",
        lambda: linear()([1.0, 2.0, 3.0]),
    ),
    "unknown argument of a layer": (
        TypeError,
        "unexpected keyword argument 'prior'",
        lambda: mnvi.layers.Linear(3, 2, prior=1.0, posterior=mnvi.MeanField(1.0)),
    ),
    # likelihoods
    "label too large": (
        ValueError,
        "CategoricalLikelihood: labels run from 0 to 4; they must be in 0..3",
        lambda: labels(torch.tensor([0, 4, 1])),
    ),
    "label negative": (
        ValueError,
        "CategoricalLikelihood: labels run from -1 to 2; they must be in 0..3",
        lambda: labels(torch.tensor([0, -1, 2])),
    ),
    "labels of floating point": (
        TypeError,
        "CategoricalLikelihood: labels must be integers, got torch.float32",
        lambda: labels(torch.tensor([0.0, 1.0, 2.0])),
    ),
    "labels of truth values": (
        TypeError,
        "CategoricalLikelihood: labels must be integers, got torch.bool",
        lambda: labels(torch.tensor([True, False, True])),
    ),
    "labels as one-hot rows": (
        ValueError,
        "CategoricalLikelihood: labels of shape (3, 4) look one-hot; expected class indices of shape (3,): pass "
        "y.argmax(-1)",
        lambda: labels(torch.eye(4, dtype=torch.long)[:3]),
    ),
    "labels of another batch": (
        ValueError,
        "CategoricalLikelihood: labels have shape (2,), the output (3, 4)",
        lambda: labels(torch.tensor([0, 1])),
    ),
    "labels in a list": (
        TypeError,
        "CategoricalLikelihood: labels must be a torch.Tensor, got list; use torch.as_tensor",
        lambda: labels([0, 1, 2]),
    ),
    "labels on another device": (
        ValueError,
        "CategoricalLikelihood: labels are on meta, the output on cpu; move them with .to('cpu')",
        lambda: labels(torch.zeros(3, dtype=torch.long, device="meta")),
    ),
    "labels of sampled outputs out of range": (
        ValueError,
        "labels run from 0 to 9; they must be in 0..3",
        lambda: mnvi.CategoricalLikelihood().expected_log_prob(
            mnvi.Samples(torch.zeros(5, 2, 4)), torch.tensor([0, 9])
        ),
    ),
    "labels to be ignored, without saying so": (
        ValueError,
        "CategoricalLikelihood: labels run from -100 to 2; they must be in 0..3; for labels that do not count, set "
        "ignore_index",
        lambda: labels(torch.tensor([0, -100, 2])),
    ),
    "a fourth class for two": (
        ValueError,
        "BernoulliLikelihood: targets run from 0 to 3; they must be 0 or 1, or probabilities between. For more than "
        "two classes use CategoricalLikelihood",
        lambda: mnvi.BernoulliLikelihood().expected_log_prob(gaussian(3), torch.tensor([0, 3, 1])),
    ),
    "count that is none": (
        ValueError,
        "PoissonLikelihood: targets contain -1; they must be counts: 0, 1, 2, ...",
        lambda: mnvi.PoissonLikelihood().expected_log_prob(gaussian(3), torch.tensor([0, -1, 1])),
    ),
    "degrees of freedom of zero": (
        ValueError,
        "StudentTLikelihood: df=0 must be a finite number > 0",
        lambda: mnvi.StudentTLikelihood(df=0),
    ),
    "targets of another shape": (
        ValueError,
        "GaussianLikelihood: targets have shape (3, 1), expected (3,)",
        lambda: targets(torch.zeros(3, 1)),
    ),
    "targets on another device": (
        ValueError,
        "GaussianLikelihood: targets are on meta, the output on cpu",
        lambda: targets(torch.zeros(3, device="meta")),
    ),
    "targets that are no tensor": (
        TypeError,
        "GaussianLikelihood: targets must be a torch.Tensor, got float",
        lambda: targets(0.5),
    ),
    "output without a log-variance head": (
        ValueError,
        "last dimension must be 2, mean and log-variance; got shape (3, 1). For a network that returns only the mean "
        "use homoscedastic=True",
        lambda: targets(torch.zeros(3), gaussian(3, 1)),
    ),
    "output that is no output": (
        TypeError,
        "GaussianLikelihood: out must be a tensor, mnvi.Gaussian or mnvi.Samples, got tuple",
        lambda: targets(torch.zeros(3), (torch.zeros(3, 2), torch.ones(3, 2))),
    ),
    "prediction from what is no output": (
        TypeError,
        "CategoricalLikelihood: out must be a tensor, mnvi.Gaussian or mnvi.Samples, got list",
        lambda: mnvi.CategoricalLikelihood().predictive([1.0]),
    ),
    "unknown approximation": (
        ValueError,
        "approximation='exact' is not one of 'sampling', 'second_order', 'probit'",
        lambda: mnvi.CategoricalLikelihood(approximation="exact"),
    ),
    "generator that is a seed": (
        TypeError,
        "CategoricalLikelihood: generator=3 must be a torch.Generator or None",
        lambda: mnvi.CategoricalLikelihood(generator=3),
    ),
    "noise that is not finite": (
        ValueError,
        "GaussianLikelihood: init_log_noise=nan must be a finite number",
        lambda: mnvi.GaussianLikelihood(homoscedastic=True, init_log_noise=NAN),
    ),
    "noise that is no number": (
        ValueError,
        "GaussianLikelihood: init_log_noise='0' must be a finite number",
        lambda: mnvi.GaussianLikelihood(homoscedastic=True, init_log_noise="0"),
    ),
    # objective
    "likelihood that is none": (
        TypeError,
        "ELBO: likelihood must be e.g. mnvi.CategoricalLikelihood(), got 'categorical'",
        lambda: elbo(likelihood="categorical"),
    ),
    "likelihood given as a class": (
        TypeError,
        "ELBO: likelihood must be e.g. mnvi.CategoricalLikelihood()",
        lambda: elbo(likelihood=mnvi.CategoricalLikelihood),
    ),
    "schedule without a start": (
        ValueError,
        "StepSchedule: values={5: 1.0} must map epochs, whole numbers >= 0, to numbers, 0 included",
        lambda: mnvi.StepSchedule({5: 1.0}),
    ),
    "schedule from a negative epoch": (
        ValueError,
        "StepSchedule: an epoch=-3 must be a whole number >= 0",
        lambda: mnvi.StepSchedule({0: 1.0, -3: 1.0}),
    ),
    "schedule from an epoch with a name": (
        ValueError,
        "StepSchedule: an epoch='end' must be a whole number >= 0",
        lambda: mnvi.StepSchedule({0: 1.0, "end": 1.0}),
    ),
    "schedule from the middle of an epoch": (
        ValueError,
        "StepSchedule: an epoch=1.5 must be a whole number >= 0",
        lambda: mnvi.StepSchedule({0: 1.0, 1.5: 1.0}),
    ),
    "ensemble of a network": (
        TypeError,
        "Ensemble.of: factory must be a function that builds a member",
        lambda: mnvi.Ensemble.of(nn.Linear(1, 1), 3),
    ),
    "misspelt number of samples": (
        TypeError,
        "build: mc_dropout has no hyperparameter 'num_sample'; it has: num_samples, train_samples, chunk, seed",
        lambda: mnvi.methods.build("mc_dropout", mnvi.models.mlp(3), num_sample=3),
    ),
    "correlation of nine": (
        ValueError,
        "JointGaussian: cov has a correlation beyond 1",
        lambda: mnvi.JointGaussian(torch.zeros(2), torch.tensor([[1.0, 9.0], [9.0, 1.0]])),
    ),
    "layer chosen by its number": (
        TypeError,
        "convert: only=3 must be a name pattern",
        lambda: mnvi.convert(mnvi.models.mlp(3), mnvi.MultiplicativeNoise(1.0), only=[3]),
    ),
    "layer chosen by itself": (
        TypeError,
        "convert: skip=Linear(in_features=3, out_features=2, bias=True) must be a name pattern",
        lambda: mnvi.convert(mnvi.models.mlp(3), mnvi.MultiplicativeNoise(1.0), skip=nn.Linear(3, 2)),
    ),
    "complex layer": (
        ValueError,
        "convert: layer '' (Linear) has complex weights",
        lambda: mnvi.convert(nn.Linear(3, 2, dtype=torch.complex64), mnvi.MultiplicativeNoise(1.0)),
    ),
    "sum in whole numbers": (
        TypeError,
        "a Gaussian has no torch.int64 values",
        lambda: torch.sum(gaussian(3), dtype=torch.int64),
    ),
    "product added to its own factor": (
        ValueError,
        "not independent of the product",
        lambda: torch.addmm(x := gaussian(2, 2), x, torch.eye(2)),
    ),
    "random weights of a layer norm": (
        TypeError,
        "layer_norm: only the first argument may be a random value",
        lambda: nn.functional.layer_norm(gaussian(2, 2), (2,), gaussian(2)),
    ),
    "random weights of a batch norm": (
        TypeError,
        "batch_norm: only the first argument may be a random value",
        lambda: nn.functional.batch_norm(gaussian(2, 2), None, None, gaussian(2), training=True),
    ),
    "random weights of a group norm of a tensor": (
        TypeError,
        "group_norm: only the first argument may be a random value",
        lambda: nn.functional.group_norm(torch.ones(2, 2), 1, gaussian(2)),
    ),
    "random condition": (
        TypeError,
        "where: condition must be a tensor of bool, got a Gaussian",
        lambda: torch.where(gaussian(2), 0.0, 1.0),
    ),
    "random index": (
        TypeError,
        "gather: only the first argument may be a random value",
        lambda: torch.gather(torch.ones(2), 0, gaussian(2)),
    ),
    "schedule with a negative value": (
        ValueError,
        "StepSchedule: the value from epoch 3 on=-1.0 must be a finite number >= 0",
        lambda: mnvi.StepSchedule({0: 1.0, 3: -1.0}),
    ),
    "schedule that is a list": (
        TypeError,
        "StepSchedule: values=[1.0] must be a mapping such as {0: 0.01, 100: 0.1}",
        lambda: mnvi.StepSchedule([1.0]),
    ),
    "negative epoch": (
        ValueError,
        "StepSchedule: epoch=-1 must be a whole number >= 0",
        lambda: mnvi.StepSchedule({0: 1.0})(-1),
    ),
    "batch norm that may divide by zero": (
        ValueError,
        "batch_norm: eps=0.0 must be a finite number > 0; in training the variance of a batch may be zero",
        lambda: torch.nn.functional.batch_norm(gaussian(4, 3), None, None, training=True, eps=0.0),
    ),
    "group norm without groups": (
        ValueError,
        "group_norm: num_groups=0 must be a whole number >= 1",
        lambda: torch.nn.functional.group_norm(gaussian(4, 3), 0),
    ),
    "schedule of one's own that turns negative": (
        ValueError,
        "ELBO: kappa at epoch 7=-6 must be a finite number >= 0",
        lambda: elbo(kappa=lambda epoch: 1 - epoch)(gaussian(2, 3), torch.tensor([0, 1]), torch.tensor(1.0), epoch=7),
    ),
}


@pytest.mark.parametrize(("kind", "message", "call"), list(CASES.values()), ids=list(CASES))
def test_bad_input_is_named(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        call()


@pytest.mark.parametrize("value", [0, 0.0, -1e-4, NAN, INF, -INF, True, "1e-4", None], ids=repr)
@pytest.mark.parametrize("posterior", [mnvi.MultiplicativeNoise, mnvi.MeanField, mnvi.SharedMeanField])
def test_prior_variance_must_be_a_finite_positive_number(posterior: type, value: object) -> None:
    bound = ">= 1e-09" if posterior is mnvi.MultiplicativeNoise else "> 0"
    expected = f"{posterior.__name__}: prior_variance={value!r} must be a finite number {bound}"
    with pytest.raises(ValueError, match=re.escape(expected)):
        posterior(prior_variance=value)


@pytest.mark.parametrize("value", [NAN, INF, -INF, True, "-3", None], ids=repr)
@pytest.mark.parametrize(
    ("posterior", "name"),
    [(mnvi.MultiplicativeNoise, "init_rho"), (mnvi.MeanField, "init_log_var"), (mnvi.SharedMeanField, "init_log_var")],
)
def test_start_of_a_posterior_must_be_a_finite_number(posterior: type, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{posterior.__name__}: {name}={value!r} must be a finite number")):
        posterior(prior_variance=1.0, **{name: value})


@pytest.mark.parametrize("name", ["shape", "scale"])
@pytest.mark.parametrize("value", [0, -1.0, NAN, INF, True, "5"], ids=repr)
def test_empirical_bayes_needs_finite_positive_numbers(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"EmpiricalBayes: {name}={value!r} must be a finite number > 0")):
        mnvi.EmpiricalBayes(**{name: value})


@pytest.mark.parametrize("value", [-0.1, NAN, INF, True, "1", None], ids=repr)
def test_kappa_must_be_a_finite_number_not_below_zero(value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"ELBO: kappa={value!r} must be a finite number >= 0")):
        elbo(kappa=value)


@pytest.mark.parametrize("value", [0, -5, 0.5, NAN, INF, True, "100", None], ids=repr)
def test_num_data_must_be_at_least_one(value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"ELBO: num_data={value!r} must be a finite number >= 1")):
        elbo(num_data=value)


@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, True, "64", None], ids=repr)
def test_num_samples_must_be_a_whole_number_of_at_least_one(value: object) -> None:
    expected = f"CategoricalLikelihood: num_samples={value!r} must be a whole number >= 1"
    with pytest.raises(ValueError, match=re.escape(expected)):
        mnvi.CategoricalLikelihood(num_samples=value)


def test_smallest_allowed_values_are_allowed() -> None:
    elbo(num_data=1, kappa=0)
    mnvi.CategoricalLikelihood(num_samples=1)
    mnvi.MultiplicativeNoise(prior_variance=1e-9)
    assert mnvi.Gaussian(torch.zeros(2), torch.zeros(2)).var.sum() == 0
    assert mnvi.Gaussian(torch.zeros(0), torch.zeros(0)).numel() == 0
    assert mnvi.Gaussian(torch.zeros(2).half(), torch.ones(2)).var.dtype == torch.float32


def test_broadcasting_of_incompatible_shapes_is_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        gaussian(2, 3) + gaussian(4)
    with pytest.raises(RuntimeError, match="must match the size"):
        gaussian(2, 3) * torch.ones(4)


def test_numpy_leaves_arithmetic_to_the_gaussian() -> None:
    x = mnvi.Gaussian(torch.ones(3), torch.ones(3))
    doubled = np.float32(2) * x
    assert isinstance(doubled, mnvi.Gaussian)
    assert torch.equal(doubled.var, torch.full((3,), 4.0))
    with pytest.raises(TypeError, match=r"not a numpy array; use its \.mean"):
        np.asarray(x)


def test_numbers_of_numpy_are_numbers() -> None:
    assert mnvi.MultiplicativeNoise(np.float32(0.5)).prior_variance == 0.5
    assert mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=np.int64(3), kappa=np.float64(0.1)).num_data == 3


def test_a_view_of_the_bits_is_refused() -> None:
    with pytest.raises(TypeError, match="a Gaussian's bits cannot be read as another dtype"):
        mnvi.Gaussian(torch.ones(2), torch.ones(2)).view(torch.int32)


def test_an_elementwise_function_of_two_random_values_is_refused() -> None:
    x, y = (mnvi.Gaussian(torch.ones(2), torch.ones(2)) for _ in range(2))
    with pytest.raises(TypeError, match="only the first argument"):
        mnvi.elementwise(lambda a, b: a * b)(x, y)


def test_a_matrix_product_with_itself_is_refused() -> None:
    x = mnvi.Gaussian(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(ValueError, match="not independent"):
        torch.matmul(x, x)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda x: torch.nn.functional.mse_loss(x, torch.ones(2)), "mnvi.ELBO"),
        (lambda x: x.tolist(), "x.mean or x.var"),
        (lambda x: torch.nn.LSTM(2, 2)(x[None]), "mnvi.convert replaces torch.s recurrent layers"),
        (lambda x: torch.nn.RNNCell(2, 2)(x), "mnvi.convert replaces torch.s recurrent layers"),
        (lambda x: torch.nn.RNNCell(2, 2, nonlinearity="relu")(x), "mnvi.convert replaces torch.s recurrent layers"),
    ],
)
def test_the_error_for_a_missing_rule_gives_advice_that_fits(call, hint: str) -> None:
    with pytest.raises(mnvi.NoRuleError, match=hint):
        call(mnvi.Gaussian(torch.ones(2), torch.ones(2)))


def test_mean_takes_the_names_of_numpy() -> None:
    x = mnvi.Gaussian(torch.ones(2, 4), torch.ones(2, 4))
    out = torch.mean(x, axis=1, keepdims=True)
    assert out.shape == (2, 1) and torch.equal(out.var, torch.full((2, 1), 0.25))


@pytest.mark.parametrize("dims", [(), []])
def test_mean_over_no_dimension_is_over_all_as_in_torch(dims) -> None:
    assert torch.mean(gaussian(4), dims).var == 0.25
    assert torch.mean(gaussian(4), axis=dims).var == 0.25


def test_the_error_for_a_special_function_has_its_public_name() -> None:
    with pytest.raises(mnvi.NoRuleError, match=r"torch\.special\.i0"):
        torch.special.i0(gaussian(2))


SMALL = mnvi.Gaussian(torch.ones(3), torch.ones(3))
JOINT = mnvi.JointGaussian(torch.ones(3), torch.eye(3))
MASK, COMPLEX = torch.tensor([True, False, True]), torch.ones(3) * 1j


@pytest.mark.parametrize("target", [SMALL, torch.ones(3)], ids=["Gaussian", "tensor"])
def test_masked_fill_with_a_gaussian_names_the_way_out(target) -> None:
    value = mnvi.Gaussian(torch.zeros(()), torch.ones(()))
    with pytest.raises(TypeError, match=r"masked_fill: value must be a number.*torch\.where\(mask, value, x\)"):
        target.masked_fill(MASK, value)
    assert torch.where(MASK, value, SMALL).var.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: SMALL + JOINT,
        lambda: JOINT + SMALL,
        lambda: SMALL - JOINT,
        lambda: SMALL * JOINT,
        lambda: SMALL @ JOINT,
        lambda: torch.maximum(SMALL, JOINT),
        lambda: torch.cat([SMALL, JOINT]),
    ],
)
def test_a_gaussian_and_a_joint_one_are_not_combined(call) -> None:
    with pytest.raises(TypeError, match="how two random values depend on each other is not tracked"):
        call()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("floor_divide", lambda: SMALL // 2),
        ("floor_divide", lambda: 2 // SMALL),
        ("floor_divide", lambda: torch.ones(3) // SMALL),
        ("remainder", lambda: SMALL % 2),
        ("remainder", lambda: 2 % SMALL),
        (r"torch\.exp\(x \* math\.log\(base\)\)", lambda: 2**SMALL),
        (r"torch\.exp\(x \* math\.log\(base\)\)", lambda: torch.ones(3) ** SMALL),
        (r"torch\.exp\(x \* math\.log\(base\)\)", lambda: torch.pow(2, SMALL)),
        ("JointGaussian", lambda: 2**JOINT),
    ],
)
def test_operators_without_a_rule_say_so(name, call) -> None:
    with pytest.raises(mnvi.NoRuleError, match=name):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: SMALL * COMPLEX,
        lambda: COMPLEX * SMALL,
        lambda: SMALL + COMPLEX,
        lambda: COMPLEX - SMALL,
        lambda: SMALL / COMPLEX,
        lambda: SMALL * 1j,
        lambda: SMALL @ COMPLEX,
        lambda: torch.cat([SMALL, COMPLEX]),
        lambda: torch.where(MASK, SMALL, COMPLEX),
        lambda: JOINT * COMPLEX,
    ],
)
def test_complex_operands_are_refused(call) -> None:
    with pytest.raises(TypeError, match="random values are real"):
        call()
