"""Factored variances: exact where squared weights are an outer product, and as wrong elsewhere as ``miss`` says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import mnvi
from mnvi.layers.convolution import geometry
from mnvi.moments import factored
from mnvi.moments.outer_products import factors, miss, product

KINDS = {
    "linear": (nn.Linear(24, 16), (3, 24)),
    "linear, sequence": (nn.Linear(24, 16), (2, 3, 24)),
    "linear, unbatched": (nn.Linear(24, 16), (24,)),
    "conv1d": (nn.Conv1d(8, 16, 3, padding=2, dilation=2), (2, 8, 9)),
    "conv2d": (nn.Conv2d(4, 16, 3, padding=1), (2, 4, 5, 6)),
    "conv2d, strided": (nn.Conv2d(4, 16, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 4, 7, 6)),
    "conv2d, one tap": (nn.Conv2d(24, 16, 1), (2, 24, 3, 3)),
    "conv2d, one tap, strided": (nn.Conv2d(24, 16, 1, stride=2), (2, 24, 5, 5)),
    "conv2d, unbatched": (nn.Conv2d(4, 16, 3), (4, 5, 5)),
    "conv2d, grouped": (nn.Conv2d(8, 32, 3, groups=2), (2, 8, 5, 5)),
    "conv2d, circular": (nn.Conv2d(4, 16, 3, padding=1, padding_mode="circular"), (2, 4, 5, 5)),
    "conv2d, same": (nn.Conv2d(4, 16, 3, padding="same", bias=False), (2, 4, 5, 5)),
    "conv3d": (nn.Conv3d(3, 16, 2), (1, 3, 3, 4, 3)),
    "transposed 1d": (nn.ConvTranspose1d(8, 16, 3, stride=2, padding=1, output_padding=1), (2, 8, 4)),
    "transposed 2d, grouped": (nn.ConvTranspose2d(8, 32, 3, groups=2), (2, 8, 3, 3)),
    "transposed 3d": (nn.ConvTranspose3d(3, 16, 2), (1, 3, 2, 2, 2)),
}
POSTERIORS = {
    "mnvi": mnvi.MultiplicativeNoise(0.3, init_rho=-1.0, variance="factored"),
    "mfvi": mnvi.MeanField(0.3, init_log_var=-3.0, variance="factored"),
    "smfvi": mnvi.SharedMeanField(0.3, init_log_var=-3.0, variance="factored"),
}


def made(kind: str, posterior: mnvi.Posterior, outer: bool = False) -> tuple[nn.Module, mnvi.Gaussian]:
    """A layer in float64 with different noise for every input, and a random input."""
    torch.manual_seed(0)
    original, shape = KINDS[kind]
    layer = mnvi.convert(original.double(), posterior)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name in ("rho", "log_var", "bias_log_var"):
                parameter.add_(torch.randn_like(parameter))
        layer.weight.copy_(torch.randn_like(layer.weight))
        if outer:
            of = factors(layer.geometry, layer.weight.square())
            layer.weight.copy_(product(layer.geometry, of).sqrt() * layer.weight.sign())
            if isinstance(posterior, mnvi.MeanField):
                layer.log_var.copy_(layer.weight.square().log() - 1)
    return layer, mnvi.Gaussian(torch.randn(shape).double(), torch.rand(shape).double())


def exact(layer: nn.Module) -> nn.Module:
    changed = mnvi.conversion.copying.copied("test", layer)
    changed.posterior = mnvi.posteriors.with_variance(layer.posterior, "exact")
    assert not changed.posterior.is_factored(changed)
    return changed


@pytest.mark.parametrize("kind", KINDS)
def test_factors_keep_row_and_column_sums(kind: str) -> None:
    layer = KINDS[kind][0]
    affine, matrix = geometry(layer), torch.rand(layer.weight.shape, dtype=torch.float64)
    of = factors(affine, matrix)
    assert of.rows.shape == (affine.out_units(matrix),)
    again = factors(affine, product(affine, of))
    torch.testing.assert_close(again, of)
    torch.testing.assert_close(product(affine, of).sum(), matrix.sum())
    assert product(affine, of).shape == matrix.shape


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("posterior", ["mnvi", "mfvi"])
def test_moments_are_exact_for_an_outer_product(kind: str, posterior: str, known: bool) -> None:
    layer, x = made(kind, POSTERIORS[posterior], outer=True)
    given = x.mean if known else x
    assert layer.posterior.is_factored(layer)
    expected = exact(layer)(given)
    torch.testing.assert_close(layer(given).mean, expected.mean)
    torch.testing.assert_close(layer(given).var, expected.var)


@pytest.mark.parametrize("kind", KINDS)
def test_shared_variances_are_an_outer_product_already(kind: str) -> None:
    """For a known input; the squared means that meet an input's variance are factored."""
    layer, x = made(kind, POSTERIORS["smfvi"])
    torch.testing.assert_close(layer(x.mean).var, exact(layer)(x.mean).var)


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kind", ["linear", "conv2d", "conv2d, grouped", "transposed 2d, grouped"])
def test_variances_summed_over_outputs_are_exact(kind: str, posterior: str) -> None:
    layer, x = made(kind, POSTERIORS[posterior])
    groups, dim = layer.geometry.groups, layer.geometry.channel_dim
    sums = [net(x).var.unflatten(dim, (groups, -1)).sum(dim) for net in (layer, exact(layer))]
    torch.testing.assert_close(*sums)
    assert not torch.allclose(layer(x).var, exact(layer)(x).var, rtol=0.01)


