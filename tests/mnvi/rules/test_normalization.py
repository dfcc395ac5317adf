"""Normalisations against torch, sampling and naive statistics."""

import copy

import pytest
import torch
import torch.nn.functional as F
from rule_checks import (
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_moments_are_those_of_samples,
    assert_zero_variance_is_deterministic,
    gaussian,
    sampled,
)
from torch import nn

import mnvi

BATCH_NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def randomised(module):
    """Parameters and running statistics away from the identity."""
    generator = torch.Generator().manual_seed(3)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return module.double()


def image(dims, channels=4):
    return gaussian(3, channels, *(3, 4, 2)[:dims])


# Normalisations by statistics of the example's own entries.
OWN_STATISTICS = {
    "layer": (lambda: nn.LayerNorm(6), (3, 4, 6)),
    "layer over two": (lambda: nn.LayerNorm((4, 6)), (3, 4, 6)),
    "layer without weight": (lambda: nn.LayerNorm(6, elementwise_affine=False), (3, 6)),
    "rms": (lambda: nn.RMSNorm(6), (3, 4, 6)),
    "rms with eps": (lambda: nn.RMSNorm(6, eps=1e-3), (3, 6)),
    "group": (lambda: nn.GroupNorm(2, 4), (3, 4, 6)),
    "group, images": (lambda: nn.GroupNorm(2, 4), (3, 4, 2, 3)),
    "group, vectors": (lambda: nn.GroupNorm(2, 8), (3, 8)),
    "instance": (lambda: nn.InstanceNorm2d(4, affine=True), (3, 4, 2, 3)),
    "instance, one dimension": (lambda: nn.InstanceNorm1d(4), (3, 4, 6)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_batch_norm_scales_the_variance_as_the_paper_has_it(dims, training):
    x, module = image(dims), randomised(BATCH_NORMS[dims](4)).train(training)
    deterministic = copy.deepcopy(module)
    out = module(x)
    torch.testing.assert_close(out.mean, deterministic(x.mean))
    axes = [d for d in range(x.dim()) if d != 1]
    before = randomised(BATCH_NORMS[dims](4))
    statistic = x.mean.var(axes, correction=0) if training else before.running_var
    scale = module.weight.square() / (statistic + module.eps)
    torch.testing.assert_close(out.var, x.var * scale.view(-1, *(1 for _ in range(dims))))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_updated_once_and_from_the_means(momentum):
    x, module = image(2), nn.BatchNorm2d(4, momentum=momentum).double()
    deterministic = copy.deepcopy(module)
    module(x)
    deterministic(x.mean)
    assert module.num_batches_tracked == 1
    for name, buffer in deterministic.named_buffers():
        torch.testing.assert_close(dict(module.named_buffers())[name], buffer)


def test_batch_norm_in_evaluation_is_exact():
    assert_moments_are_those_of_samples(randomised(nn.BatchNorm2d(4)).eval(), image(2))


def test_batch_norm_without_running_statistics_uses_the_batch_in_evaluation_too():
    x, module = image(2), nn.BatchNorm2d(4, track_running_stats=False).double()
    torch.testing.assert_close(module.eval()(x).var, module.train()(x).var)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_variance_is_torchs(training):
    module = randomised(nn.BatchNorm2d(4)).train(training)
    x = image(2)
    out = copy.deepcopy(module)(mnvi.Gaussian(x.mean, torch.zeros_like(x.var)))
    torch.testing.assert_close(out.mean, module(x.mean))
    assert (out.var == 0).all()


def test_batch_norm_gradients_in_evaluation():
    def run(x, weight, bias):
        return F.batch_norm(x, running_mean, running_var, weight, bias)

    running_mean, running_var = torch.rand(2, 4, dtype=torch.float64)
    weight, bias = torch.rand(2, 4, dtype=torch.float64)
    assert_gradients_are_right(run, image(1), weight, bias)


def test_batch_norm_gradients_in_training():
    def run(x, weight, bias):
        return F.batch_norm(x, None, None, weight, bias, training=True)

    weight, bias = torch.rand(2, 4, dtype=torch.float64)
    assert_gradients_are_right(run, image(1), weight, bias)


def test_the_gradient_of_the_scale_changes_no_value():
    x = image(1)
    found = F.batch_norm(x, None, None, training=True)
    with mnvi.options(batch_norm="constant_scale"):
        constant = F.batch_norm(x, None, None, training=True)
    assert torch.equal(found.mean, constant.mean) and torch.equal(found.var, constant.var)


def test_the_gradients_of_the_paper_s_release_take_the_statistic_of_the_variance_as_constant():
    x = image(1)
    statistic = x.mean.var((0, 2), correction=0)
    leaves = [t.clone().requires_grad_() for t in (x.mean, x.var, *torch.rand(2, 4, dtype=torch.float64))]
    mean, var, weight, bias = leaves
    with mnvi.options(**mnvi.options.PAPER):
        out = F.batch_norm(mnvi.Gaussian(mean, var), None, None, weight, bias, training=True)
    expected_mean = F.batch_norm(mean, None, None, weight, bias, training=True)
    expected_var = var * (weight.square() / (statistic + 1e-5))[:, None]
    directions = torch.randn(2, *mean.shape, dtype=torch.float64)
    found = torch.autograd.grad((out.mean * directions[0] + out.var * directions[1]).sum(), leaves)
    expected = torch.autograd.grad((expected_mean * directions[0] + expected_var * directions[1]).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.gradcheck(
        lambda v, w: F.batch_norm(mnvi.Gaussian.trusted(x.mean, v), None, None, w, None, training=True).var,
        (var, weight),
    )


def test_batch_norm_of_half_precision_means_has_float32_statistics():
    x = image(2)
    low = mnvi.Gaussian(x.mean.bfloat16(), x.var.float())
    high = mnvi.Gaussian(low.mean.float(), low.var)
    out, expected = nn.BatchNorm2d(4)(low), nn.BatchNorm2d(4)(high)
    assert out.mean.dtype == torch.bfloat16
    assert out.var.dtype == torch.float32
    torch.testing.assert_close(out.var, expected.var, rtol=1e-5, atol=0)


def test_batch_norm_refuses_a_single_value_per_channel():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(4).double()(gaussian(1, 4))


@pytest.mark.parametrize("case", OWN_STATISTICS)
def test_zero_variance_gives_torchs_own(case):
    make, shape = OWN_STATISTICS[case]
    assert_zero_variance_is_deterministic(randomised(make()), gaussian(*shape))


@pytest.mark.parametrize("case", OWN_STATISTICS)
def test_gradients_with_respect_to_both_streams(case):
    make, shape = OWN_STATISTICS[case]
    assert_gradients_are_right(randomised(make()), gaussian(*shape))


@pytest.mark.parametrize("case", OWN_STATISTICS)
def test_half_precision(case):
    make, shape = OWN_STATISTICS[case]
    assert_half_precision_keeps_the_variance(randomised(make()).float(), gaussian(*shape))


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda z: F.layer_norm(z, [64]), 64),
        (lambda z: F.rms_norm(z, [64]), 64),
        (lambda z: F.group_norm(z[None], 1)[0] if z.dim() == 1 else F.group_norm(z, 1), 64),
        (lambda z: 8 * F.normalize(z, dim=-1), 64),
    ],
    ids=["layer", "rms", "group", "normalize"],
)
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 100.0])
def test_moments_are_within_the_documented_error_of_samples(function, size, scale):
    x = gaussian(size, scale=scale)
    out = function(x)
    mean, _, var, _ = sampled(function, x)
    assert (out.mean - mean).square().mean().sqrt() < 0.006
    assert (out.var.sqrt() / var.sqrt() - 1).square().mean().sqrt() < 0.06


