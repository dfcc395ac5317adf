"""mnvi.predict: what it returns for each likelihood and method."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mnvi

CLASSES = mnvi.CategoricalLikelihood()


def classifier() -> nn.Module:
    return mnvi.convert(
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), mnvi.MultiplicativeNoise(1.0, init_rho=0.0)
    )


def test_probabilities_and_entropies_of_classes() -> None:
    prediction = mnvi.predict(classifier(), torch.randn(20, 4), likelihood=CLASSES)
    assert prediction.probs is not None and prediction.mean is None
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(20))
    torch.testing.assert_close(prediction.total, torch.special.entr(prediction.probs).sum(1))  # the same samples
    torch.testing.assert_close(prediction.total, prediction.aleatoric + prediction.epistemic)
    assert bool((prediction.epistemic > 0).all())
    assert torch.equal(prediction.labels, prediction.probs.argmax(1))


def test_means_and_standard_deviations_of_numbers() -> None:
    net = mnvi.convert(mnvi.models.mlp(4), mnvi.MultiplicativeNoise(1.0))
    x = torch.randn(20, 4)
    prediction = mnvi.predict(net, x, likelihood=mnvi.GaussianLikelihood(), batch_size=7)
    expected = mnvi.GaussianLikelihood().predictive(net(x))
    torch.testing.assert_close(prediction.mean, expected.mean.detach())
    torch.testing.assert_close(prediction.total, expected.stddev.detach())
    torch.testing.assert_close(prediction.total**2, prediction.aleatoric**2 + prediction.epistemic**2)


def test_an_interval_holds_its_share_of_a_gaussian() -> None:
    prediction = mnvi.Prediction(torch.full((1,), 2.0), torch.zeros(1), torch.zeros(1), mean=torch.ones(1))
    lower, upper = prediction.interval(0.9)
    normal = torch.distributions.Normal(1.0, 2.0)
    assert float(normal.cdf(upper) - normal.cdf(lower)) == pytest.approx(0.9)


def test_printed_predictions_are_one_line() -> None:
    known = mnvi.training.Prediction(torch.full((4,), 0.5), torch.full((4,), 0.4), torch.full((4,), 0.1))
    assert str(known) == "4 predictions, mean uncertainty: total 0.5, aleatoric 0.4, epistemic 0.1"
    chosen = replace(known, refer=torch.tensor([True, False, False, False]))
    assert str(chosen).endswith("; 1 to refer")


def test_yes_or_no() -> None:
    prediction = mnvi.predict(nn.Linear(4, 1), torch.randn(9, 4), likelihood=mnvi.BernoulliLikelihood())
    assert prediction.probs is not None and prediction.probs.shape == (9, 1)
    assert torch.equal(prediction.labels, (prediction.probs > 0.5).long())


@pytest.mark.parametrize("method", ["deterministic", "mc_dropout", "ensemble", "mc_mfvi", "dvi"])
def test_every_method_predicts_the_same_twice(method: str) -> None:
    net = mnvi.methods.build(method, lambda: mnvi.models.mlp(4, dropout=0.1))
    x = torch.randn(6, 4)
    first, second = (mnvi.predict(net, x, likelihood=mnvi.GaussianLikelihood()).numpy() for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert (first["epistemic"] > 0).all() == (method != "deterministic")


def test_inputs_come_as_tensor_array_pair_loader_or_list() -> None:
    net, x = classifier(), torch.randn(10, 4)
    kinds = [
        x,
        x.double().numpy(),
        (x, torch.zeros(10)),
        DataLoader(TensorDataset(x, torch.zeros(10)), batch_size=10),
        [x],
    ]
    found = [mnvi.predict(net, data, likelihood=CLASSES).probs for data in kinds]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("function", [mnvi.predict, mnvi.evaluate])
@pytest.mark.parametrize("size", [0, 2.5, "16"])
def test_a_batch_size_that_is_no_whole_number_above_0_is_named(function, size) -> None:
    data = (torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match=rf"{function.__name__}: batch_size={size!r} must be a whole number >= 1"):
        function(classifier(), data, likelihood=CLASSES, batch_size=size)


def test_results_are_numpy_arrays_on_request_and_tensors_that_numpy_takes() -> None:
    prediction = mnvi.predict(classifier(), torch.randn(5, 4), likelihood=CLASSES, refer=0.4)
    arrays = prediction.numpy()
    assert set(arrays) == {"probs", "labels", "total", "aleatoric", "epistemic", "refer"}
    assert all(isinstance(value, np.ndarray) for value in arrays.values())
    assert np.mean(np.asarray(prediction.refer)) == pytest.approx(0.4)


def test_modes_generators_and_random_state_are_left_as_they_were() -> None:
    net = classifier().train()
    net[1].eval()
    generator = torch.Generator().manual_seed(5)
    likelihood = mnvi.CategoricalLikelihood(generator=generator)
    before, own = torch.get_rng_state(), generator.get_state()
    mnvi.predict(net, torch.randn(5, 4, generator=torch.Generator()), likelihood=likelihood)
    assert [module.training for module in net] == [True, False, True]
    assert torch.equal(torch.get_rng_state(), before) and likelihood.generator is generator
    assert torch.equal(generator.get_state(), own)


@pytest.mark.parametrize("kept", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_the_likelihood_of_the_training_is_remembered_and_is_no_part_of_the_network(kept) -> None:
    net = mnvi.convert(mnvi.models.mlp(4), mnvi.MultiplicativeNoise(1.0))
    names = list(net.state_dict())
    mnvi.fit(net, (torch.randn(20, 4), torch.randn(20)), epochs=1, progress=False)
    assert mnvi.predict(kept(net), torch.randn(2, 4)).mean is not None
    assert list(net.state_dict()) == names


def test_without_a_likelihood_the_error_says_what_to_give() -> None:
    with pytest.raises(ValueError, match="say what its output means"):
        mnvi.predict(nn.Linear(4, 2), torch.randn(2, 4))


@pytest.mark.parametrize(
    ("data", "message"), [(3, "expected inputs as a tensor or array"), ([], "data are empty"), (None, "NoneType")]
)
def test_data_of_another_kind_are_refused(data: Tensor, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        mnvi.predict(nn.Linear(4, 2), data, likelihood=CLASSES)


def test_labels_of_numbers_and_intervals_of_classes_are_refused() -> None:
    zero = torch.zeros(1)
    with pytest.raises(TypeError, match="numbers have no labels"):
        _ = mnvi.Prediction(zero, zero, zero, mean=zero).labels
    with pytest.raises(TypeError, match="classes have no interval"):
        mnvi.Prediction(zero, zero, zero, probs=torch.ones(1, 2) / 2).interval()


def test_a_prediction_depends_neither_on_its_batch_nor_on_its_place() -> None:
    net, x = classifier().double(), torch.randn(10, 4, dtype=torch.float64)
    together = mnvi.predict(net, x, likelihood=CLASSES)
    alone = [mnvi.predict(net, row, likelihood=CLASSES) for row in x.split(1)]
    for name in ("probs", "total", "aleatoric", "epistemic"):
        torch.testing.assert_close(torch.cat([getattr(one, name) for one in alone]), getattr(together, name))


def test_probabilities_with_noise_for_all_examples_are_those_of_independent_samples() -> None:
    net, x = classifier().double(), torch.randn(20, 4, dtype=torch.float64)
    found = mnvi.predict(net, x, likelihood=mnvi.CategoricalLikelihood(num_samples=4000)).probs
    logits = net(x).sample(40000, torch.Generator().manual_seed(3)).detach()
    expected = logits.softmax(-1)
    error = expected.std(0) / 4000**0.5
    assert bool(((found - expected.mean(0)).abs() < 5 * error).all())


def test_dense_predictions_keep_their_positions() -> None:
    net = mnvi.convert(nn.Conv2d(2, 3, 1), mnvi.MultiplicativeNoise(1.0, init_rho=0.0))
    likelihood = mnvi.CategoricalLikelihood(class_dim=1)
    x = torch.randn(2, 2, 4, 5)
    prediction = mnvi.predict(net, x, likelihood=likelihood)
    assert prediction.probs is not None and prediction.probs.shape == (2, 4, 5, 3)
    corner = mnvi.predict(net, x[:, :, :1, :1], likelihood=likelihood)
    torch.testing.assert_close(corner.probs, prediction.probs[:, :1, :1])