def test_moments_match_sampled_weights_for_an_outer_product() -> None:
    """Variances within five standard errors of 100,000 samples of weights and inputs."""
    layer, x = made("linear, unbatched", POSTERIORS["mnvi"], outer=True)
    count = 100_000
    with torch.no_grad():
        noise = torch.randn(count, *layer.weight.shape, dtype=torch.float64)
        weights = layer.weight + layer.weight_variance().sqrt() * noise
        centred = (weights @ x.sample(count)[..., None])[..., 0] + layer.bias - layer(x).mean
        squares = centred.square()
        error = squares.std(0) / count**0.5
        assert ((squares.mean(0) - layer(x).var).abs() < 5 * error).all()


@pytest.mark.parametrize("kind", ["linear", "conv2d, one tap"])
def test_miss_is_the_error_for_second_moments_that_vary_independently(kind: str) -> None:
    """u is exponential: independent, with a standard deviation of its mean. 20,000 inputs; within 5 %."""
    torch.manual_seed(0)
    layer = KINDS[kind][0]
    affine, matrix = geometry(layer), torch.randn(layer.weight.shape).double().square()
    shape = (20_000, 24) if kind == "linear" else (20_000, 24, 1, 1)
    u = -torch.rand(shape).double().log()
    of = factors(affine, matrix)
    missed = affine(u, matrix) - factored.spread_out(affine, of.rows, factored.summed(affine, u, of.columns))
    error = missed.square().mean(0).sum().sqrt() / of.rows.norm()
    torch.testing.assert_close(error, miss(affine, matrix), rtol=0.05, atol=0.0)


def test_gaussian_weights_miss_by_the_root_of_two_over_the_fan_in() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(256, 512).square()
    assert miss(mnvi.moments.affine.Affine(), matrix).item() == pytest.approx((2 / 512) ** 0.5, rel=0.05)


def test_zero_weights_have_zero_variance_and_gradient() -> None:
    layer, x = made("conv2d", POSTERIORS["mnvi"])
    nn.init.zeros_(layer.weight)
    var = layer(x).var
    var.sum().backward()
    assert (var == 0).all() and (layer.weight.grad == 0).all() and (layer.rho.grad == 0).all()
    assert miss(layer.geometry, layer.weight.detach().square()) == 0


def outputs(layer: nn.Module, x: mnvi.Gaussian, known: bool):
    leaves = [x.mean.clone().requires_grad_(not known), x.var.clone().requires_grad_()]
    names = [name for name, _ in layer.named_parameters()]

    def call(mean: Tensor, var: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        given = mean if known else mnvi.Gaussian.trusted(mean, var)
        out = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (given,))
        return out.mean, out.var

    return call, (*leaves, *(p.detach().clone().requires_grad_() for p in layer.parameters()))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kind", ["linear", "conv2d, strided", "conv2d, unbatched", "conv2d, one tap"])
def test_gradients_are_those_of_the_plain_formula(kind: str, posterior: str, known: bool) -> None:
    """The hand-written backward passes against autograd through torch's own convolution, as torch.func uses it."""
    layer, x = made(kind, POSTERIORS[posterior])
    call, leaves = outputs(layer, x, known)
    torch.manual_seed(1)
    weights = [torch.randn_like(out) for out in call(*leaves)]

    def total(*leaves: Tensor) -> Tensor:
        return sum((w * out).sum() for w, out in zip(weights, call(*leaves), strict=True))

    wanted = [i for i, leaf in enumerate(leaves) if leaf.requires_grad and not (known and i == 1)]
    found = torch.autograd.grad(total(*leaves), [leaves[i] for i in wanted])
    plain = torch.func.grad(total, tuple(wanted))(*(leaf.detach() for leaf in leaves))
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("posterior", ["mnvi", "mfvi"])
def test_gradcheck(posterior: str) -> None:
    layer, x = made("conv1d", POSTERIORS[posterior])
    call, leaves = outputs(layer, x[:1], known=False)
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