def errors_against_samples(function, rows, size, scale, draws):
    """Root mean squares of the errors in means, and of the relative ones in standard deviations."""
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(rows, size, generator=generator, dtype=torch.float64)
    x = mnvi.Gaussian(mean, 2 * scale * torch.rand(rows, size, generator=generator, dtype=torch.float64))
    first = second = torch.zeros(rows, size, dtype=torch.float64)
    for _ in range(20):
        values = function(x.sample(draws, generator))
        first, second = first + values.sum(0) / (20 * draws), second + values.square().sum(0) / (20 * draws)
    out = function(x)
    ratio = out.var.sqrt() / (second - first.square()).sqrt()
    return (out.mean - first).square().mean().sqrt().item(), (ratio - 1).square().mean().sqrt().item()


def batch_normalised(z):
    """[..., channels, examples]"""
    if isinstance(z, mnvi.Gaussian):
        return F.batch_norm(z.T, None, None, training=True).T
    centred = z - z.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("size", "scale", "in_mean", "in_std"),
    [(128, 0.01, 0.005, 0.05), (128, 0.1, 0.05, 0.07), (128, 1.0, 0.3, 0.42)]
    + [(16, 0.01, 0.006, 0.15), (16, 0.1, 0.05, 0.17), (16, 1.0, 0.3, 0.5)],
)
def test_batch_norm_in_training_is_as_far_off_as_documented(size, scale, in_mean, in_std):
    error = errors_against_samples(batch_normalised, 2048 // size, size, scale, 500)
    assert error == pytest.approx((in_mean, in_std), rel=0.15)


@pytest.mark.parametrize(
    ("size", "scale", "in_mean", "in_std"),
    [(16, 0.01, 0.0006, 0.11), (16, 0.1, 0.004, 0.11), (16, 1.0, 0.013, 0.09)]
    + [(64, 0.01, 0.0003, 0.05), (64, 0.1, 0.0013, 0.05), (64, 1.0, 0.004, 0.03)],
)
def test_normalize_is_as_far_off_as_documented(size, scale, in_mean, in_std):
    error = errors_against_samples(lambda z: F.normalize(z, dim=-1), 8, size, scale, 5_000)
    assert error[0] * size**0.5 == pytest.approx(in_mean, rel=0.2, abs=2e-4)
    assert error[1] == pytest.approx(in_std, rel=0.15)


@pytest.mark.parametrize(
    ("size", "scale", "in_mean", "in_std"),
    [(16, 0.01, 0.0006, (0.09, 0.11)), (16, 0.1, 0.004, (0.08, 0.1)), (16, 1.0, 0.013, (0.05, 0.075))]
    + [(64, 0.01, 0.0003, (0.037, 0.05)), (64, 0.1, 0.0012, (0.034, 0.046)), (64, 1.0, 0.004, (0.022, 0.032))],
)
def test_layer_and_rms_norm_are_as_far_off_as_documented(size, scale, in_mean, in_std):
    for function, deviation in zip((F.layer_norm, F.rms_norm), in_std, strict=True):
        error = errors_against_samples(lambda z, norm=function: norm(z, [size]), 512 // size, size, scale, 5_000)
        assert error[0] == pytest.approx(in_mean, rel=0.2, abs=2e-4)
        assert error[1] == pytest.approx(deviation, rel=0.15)


def test_the_variance_of_an_entry_without_the_mean_of_all_is_exact():
    # With an eps that dwarfs the statistic of the samples, only the centring remains.
    x = gaussian(4, 5)
    assert_moments_are_those_of_samples(lambda z: F.layer_norm(z, [5], eps=1e12) * 1e6, x)


def test_a_single_entry_is_its_own_mean_and_leaves_the_bias():
    bias = torch.full((1,), 3.0, dtype=torch.float64)
    for out in (F.layer_norm(gaussian(4, 1), [1], None, bias), F.group_norm(gaussian(4, 2), 2) + 3.0):
        assert (out.mean == 3).all() and (out.var == 0).all()


def test_instance_norm_with_running_statistics_is_exact_and_updates_them():
    module = randomised(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    x = image(2)
    assert_moments_are_those_of_samples(module.eval(), x)
    deterministic = copy.deepcopy(module).train()
    module.train()(x)
    deterministic(x.mean)
    torch.testing.assert_close(module.running_mean, deterministic.running_mean)
    torch.testing.assert_close(module.running_var, deterministic.running_var)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_normalize(p):
    x = gaussian(3, 5)
    assert_zero_variance_is_deterministic(F.normalize, x, p=p, dim=-1)
    assert_gradients_are_right(F.normalize, x, p=p, dim=-1)


def test_normalized_noise_is_bounded_by_the_unit_sphere():
    noise = mnvi.Gaussian(torch.zeros(2, 4), torch.tensor([[1e-30], [1e6]]).expand(2, 4).contiguous())
    out = F.normalize(noise, dim=-1)
    torch.testing.assert_close(out.var[1], torch.full((4,), 0.25))
    assert (out.var <= 0.25).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.layer_norm(gaussian(2, 3), [4]), "layer_norm: normalized_shape=\\[4\\]"),
        (lambda: F.rms_norm(gaussian(2, 4), [7]), "rms_norm: normalized_shape=\\[7\\] does not fit"),
        (lambda: F.rms_norm(gaussian(2, 4), [1]), "rms_norm: normalized_shape=\\[1\\] does not fit"),
        (lambda: F.group_norm(gaussian(2, 3), 2), "num_groups=2"),
        (lambda: F.group_norm(gaussian(1, 3), 3), "group_norm: expected more than 1 value per group"),
        (lambda: F.instance_norm(gaussian(2, 3, 1)), "instance_norm: expected more than 1 value per channel"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def network():
    return nn.Sequential(
        nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm((4, 3, 4)), nn.RMSNorm((3, 4))
    )


@pytest.mark.parametrize("training", [True, False])
def test_compile_without_graph_breaks(training):
    module = network().train(training)
    x = image(2)
    x = mnvi.Gaussian(x.mean.float(), x.var.float())
    expected = copy.deepcopy(module)(x)
    out = torch.compile(module, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.var, expected.var)


def test_export():
    module, x = network().eval(), image(2)
    x = mnvi.Gaussian(x.mean.float(), x.var.float())
    out = torch.export.export(module, (x,)).module()(x)
    torch.testing.assert_close(out.var, module(x).var)


def test_vmap_over_networks():
    x = gaussian(5, 3, 4, 3)
    weight = torch.rand(5, 4, dtype=torch.float64)

    def run(x, weight):
        return F.layer_norm(F.batch_norm(x, None, None, weight, None, training=True), [3])

    out = torch.func.vmap(run)(x, weight)
    for i in range(5):
        torch.testing.assert_close(out.var[i], run(x[i], weight[i]).var)
