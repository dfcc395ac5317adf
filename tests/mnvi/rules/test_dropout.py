"""Dropout: exact moments, sampled masks, the identity in evaluation."""

import pytest
import torch
import torch.nn.functional as F
from rule_checks import assert_gradients_are_right, assert_half_precision_keeps_the_variance, gaussian
from torch import nn

import mnvi

DROPOUTS = {
    "dropout": (F.dropout, (3, 4)),
    "dropout1d": (F.dropout1d, (3, 4, 5)),
    "dropout2d": (F.dropout2d, (3, 4, 2, 2)),
    "dropout3d": (F.dropout3d, (3, 4, 2, 2, 2)),
    "alpha": (F.alpha_dropout, (3, 4)),
    "feature alpha": (F.feature_alpha_dropout, (3, 4, 2)),
    "torch.dropout": (lambda x, p, training: torch.dropout(x, p, training), (3, 4)),
    "torch.feature_dropout": (lambda x, p, training: torch.feature_dropout(x, p, training), (3, 4, 2)),
}
NUM_SAMPLES = 100_000


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("case", DROPOUTS)
def test_evaluation_and_a_rate_of_zero_hand_on_the_input_itself(case, p):
    function, shape = DROPOUTS[case]
    x = gaussian(*shape)
    assert function(x, p, training=p == 0) is x


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("case", DROPOUTS)
def test_moments_are_those_of_torchs_own_dropout(case, p):
    function, shape = DROPOUTS[case]
    x = gaussian(*shape)
    out = function(x, p, training=True)
    total = fourth = square = 0.0
    torch.manual_seed(0)
    for _ in range(NUM_SAMPLES // 20_000):
        draws = x.sample(20_000)  # [samples, *shape]; for a mask per channel each sample is an example of its own
        values = function(draws.flatten(0, 1), p, training=True).unflatten(0, (20_000, shape[0]))
        centred = values - out.mean
        total, square, fourth = total + values.sum(0), square + centred.square().sum(0), fourth + centred.pow(4).sum(0)
    mean, var, fourth = total / NUM_SAMPLES, square / NUM_SAMPLES, fourth / NUM_SAMPLES
    assert ((out.mean - mean).abs() < 5 * (out.var / NUM_SAMPLES).sqrt()).all()
    assert ((out.var - var).abs() < 5 * ((fourth - var.square()) / NUM_SAMPLES).sqrt()).all()


@pytest.mark.parametrize("case", DROPOUTS)
def test_dropping_everything_leaves_nothing(case):
    function, shape = DROPOUTS[case]
    out = function(gaussian(*shape), 1.0, training=True)
    assert (out.mean == 0).all()
    assert (out.var == 0).all()


@pytest.mark.parametrize("case", [c for c in DROPOUTS if "alpha" not in c])
def test_a_sampled_mask_is_the_same_for_mean_and_variance(case):
    function, shape = DROPOUTS[case]
    x = gaussian(*shape)
    with mnvi.options(dropout="sample"):
        out = function(x, 0.5, training=True)
    mask = out.mean / x.mean
    assert set(mask.round(decimals=9).unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(out.var, x.var * mask.square())
    if len(shape) > 2:  # whole channels
        assert torch.equal(mask.flatten(2).amin(2), mask.flatten(2).amax(2))


@pytest.mark.parametrize("case", ["alpha", "feature alpha"])
def test_sampled_masks_of_alpha_dropout_average_to_its_moments(case):
    function, shape = DROPOUTS[case]
    x = gaussian(*shape)
    expected = function(x, 0.3, training=True)
    many = mnvi.Gaussian(*(t.expand(20_000, *shape).flatten(0, 1) for t in (x.mean, x.var)))
    with mnvi.options(dropout="sample"):
        out = function(many, 0.3, training=True)
    means, variances = (t.unflatten(0, (20_000, shape[0])) for t in (out.mean, out.var))
    error = (means.var(0) / 20_000).sqrt()
    assert ((means.mean(0) - expected.mean).abs() < 5 * error).all()
    torch.testing.assert_close(variances.mean(0) + means.var(0), expected.var, rtol=0.03, atol=0)


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_a_rate_that_is_no_probability_is_refused(p):
    with pytest.raises(ValueError, match=f"p={p}"):
        F.dropout(gaussian(2), p)


def test_in_place_changes_the_object():
    x = gaussian(3, 4)
    before = x.mean
    assert nn.Dropout(0.5, inplace=True)(x) is x
    assert torch.equal(x.mean, before)
    torch.testing.assert_close(x.var, F.dropout(gaussian(3, 4), 0.5).var)


@pytest.mark.parametrize("function", [F.dropout, F.alpha_dropout])
def test_gradients_and_half_precision(function):
    assert_gradients_are_right(function, gaussian(3, 4), 0.3, training=True)
    assert_half_precision_keeps_the_variance(function, gaussian(3, 4), 0.3, training=True)


def test_compile_without_graph_breaks():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.2), nn.AlphaDropout(0.1))
    x = gaussian(2, 3, 4, 4)
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out.var, model(x).var)