def test_gradients_are_right_with_the_channels_last() -> None:
    layer, x = made("conv2d, strided", POSTERIORS["mnvi"])
    grads = []
    for form in (torch.contiguous_format, torch.channels_last):
        given = x.map(lambda t, form=form: t.clone(memory_format=form).requires_grad_())
        layer.zero_grad()
        layer(given).var.square().sum().backward()
        grads.append([given.mean.grad, given.var.grad, layer.weight.grad.clone(), layer.rho.grad.clone()])
    torch.testing.assert_close(*grads)


def test_kl_stays_exact() -> None:
    layer, _ = made("conv2d", POSTERIORS["mnvi"])
    torch.testing.assert_close(mnvi.kl_divergence(layer), mnvi.kl_divergence(exact(layer)), rtol=0, atol=0)


def test_autocast_keeps_variances_in_float32() -> None:
    layer, x = made("conv2d", POSTERIORS["mnvi"])
    layer, x = layer.float(), x.map(lambda t: t.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    assert (out.mean.dtype, out.var.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.var, layer(x).var)


@pytest.mark.parametrize(
    ("layer", "factored"),
    [
        (nn.Linear(23, 16), True),
        (nn.Linear(22, 16), False),
        (nn.Linear(23, 15), False),
        (nn.Conv2d(3, 64, 3), True),
        (nn.Conv2d(64, 64, 3, groups=64), False),
        (nn.ConvTranspose2d(8, 16, 3), True),
        (nn.ConvTranspose2d(8, 16, 3, groups=2), False),
    ],
)
def test_small_layers_stay_exact(layer: nn.Module, factored: bool) -> None:
    converted = mnvi.convert(layer, POSTERIORS["mnvi"])
    assert converted.posterior.is_factored(converted) is factored


def test_a_networks_last_layer_stays_exact() -> None:
    net = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 100))
    layers = mnvi.bayesian_layers(mnvi.convert(net, POSTERIORS["mnvi"]))
    assert [layer.posterior.variance for layer in layers] == ["factored", "exact"]


def test_tied_last_layer_keeps_the_posterior_of_its_twin() -> None:
    net = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24))
    net[2].weight = net[0].weight
    layers = mnvi.bayesian_layers(mnvi.convert(net, POSTERIORS["mnvi"]))
    assert [layer.posterior.variance for layer in layers] == ["factored", "factored"]


@pytest.mark.parametrize("kind", [mnvi.MultiplicativeNoise, mnvi.MeanField, mnvi.SharedMeanField])
def test_unknown_form_of_the_variance_is_named(kind: type) -> None:
    with pytest.raises(ValueError, match=r"variance='fast' must be 'exact' or 'factored'"):
        kind(1.0, variance="fast")


def test_replicas_end_as_if_trained_alone() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(24, 24), torch.randn(24)) for _ in range(4)]

    def build(k: int) -> mnvi.Objective:
        torch.manual_seed(k)
        net = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))
        return mnvi.Objective(mnvi.convert(net, POSTERIORS["mnvi"]), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=24))

    recipe = mnvi.replicas.Recipe(epochs=2, batch_size=24, learning_rate=0.01)
    together = mnvi.replicas.train(build, data, range(4), recipe, compile=False)
    alone = build(1)
    optimizer = torch.optim.SGD(alone.parameters(), recipe.learning_rate)
    for epoch in range(recipe.epochs):
        optimizer.zero_grad()
        alone(*data[1], epoch).loss.backward()
        optimizer.step()
    assert alone.net[0].posterior.is_factored(alone.net[0])
    for name, parameter in together.module(1).named_parameters():
        torch.testing.assert_close(alone.get_parameter(name), parameter, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)
@pytest.mark.parametrize("kind", ["conv2d", "conv2d, one tap"])
@pytest.mark.parametrize("step", ["training", "inference"])
def test_variances_lie_in_memory_as_the_means_do(kind: str, posterior: mnvi.Posterior, step: str) -> None:
    """Otherwise the activation after the layer cannot read both in one pass."""
    layer, x = made(kind, posterior)
    if step == "inference":
        layer = mnvi.optimize_for_inference(layer, compile=False)
    for form in (torch.contiguous_format, torch.channels_last):
        moments = (t.detach().contiguous(memory_format=form) for t in (x.mean, x.var))
        with torch.set_grad_enabled(step == "training"):
            out = layer(mnvi.Gaussian(*moments))
        assert out.var.stride() == out.mean.stride()
        assert out.var.is_contiguous(memory_format=form)
