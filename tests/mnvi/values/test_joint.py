"""The full-covariance value, its rules, DVI and its empirical-Bayes prior."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils import _pytree as pytree

import mnvi
from mnvi.moments import joint
from mnvi.values.joint import JointGaussian

STANDARD_ERRORS = 5


def random_joint(*shape, dtype=torch.float64, scale=1.0):
    factor = torch.randn(*shape, shape[-1], dtype=dtype)
    return JointGaussian(torch.randn(*shape, dtype=dtype), scale * factor @ factor.mT / shape[-1])


def independent(*shape):
    return JointGaussian.trusted(torch.randn(*shape).double(), torch.rand(*shape).double() + 0.1)


def known(*shape):
    return JointGaussian.trusted(torch.randn(*shape).double())


KINDS = {"full": random_joint, "independent": independent, "known": known}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def written_out(x):
    return JointGaussian(x.mean, x.cov)


def assert_same(x, y):
    torch.testing.assert_close(x.mean, y.mean)
    torch.testing.assert_close(x.cov, y.cov)


def assert_moments(x, samples):
    """Mean and covariance of samples [S, n] agree with x within 5 standard errors, entry by entry."""
    root = math.sqrt(len(samples))
    centred = samples - samples.mean(0)
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert ((samples.mean(0) - x.mean).abs() <= STANDARD_ERRORS * samples.std(0) / root).all()
    assert ((products.mean(0) - x.cov).abs() <= STANDARD_ERRORS * products.std(0) / root).all()


# The value


@pytest.mark.parametrize(
    ("mean", "cov", "error", "message"),
    [
        ([0.0], torch.ones(1, 1), TypeError, "mean must be a torch.Tensor"),
        (torch.zeros(2, dtype=torch.long), torch.ones(2, 2), TypeError, "floating-point"),
        (torch.zeros(3, 2), torch.ones(3, 2), ValueError, r"expected \[..., n\] and \[..., n, n\]"),
        (torch.tensor(0.0), torch.tensor(1.0), ValueError, "expected"),
        (torch.zeros(2), torch.ones(2, 2).double(), TypeError, "convert one"),
        (torch.zeros(2), torch.ones(2, 2, device="meta"), ValueError, "move one"),
        (torch.zeros(2), torch.tensor([[1.0, math.nan], [math.nan, 1.0]]), ValueError, "NaN or infinite"),
        (torch.zeros(2), torch.tensor([[1.0, 0.0], [0.0, -0.5]]), ValueError, "-0.5 on its diagonal"),
    ],
)
def test_bad_values_are_refused(mean, cov, error, message):
    with pytest.raises(error, match=message):
        JointGaussian(mean, cov)


@every_kind
def test_variances_are_the_diagonal_of_the_covariance(make):
    x = make(4, 3)
    assert x.cov.shape == (4, 3, 3)
    torch.testing.assert_close(x.var, x.cov.diagonal(dim1=-2, dim2=-1))
    marginals = x.marginals()
    assert isinstance(marginals, mnvi.Gaussian) and torch.equal(marginals.var, x.var)


@every_kind
def test_pickle_copy_and_pytree_return_the_same_value(make):
    x = make(4, 3)
    leaves, structure = pytree.tree_flatten(x)
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), pytree.tree_unflatten(leaves, structure)):
        assert type(y) is JointGaussian
        assert_same(x, y)


def test_repr_shows_mean_and_covariance():
    x = JointGaussian(torch.zeros(1), torch.ones(1, 1))
    assert repr(x) == "JointGaussian(mean=tensor([0.]), cov=tensor([[1.]]))"


@every_kind
def test_indexing_picks_batch_and_entries(make):
    x = make(5, 4)
    assert_same(x[2], JointGaussian(x.mean[2], x.cov[2]))
    assert_same(x[1:3], JointGaussian(x.mean[1:3], x.cov[1:3]))
    chosen = [2, 0]
    assert_same(x[..., chosen], JointGaussian(x.mean[:, chosen], x.cov[:, chosen][:, :, chosen]))
    assert_same(x[1:3, :2], JointGaussian(x.mean[1:3, :2], x.cov[1:3, :2, :2]))
    one = x[..., -1]
    assert isinstance(one, mnvi.Gaussian)
    assert torch.equal(one.mean, x.mean[:, -1]) and torch.equal(one.var, x.var[:, -1])


MASK = torch.tensor([True, False, True, False, True])
INDICES = [
    (None, 0), (0, None), (slice(None), None), (0, None, 1), (None, 0, 1), (True, 0), (True, 0, 1), (None, ..., 1),
    (0, ...), (0, 1, ...), (..., 1), (MASK, 1), (MASK, slice(1, 3)), ([0, 3], 1), ([0, 3], slice(1, 3)), (0, [2, 0]),
    (slice(1, 4), [2, 0]), (MASK.tolist(), 1), (0, torch.tensor(1)), (0, np.int64(1)), (MASK.numpy(), 1), (range(2), 1),
]  # fmt: skip


@every_kind
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_an_index_gives_the_shape_and_the_entries_it_gives_a_tensor(make, index):
    for shape, place in (((5, 4), index), ((2, 5, 4), (1, *index))):
        x = make(*shape)
        out = x[place]
        assert torch.equal(out.mean, x.mean[place])
        assert torch.equal(out.var, x.var[place])
        if isinstance(out, JointGaussian):
            assert out.cov.shape == (*out.shape, out.shape[-1])


@pytest.mark.parametrize(
    "index",
    [torch.ones(2, 3, dtype=torch.bool), (0, 1, None), (0, 1, 2), (..., 0, 1), (..., None), (..., True)],
    ids=repr,
)
def test_an_index_that_would_tear_the_covariance_is_refused(index):
    with pytest.raises(IndexError, match=r"x\[batch\]"):
        random_joint(2, 3)[index]


@pytest.mark.parametrize("first", [[0, 1], torch.tensor([0, 1]), torch.tensor([True, True])], ids=repr)
@pytest.mark.parametrize("second", [[1, 2], torch.tensor([1, 2]), torch.tensor([True, False, True])], ids=repr)
def test_pairs_of_examples_and_entries_are_refused_instead_of_crossed(first, second):
    with pytest.raises(IndexError, match="pairs each example with an entry"):
        random_joint(2, 3)[first, second]


@every_kind
def test_a_cast_to_integers_is_refused(make):
    with pytest.raises(TypeError, match="only be converted to a floating-point dtype"):
        make(2, 3).to(torch.long)


def test_samples_have_the_covariance():
    x = random_joint(3)
    samples = x.sample(200_000, torch.Generator().manual_seed(1))
    assert samples.shape == (200_000, 3)
    assert_moments(x, samples)


def test_samples_repeat_with_a_generator():
    x = random_joint(2, 3)
    first, second = (x.sample(4, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)


def test_samples_of_an_impossible_covariance_keep_the_variances():
    cov = torch.tensor([[4.0, 1.99, -1.99], [1.99, 1.0, 0.99], [-1.99, 0.99, 1.0]]).double()
    assert torch.linalg.eigvalsh(cov).min() < -0.1
    x = JointGaussian(torch.zeros(3).double(), cov)
    samples = x.sample(200_000, torch.Generator().manual_seed(1))
    squares = samples.square()
    assert ((squares.mean(0) - x.var).abs() <= STANDARD_ERRORS * squares.std(0) / math.sqrt(len(squares))).all()


def test_samples_of_singular_covariances_are_finite_with_finite_gradients():
    cov = torch.zeros(3, 2, 2)
    cov[1] = 1.0
    cov[2, 0, 0] = 1.0
    cov.requires_grad_()
    samples = JointGaussian(torch.zeros(3, 2), cov).sample(8)
    samples.square().sum().backward()
    assert samples.isfinite().all() and (samples[:, 0] == 0).all()
    assert cov.grad.isfinite().all()


# Rules


@every_kind
def test_arithmetic_with_known_numbers_is_an_affine_map(make):
    x, shift, factor = make(4, 3), torch.randn(3).double(), torch.randn(3).double()

    def expect(y, mean, scale):
        matrix = scale * torch.eye(3).double()
        assert_same(y, JointGaussian.trusted(mean, matrix @ x.cov @ matrix))

    expect(x + 2, x.mean + 2, 1)
    expect(shift + x, x.mean + shift, 1)
    expect(torch.add(shift, x, alpha=3), shift + 3 * x.mean, 3)
    expect(x - shift, x.mean - shift, 1)
    expect(1 - x, 1 - x.mean, -1)
    expect(-x, -x.mean, -1)
    expect(x * 3, x.mean * 3, 3)
    expect(factor * x, x.mean * factor, factor)
    expect(x / factor, x.mean / factor, 1 / factor)


def test_broadcasting_a_tensor_over_the_batch_repeats_the_covariance():
    x = random_joint(3)
    y = x + torch.zeros(5, 3).double()
    assert y.mean.shape == (5, 3) and y.cov.shape == (5, 3, 3)


def test_two_random_values_are_not_combined_silently():
    x = random_joint(2, 3)
    for other in (x, random_joint(2, 3), x.marginals()):
        with pytest.raises(TypeError, match="not tracked"):
            x + other
        with pytest.raises(TypeError, match="not tracked"):
            x * other


def test_an_operation_without_rule_is_named():
    with pytest.raises(mnvi.NoRuleError, match=r"sigmoid on a JointGaussian; .*mnvi\.covariance\.rule"):
        torch.sigmoid(random_joint(2, 3))


def test_flatten_passes_and_reshape_is_refused():
    x = random_joint(2, 3)
    assert_same(nn.Flatten()(x), x)
    with pytest.raises(ValueError, match="cannot become"):
        x.reshape(3, 2)
    assert known(2, 3, 4).flatten(1).shape == (2, 12)


def test_dropout_is_the_identity_in_evaluation_and_exact_in_training():
    x, layer = random_joint(3), nn.Dropout(0.3)
    assert_same(layer.eval()(x), x)
    samples = F.dropout(x.sample(200_000, torch.Generator().manual_seed(1)), 0.3)
    assert_moments(layer.train()(x), samples)


def test_dropout_by_a_probability_outside_its_range_is_refused():
    for p in (2.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"p={p} must be a finite number >= 0 and <= 1"):
            F.dropout(random_joint(3), p)


@pytest.mark.parametrize("choice", ["variance", "sample"])
def test_dropout_of_everything_leaves_zeros(choice):
    with mnvi.options(dropout=choice):
        y = F.dropout(random_joint(3), 1.0)
    assert (y.mean == 0).all() and (y.cov == 0).all()


def test_dropout_can_draw_one_mask():
    x = random_joint(64)
    with mnvi.options(dropout="sample"):
        y = F.dropout(x, 0.5)
    dropped = y.mean == 0
    assert 0 < dropped.sum() < 64
    assert (y.cov[dropped] == 0).all()
    torch.testing.assert_close(y.cov[~dropped][:, ~dropped], 4 * x.cov[~dropped][:, ~dropped])


def test_in_place_arithmetic_is_seen_under_every_name():
    x = random_joint(2, 3)
    alias, expected = x, x * 2 + 1
    x *= 2
    x += 1
    assert x is alias
    assert_same(alias, expected)
    with pytest.raises(ValueError, match=r"cannot change a JointGaussian of shape \(2, 3\) to \(4, 2, 3\)"):
        x += torch.zeros(4, 2, 3).double()


def test_a_tensor_does_not_take_in_a_random_value_in_place():
    tensor = torch.zeros(2, 3).double()
    with pytest.raises(RuntimeError, match="in place"):
        tensor += random_joint(2, 3)


def test_in_place_relu_changes_the_value_itself():
    x = random_joint(2, 3)
    expected = torch.relu(copy.deepcopy(x))
    assert nn.ReLU(inplace=True)(x) is x
    assert_same(x, expected)


# Linear layers


@every_kind
@pytest.mark.parametrize("posterior", [mnvi.MeanField(1.0, -1.0), mnvi.MultiplicativeNoise(1.0, 0.0)])
def test_linear_layer_has_the_moments_of_sampled_weights(make, posterior):
    layer = mnvi.convert(nn.Linear(3, 2).double(), posterior)
    x, count = make(3), 200_000
    generator = torch.Generator().manual_seed(1)
    weight = mnvi.Gaussian(layer.weight, layer.weight_variance()).sample(count, generator)
    bias_variance = layer.bias_variance()
    bias = layer.bias
    if bias_variance is not None:
        bias = mnvi.Gaussian(layer.bias, bias_variance).sample(count, generator)
    samples = (weight @ x.sample(count, generator).unsqueeze(-1)).squeeze(-1) + bias
    assert_moments(layer(x), samples.detach())


@every_kind
def test_zeros_left_out_change_nothing(make):
    x, layer = make(4, 3), mnvi.convert(nn.Linear(3, 2).double(), mnvi.MeanField(1.0, -1.0))
    assert_same(layer(x), layer(written_out(x)))
    assert_same(torch.relu(layer(x)), torch.relu(layer(written_out(x))))
    assert_same(torch.relu(x), torch.relu(written_out(x)))


def test_a_known_layer_only_transforms_the_covariance():
    x, layer = random_joint(4, 3), nn.Linear(3, 2).double()
    assert_same(layer(x), JointGaussian(layer(x.mean), layer.weight @ x.cov @ layer.weight.T))


def test_wrong_number_of_inputs_is_named():
    layer = mnvi.convert(nn.Linear(3, 2), mnvi.MeanField(1.0))
    with pytest.raises(ValueError, match="expected 3 input units"):
        layer(JointGaussian(torch.zeros(1, 4), torch.zeros(1, 4, 4)))


# ReLU


def pair(m_i, m_j, rho, std_i=1.0, std_j=1.0):
    """Bivariate Gaussians with standardised means m and correlation rho."""
    std = torch.stack([std_i * torch.ones_like(rho), std_j * torch.ones_like(rho)], -1)
    corner = rho[..., None, None] * (1 - torch.eye(2, dtype=rho.dtype)) + torch.eye(2, dtype=rho.dtype)
    return JointGaussian.trusted(torch.stack([m_i, m_j], -1) * std, corner * std.unsqueeze(-1) * std.unsqueeze(-2))


def exact_relu_covariance(m_i, m_j, rho, nodes=100):
    """ρΦΦ + ∫₀^ρ (ρ−t) φ₂(m_i, m_j; t) dt for unit variances, from ∂²Cov/∂ρ² = φ₂, with t = sin θ."""
    points, weights = (torch.from_numpy(part) / 2 for part in np.polynomial.legendre.leggauss(nodes))
    theta = rho.asin().unsqueeze(-1) * (points + 0.5)
    a, b = m_i.unsqueeze(-1), m_j.unsqueeze(-1)
    density = torch.exp(-(a**2 - 2 * a * b * theta.sin() + b**2) / (2 * theta.cos() ** 2))
    integral = ((rho.unsqueeze(-1) - theta.sin()) * density * weights).sum(-1) * rho.asin() / (2 * math.pi)
    return rho * torch.special.ndtr(m_i) * torch.special.ndtr(m_j) + integral


def relu_grid(largest):
    rho = torch.linspace(-largest, largest, 41).double()
    mean = torch.linspace(-4, 4, 41).double()
    return torch.meshgrid(mean, mean, rho, indexing="ij")


def test_the_quadrature_that_relu_is_compared_with_agrees_with_sampling():
    m_i, m_j, rho = torch.tensor([0.8, 0.8, -0.3]), torch.tensor([0.8, -0.8, 1.0]), torch.tensor([-0.95, 0.95, 0.6])
    inputs = (m_i.double(), m_j.double(), rho.double())
    exact = exact_relu_covariance(*inputs)
    z = torch.relu(pair(*inputs).sample(400_000, torch.Generator().manual_seed(1)))
    products = (z - z.mean(0)).prod(-1)
    assert ((products.mean(0) - exact).abs() <= STANDARD_ERRORS * products.std(0) / math.sqrt(len(z))).all()


@pytest.mark.parametrize(("largest", "bound"), [(0.5, 1.5e-4), (0.95, 0.006), (1.0, 0.015)])
def test_relu_covariance_error_is_what_the_docstring_says(largest, bound):
    m_i, m_j, rho = relu_grid(largest)
    error = (torch.relu(pair(m_i, m_j, rho)).cov[..., 0, 1] - exact_relu_covariance(m_i, m_j, rho)).abs().max()
    assert 0.8 * bound < error < bound


def test_relu_covariance_is_exact_at_zero_mean():
    rho = torch.linspace(-0.999, 0.999, 101).double()
    zero = torch.zeros_like(rho)
    torch.testing.assert_close(
        torch.relu(pair(zero, zero, rho)).cov[..., 0, 1], exact_relu_covariance(zero, zero, rho), rtol=0, atol=1e-7
    )


def test_relu_diagonal_is_the_exact_variance_and_mean():
    x = random_joint(4, 5)
    y = torch.relu(x)
    expected = torch.relu(x.marginals())
    torch.testing.assert_close(y.mean, expected.mean)
    torch.testing.assert_close(y.var, expected.var)


def test_relu_scales_with_its_input():
    m_i, m_j, rho = (t.flatten() for t in relu_grid(0.9))
    unit, scaled = torch.relu(pair(m_i, m_j, rho)), torch.relu(pair(m_i, m_j, rho, 10.0, 0.1))
    torch.testing.assert_close(scaled.cov[:, 0, 1], unit.cov[:, 0, 1])
    torch.testing.assert_close(scaled.cov[:, 0, 0], 100 * unit.cov[:, 0, 0])


def test_relu_series_and_formula_meet():
    edge = joint._SERIES_BELOW
    rho = torch.tensor([edge - 1e-9, edge + 1e-9], dtype=torch.float64)
    below, above = joint._asin_remainder(rho)
    torch.testing.assert_close(below, above, rtol=1e-8, atol=0)


def test_relu_in_float32_is_as_good_as_in_float64():
    ratio = torch.tensor([-50.0, -5.0, -1.0, 0.0, 1e-3, 2.0, 50.0]).double()
    rho = torch.tensor([-1.0, -0.999, -0.26, -0.24, -1e-4, 0.0, 1e-8, 0.3, 0.9999, 1.0]).double()
    std = torch.tensor([1e-6, 1.0, 1e3]).double()
    m_i, m_j, rho, s_i, s_j = (t.flatten() for t in torch.meshgrid(ratio, ratio, rho, std, std, indexing="ij"))
    x = pair(m_i, m_j, rho, s_i, s_j)
    exact, single = torch.relu(x).cov[:, 0, 1], torch.relu(x.float()).cov[:, 0, 1].double()
    assert single.isfinite().all()
    assert ((single - exact).abs() <= 5e-6 * s_i * s_j).all()


def test_relu_gradients_are_right():
    def f(mean, factor):
        out = torch.relu(JointGaussian.trusted(mean, factor @ factor.mT))
        return out.mean, out.cov

    inputs = torch.randn(3, 4).double(), torch.randn(3, 4, 4).double()
    assert torch.autograd.gradcheck(f, tuple(t.requires_grad_() for t in inputs))


@pytest.mark.parametrize("rho", [0.0, 1e-9, 0.25, 1.0, -1.0, 1.0000001])
@pytest.mark.parametrize("std", [0.0, 1e-6, 1.0])
def test_relu_gradients_are_finite_at_the_edges(rho, std):
    mean = torch.tensor([[0.5, -0.2], [0.0, 0.0]], requires_grad=True)
    cov = (torch.tensor([[1.0, rho], [rho, 1.0]]) * std**2).expand(2, 2, 2).clone().requires_grad_()
    out = torch.relu(JointGaussian.trusted(mean, cov))
    (out.mean.sum() + out.cov.sum()).backward()
    assert out.cov.isfinite().all() and mean.grad.isfinite().all() and cov.grad.isfinite().all()


def test_relu_of_a_certain_value_is_the_deterministic_one():
    mean = torch.tensor([[-2.0, 0.0, 3.0]])
    y = torch.relu(JointGaussian(mean, torch.zeros(1, 3, 3)))
    torch.testing.assert_close(y.mean, mean.relu(), rtol=0, atol=1e-15)
    assert (y.cov == 0).all()


# DVI


def sampled_network(net, x, count):
    """Outputs [count, out] of a two- or three-layer network for one input, weights drawn from their posterior."""
    values = x.expand(count, -1)
    for module in net:
        if isinstance(module, mnvi.layers.Linear):
            weight = mnvi.Gaussian(module.weight, module.weight_variance()).sample(count)
            bias = mnvi.Gaussian(module.bias, module.bias_variance()).sample(count)
            values = (weight @ values.unsqueeze(-1)).squeeze(-1) + bias
        else:
            values = module(values)
    return values.detach()


def test_dvi_is_exact_with_one_hidden_layer():
    net = mnvi.convert(mnvi.models.mlp(3, 5).double(), mnvi.MeanField(1.0, init_log_var=-2.0))
    x = torch.randn(3).double()
    assert_moments(mnvi.DVI(net)(x), sampled_network(net, x, 100_000))


def test_ddvi_is_the_diagonal_of_dvi_with_one_hidden_layer():
    net = mnvi.convert(mnvi.models.mlp(3, 5).double(), mnvi.MeanField(1.0, init_log_var=-2.0))
    x = torch.randn(4, 3).double()
    full, diagonal = mnvi.DVI(net)(x), net(x)
    torch.testing.assert_close(full.mean, diagonal.mean)
    torch.testing.assert_close(full.var, diagonal.var)
    assert (full.cov[:, 0, 1].abs() > 1e-3).all()


def test_covariances_bring_deeper_networks_closer_to_sampling():
    error_full = error_diagonal = 0.0
    for _ in range(5):
        net = mnvi.convert(mnvi.models.mlp(3, (6, 6)).double(), mnvi.MeanField(1.0, init_log_var=-8.0))
        x = torch.randn(3).double()
        sampled = sampled_network(net, x, 100_000).var(0)  # standard errors of about 0.5 %
        error_full += (mnvi.DVI(net)(x).var / sampled - 1).abs().sum().item()
        error_diagonal += (net(x).var / sampled - 1).abs().sum().item()
    assert error_full < 0.2 * error_diagonal


def test_dvi_tends_to_the_deterministic_network():
    deterministic = mnvi.models.mlp(3, (6, 6))
    out = mnvi.DVI(mnvi.convert(deterministic, mnvi.MeanField(1.0, init_log_var=-60.0)))(x := torch.randn(4, 3))
    torch.testing.assert_close(out.mean, deterministic(x))
    assert (out.cov.abs() < 1e-20).all()


def test_dvi_shares_parameters_and_kl_with_its_network():
    net = mnvi.convert(mnvi.models.mlp(3), mnvi.MeanField(1.0))
    dvi = mnvi.DVI(net)
    assert torch.equal(mnvi.kl_divergence(dvi), mnvi.kl_divergence(net))
    assert {id(p) for p in dvi.parameters()} == {id(p) for p in net.parameters()}


def test_dvi_takes_images_through_flatten():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 3))
    out = mnvi.DVI(mnvi.convert(net, mnvi.MeanField(1.0)))(torch.randn(2, 1, 3, 4))
    assert out.cov.shape == (2, 3, 3)


def test_dvi_refuses_convolutions_by_name():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(TypeError, match="layer '0' is a Conv2d"):
        mnvi.DVI(mnvi.convert(net, mnvi.MeanField(1.0)))


def test_dvi_refuses_a_network_without_posterior():
    with pytest.raises(ValueError, match=r"mnvi\.convert"):
        mnvi.DVI(mnvi.models.mlp(3))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's own doing
def test_dvi_compiles_without_graph_breaks():
    net = mnvi.DVI(mnvi.convert(mnvi.models.mlp(3, (4, 4)), mnvi.MeanField(1.0, init_log_var=-2.0)))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 3)
    assert_same(compiled(x), net(x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_dvi_exports_with_a_dynamic_batch():
    net = mnvi.DVI(mnvi.convert(mnvi.models.mlp(3, (4, 4)), mnvi.MeanField(1.0, init_log_var=-2.0))).eval()
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(net, (torch.randn(5, 3),), dynamic_shapes=({0: batch},)).module()
    x = torch.randn(7, 3)
    assert_same(exported(x), net(x))


def test_under_autocast_covariances_stay_in_float32():
    net = mnvi.DVI(mnvi.convert(mnvi.models.mlp(3, (4, 4)), mnvi.MeanField(1.0, init_log_var=-2.0)))
    x = torch.randn(5, 3)
    expected = net(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(x)
    assert out.mean.dtype == torch.bfloat16 and out.cov.dtype == torch.float32
    torch.testing.assert_close(out.cov, expected.cov, rtol=0.1, atol=0.05)


# Likelihoods of a JointGaussian


def test_heteroscedastic_log_likelihood_agrees_with_sampling():
    out = JointGaussian(
        torch.tensor([[0.3, -0.5], [1.0, 0.2]]).double(),
        torch.tensor([[[0.5, 0.3], [0.3, 0.4]], [[0.2, -0.1], [-0.1, 0.3]]]).double(),
    )
    y = torch.tensor([1.0, -0.5]).double()
    samples = out.sample(400_000, torch.Generator().manual_seed(1))
    log_probs = Normal(samples[..., 0], (0.5 * samples[..., 1]).exp()).log_prob(y)
    expected = mnvi.GaussianLikelihood().expected_log_prob(out, y)
    bound = STANDARD_ERRORS * log_probs.std(0) / math.sqrt(len(samples))
    assert ((log_probs.mean(0) - expected).abs() <= bound).all()
    without = mnvi.GaussianLikelihood().expected_log_prob(out.marginals(), y)
    assert ((log_probs.mean(0) - without).abs() > 2 * bound).all()


def test_gaussian_predictive_needs_the_variances_alone():
    out, likelihood = random_joint(4, 2), mnvi.GaussianLikelihood()
    joint, marginal = likelihood.predictive(out), likelihood.predictive(out.marginals())
    assert torch.equal(joint.mean, marginal.mean) and torch.equal(joint.stddev, marginal.stddev)


def test_homoscedastic_likelihood_reads_the_variances():
    out, y = random_joint(4, 1, dtype=torch.float32), torch.zeros(4, 1)
    likelihood = mnvi.GaussianLikelihood(homoscedastic=True)
    assert torch.equal(likelihood.expected_log_prob(out, y), likelihood.expected_log_prob(out.marginals(), y))


def test_categorical_sampling_uses_the_covariance():
    mean = torch.tensor([[0.5, 0.0, -0.5]]).double()
    together = JointGaussian(mean, torch.full((1, 3, 3), 2.0).double())  # all logits move as one: softmax stays
    likelihood = mnvi.CategoricalLikelihood(num_samples=64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(likelihood.predictive(together).probs, mean.softmax(-1), rtol=0, atol=1e-5)
    assert float(likelihood.uncertainty(together).epistemic) < 1e-6
    assert float(likelihood.uncertainty(together.marginals()).epistemic) > 0.05


def test_second_order_classification_agrees_with_sampling_to_second_order():
    likelihood = mnvi.CategoricalLikelihood(approximation="second_order")
    labels, errors = torch.tensor([2]), []
    base = random_joint(1, 4)
    for scale in (0.04, 0.01):
        out = JointGaussian(base.mean, base.cov * scale)
        noise = out.sample(200_000, torch.Generator().manual_seed(1))
        noise = torch.cat([noise, 2 * out.mean - noise])  # antithetic: odd orders vanish
        log_probs = noise.log_softmax(-1)
        pairs = log_probs.unflatten(0, (2, -1)).mean(0)
        root = math.sqrt(len(pairs))
        log_error = likelihood.expected_log_prob(out, labels) - pairs[..., 2].mean(0)
        prob_error = likelihood.predictive(out).probs - log_probs.exp().mean(0)
        noise_floor = STANDARD_ERRORS * log_probs.exp().unflatten(0, (2, -1)).mean(0).std(0).max() / root
        assert log_error.abs().max() <= scale**2 + STANDARD_ERRORS * pairs[..., 2].std() / root
        assert prob_error.abs().max() <= scale**2 + noise_floor
        errors.append(float((likelihood.predictive(out).probs - out.mean.softmax(-1)).abs().max()))
    assert errors[0] > 2 * 0.04**2  # the correction itself is larger than what is left


# The empirical-Bayes prior


def numerical_empirical_bayes(mean, log_var, shape, rate):
    """KL at the prior variance λ that minimises KL(q ‖ N(0, λ)) − log InverseGamma(λ; shape, rate), found by search."""
    posterior, zero = Normal(mean, (0.5 * log_var).exp()), torch.zeros((), dtype=torch.float64)

    def divergence(log_prior):
        return float(kl_divergence(posterior, Normal(zero, (zero + 0.5 * log_prior).exp())).sum())

    def objective(log_prior):
        return divergence(log_prior) + (shape + 1) * log_prior + rate * math.exp(-log_prior)

    return divergence(minimize_scalar(objective, bounds=(-12, 8), method="bounded", options={"xatol": 1e-10}).x)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 3), (50, 13)])
def test_empirical_bayes_is_the_kl_at_the_best_prior_variance(rows, columns):
    layer = mnvi.convert(nn.Linear(columns, rows).double(), mnvi.MeanField(mnvi.EmpiricalBayes()))
    nn.init.normal_(layer.log_var, -3.0)
    nn.init.normal_(layer.bias_log_var, -3.0)
    a = 4.4798
    b = (1 + a) * 5 / columns
    parts = [(layer.weight, layer.log_var), (layer.bias, layer.bias_log_var)]
    expected = sum(numerical_empirical_bayes(mean.detach(), log_var.detach(), a, b) for mean, log_var in parts)
    assert mnvi.kl_divergence(layer).item() == pytest.approx(expected, rel=1e-6)


def test_empirical_bayes_gradients_are_right():
    prior = mnvi.EmpiricalBayes()
    inputs = torch.randn(3, 2).double().requires_grad_(), torch.randn(3, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda mean, log_var: prior.kl_divergence(mean, log_var, 0.7), inputs)


@pytest.mark.parametrize("argument", ["shape", "scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_empirical_bayes_refuses_bad_hyperparameters(argument, value):
    with pytest.raises(ValueError, match=f"EmpiricalBayes: {argument}="):
        mnvi.EmpiricalBayes(**{argument: value})


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 4),
        nn.Conv1d(4, 6, 3, groups=2),
        nn.Conv2d(4, 6, (3, 2)),
        nn.ConvTranspose1d(4, 6, 3),
        nn.ConvTranspose2d(4, 6, (3, 2), groups=2),
        nn.ConvTranspose2d(4, 6, 4, stride=2),
        nn.ConvTranspose1d(3, 2, 2, stride=4),
    ],
    ids=str,
)
def test_fan_in_is_the_mean_number_of_inputs_of_an_output(layer):
    """Counted by an input of ones through weights of ones, away from the borders."""
    counted = mnvi.convert(layer, mnvi.MeanField(1.0)).fan_in
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    if isinstance(layer, nn.Linear):
        ones = torch.ones(1, layer.in_features)
    else:
        ones = torch.ones(1, layer.in_channels, *(32 for _ in layer.kernel_size))
    out = layer(ones)
    for dim in range(2, out.dim()):
        out = out.narrow(dim, 8, 16)
    assert counted == max(1, int(out.mean() + 1e-4))
