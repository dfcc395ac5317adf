"""Every activation against the conformance suite, and what only some of them have."""

import math

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi
from mnvi.moments.quadrature import gauss_hermite
from tests.conformance import ElementwiseConformance

# The documented errors of the approximations; the others are exact.
LOGISTIC = {"mean_error": 2e-6, "var_error": 3e-5}
RECTIFIER = {"mean_error": 1e-5, "var_error": 2e-5}
TABULATED = 1e-4  # in float32


class TestReLU(ElementwiseConformance):
    function = F.relu
    in_place = torch.relu_


class TestReLU6(ElementwiseConformance):
    function = F.relu6
    in_place = nn.ReLU6(inplace=True)
    kinks = (0.0, 6.0)
    span = 6.0


class TestHardtanh(ElementwiseConformance):
    function = F.hardtanh
    in_place = F.hardtanh_
    kinks = (-1.0, 1.0)
    span = 1.0


class TestClamp(ElementwiseConformance):
    function = staticmethod(lambda x: torch.clamp(x, -0.5, 2.0))
    in_place = staticmethod(lambda x: x.clamp_(-0.5, 2.0))
    kinks = (-0.5, 2.0)
    span = 2.5


class TestClampBelow(ElementwiseConformance):
    function = staticmethod(lambda x: torch.clamp(x, min=-0.5))
    in_place = staticmethod(lambda x: x.clamp_min_(-0.5))
    kinks = (-0.5,)


class TestClampAbove(ElementwiseConformance):
    function = staticmethod(lambda x: torch.clip(x, max=1.5))
    in_place = staticmethod(lambda x: x.clamp_max_(1.5))
    kinks = (1.5,)


class TestLeakyReLU(ElementwiseConformance):
    function = staticmethod(lambda x: F.leaky_relu(x, 0.2))
    in_place = staticmethod(lambda x: F.leaky_relu_(x, 0.2))


class TestPReLU(ElementwiseConformance):
    function = staticmethod(lambda x: torch.prelu(x, torch.tensor([-0.25]).to(x.dtype)))


class TestRReLUInEvaluation(ElementwiseConformance):
    function = staticmethod(lambda x: F.rrelu(x, 0.1, 0.4, training=False))
    in_place = staticmethod(lambda x: torch.rrelu_(x, 0.1, 0.4))


class TestAbs(ElementwiseConformance):
    function = torch.abs
    in_place = staticmethod(lambda x: x.abs_())


class TestHardsigmoid(ElementwiseConformance):
    function = F.hardsigmoid
    in_place = nn.Hardsigmoid(inplace=True)
    kinks = (-3.0, 3.0)
    steepest = 1 / 6
    span = 0.5
    float32_error = 2e-6


class TestHardswish(ElementwiseConformance):
    function = F.hardswish
    in_place = nn.Hardswish(inplace=True)
    kinks = (-3.0, 0.0, 3.0)
    steepest = 1.5
    mean_error = 1e-7
    var_error = 1e-7
    table_error = TABULATED


class TestSoftshrink(ElementwiseConformance):
    function = F.softshrink
    kinks = (-0.5, 0.5)


class TestHardshrink(ElementwiseConformance):
    function = F.hardshrink
    kinks = (-0.5, 0.5)
    jump = 0.5


class TestThreshold(ElementwiseConformance):
    function = staticmethod(lambda x: F.threshold(x, 0.25, 2.0))
    in_place = staticmethod(lambda x: F.threshold_(x, 0.25, 2.0))
    kinks = (0.25,)
    jump = 1.75


class TestELU(ElementwiseConformance):
    function = staticmethod(lambda x: F.elu(x, 0.7))
    in_place = staticmethod(lambda x: F.elu_(x, 0.7))
    mean_error = 1e-6
    var_error = 3e-6


class TestCELU(ElementwiseConformance):
    function = staticmethod(lambda x: F.celu(x, 0.5))
    in_place = staticmethod(lambda x: F.celu_(x, 0.5))
    mean_error = 1e-6
    var_error = 3e-6


class TestSELU(ElementwiseConformance):
    function = F.selu
    in_place = F.selu_
    steepest = 1.76
    mean_error = 1e-6
    var_error = 3e-6


class TestSigmoid(ElementwiseConformance):
    function = torch.sigmoid
    in_place = torch.sigmoid_
    steepest = 0.25
    span = 0.5
    mean_error, var_error = LOGISTIC.values()
    table_error = TABULATED


class TestTanh(ElementwiseConformance):
    function = torch.tanh
    in_place = torch.tanh_
    span = 1.0
    mean_error, var_error = LOGISTIC.values()
    table_error = TABULATED


class TestTanhshrink(ElementwiseConformance):
    function = F.tanhshrink
    mean_error, var_error = LOGISTIC.values()
    float32_error = 5e-6  # torch's own x - tanh(x) loses the digits near zero


class TestSiLU(ElementwiseConformance):
    function = F.silu
    in_place = nn.SiLU(inplace=True)
    mean_error, var_error = LOGISTIC.values()
    table_error = TABULATED


class TestErf(ElementwiseConformance):
    function = torch.erf
    in_place = torch.erf_
    steepest = 1.13
    span = 1.0


class TestErfc(ElementwiseConformance):
    function = torch.erfc
    steepest = 1.13
    span = 1.0


class TestNormalCDF(ElementwiseConformance):
    function = torch.special.ndtr
    steepest = 0.4
    span = 0.5


class TestGELU(ElementwiseConformance):
    function = F.gelu
    steepest = 1.13
    var_error = 2e-9
    table_error = TABULATED


class TestGELUTanh(ElementwiseConformance):
    function = staticmethod(lambda x: F.gelu(x, approximate="tanh"))
    steepest = 1.13
    mean_error, var_error = RECTIFIER.values()
    table_error = TABULATED


class TestMish(ElementwiseConformance):
    function = F.mish
    in_place = nn.Mish(inplace=True)
    steepest = 1.1
    mean_error, var_error = RECTIFIER.values()
    table_error = TABULATED


class TestSoftplus(ElementwiseConformance):
    function = staticmethod(lambda x: F.softplus(x, 2.0, 40.0))
    mean_error, var_error = 1e-6, 1e-6
    float32_error = 2e-6
    table_error = TABULATED


class TestLogSigmoid(ElementwiseConformance):
    function = F.logsigmoid
    mean_error, var_error = 1e-6, 1e-6
    table_error = TABULATED


class TestSoftsign(ElementwiseConformance):
    function = F.softsign
    span = 1.0
    mean_error, var_error = 5e-6, 5e-6
    float32_error = 2e-6


class Oscillating(ElementwiseConformance):
    """Up to a standard deviation that the dense reference resolves."""

    largest_mean = 50.0
    largest_var = 10.0


class TestSin(Oscillating):
    function = torch.sin
    in_place = torch.sin_


class TestCos(Oscillating):
    function = torch.cos
    in_place = torch.cos_


class Exponential(ElementwiseConformance):
    """Up to moments that the dense reference and the samples still find; their scale is the deviation itself."""

    largest_mean = 4.0
    largest_var = 1.0
    float32_error = 1e-5  # an exponent of -50 keeps 4e-6

    def scale(self, mean: Tensor, var: Tensor) -> Tensor:
        return (mean + 0.5 * var).exp() * var.expm1().sqrt() + 1e-16  # whose square float32 still has digits of


class TestExp(Exponential):
    function = torch.exp
    in_place = torch.exp_


class TestExpm1(Exponential):
    function = torch.expm1
    in_place = torch.expm1_


class Power(ElementwiseConformance):
    exponent: int

    def scale(self, mean: Tensor, var: Tensor) -> Tensor:
        return self.exponent * var.sqrt() * (mean.square() + var).pow((self.exponent - 1) / 2)


class TestSquare(Power):
    exponent = 2
    function = staticmethod(lambda x: torch.pow(x, 2))


class TestCube(Power):
    exponent = 3
    function = staticmethod(lambda x: x**3)
    in_place = staticmethod(lambda x: x.pow_(3))


@pytest.mark.parametrize("function", [torch.exp, torch.expm1])
def test_exponential_has_the_moments_of_a_log_normal(function):
    mean, var = torch.tensor([[-3.0, 0.1, 2.0], [1e-4, 0.3, 2.0]], dtype=torch.float64)
    exact = torch.distributions.LogNormal(mean, var.sqrt())
    result = function(mnvi.Gaussian(mean, var))
    torch.testing.assert_close(result.mean, exact.mean - float(function is torch.expm1))
    torch.testing.assert_close(result.var, exact.variance, rtol=1e-9, atol=0)


def test_expm1_keeps_the_digits_of_a_small_mean():
    result = torch.expm1(mnvi.Gaussian(torch.tensor([1e-6]), torch.tensor([1e-12])))
    torch.testing.assert_close(result.mean, torch.tensor([1.000001e-6]), rtol=1e-6, atol=0)
    torch.testing.assert_close(result.var, torch.tensor([1.000002e-12]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("exponent", range(1, 7))
def test_power_is_exact(exponent):
    # Gauss–Hermite with 8 nodes integrates polynomials up to degree 15.
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    for mean, var in [(0.0, 1.0), (-1.5, 0.3), (2.0, 4.0)]:
        values = (mean + math.sqrt(var) * nodes) ** exponent
        expected = (weights * values).sum()
        result = mnvi.Gaussian(*torch.tensor([[mean], [var]], dtype=torch.float64)) ** exponent
        assert result.mean.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert result.var.item() == pytest.approx((weights * (values - expected) ** 2).sum(), rel=1e-12)


def gaussian(*shape, dtype=torch.float64, spread=2.0):
    generator = torch.Generator().manual_seed(1)
    mean = spread * torch.randn(shape, generator=generator, dtype=dtype)
    return mnvi.Gaussian(mean, spread * torch.rand(shape, generator=generator, dtype=dtype))


def assert_same(x, y, **tolerances):
    torch.testing.assert_close(x.mean, y.mean, **tolerances)
    torch.testing.assert_close(x.var, y.var, **tolerances)


def test_prelu_uses_the_slope_of_each_channel():
    x, weight = gaussian(4, 3, 5), torch.tensor([0.1, -0.4, 1.0], dtype=torch.float64)
    y = torch.prelu(x, weight)
    for channel, slope in enumerate(weight.tolist()):
        assert_same(y[:, channel], F.leaky_relu(x[:, channel], slope))


def test_prelu_weight_gets_its_gradient():
    x, weight = gaussian(2, 3), torch.tensor([0.1, -0.4, 1.0], dtype=torch.float64, requires_grad=True)

    def moments(weight):
        y = torch.prelu(x, weight)
        return y.mean, y.var

    assert torch.autograd.gradcheck(moments, (weight,))


@pytest.mark.parametrize("option", ["moments", "taylor"])
def test_prelu_of_a_number_has_no_dimensions(option):
    x = mnvi.Gaussian(torch.tensor(-0.3).double(), torch.tensor(0.5).double())
    with mnvi.options(activation=option):
        out = F.prelu(x, torch.tensor([0.2]).double())
        assert out.mean.shape == out.var.shape == ()
        assert_same(out, F.leaky_relu(x, 0.2))


@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 4)])
def test_prelu_with_slopes_for_other_channels_is_refused(shape):
    with pytest.raises(ValueError, match="prelu: weight has 3 slopes for"):
        torch.prelu(gaussian(*shape), torch.ones(3))


def test_rrelu_in_training_carries_the_variance_of_the_random_slope():
    lower, upper, samples = 0.1, 0.6, 200_000
    x = mnvi.Gaussian(torch.tensor([-2.0, -0.5, 0.0, 1.0]), torch.tensor([0.3, 1.0, 2.0, 0.5]))
    y = F.rrelu(x, lower, upper, training=True)
    generator = torch.Generator().manual_seed(0)
    z = x.sample(samples, generator)
    slope = lower + (upper - lower) * torch.rand(z.shape, generator=generator)
    values = torch.where(z > 0, z, slope * z).double()
    var, mean = torch.var_mean(values, 0)
    assert ((y.mean - mean).abs() <= 5 * (var / samples).sqrt()).all()
    fourth = (values - mean).pow(4).mean(0)
    assert ((y.var - var).abs() <= 5 * ((fourth - var.square()) / samples).sqrt()).all()


def test_rrelu_in_training_by_the_first_order_rule_carries_the_variance_of_the_random_slope_too():
    lower, upper, samples = 0.1, 0.6, 200_000
    # far from the kink the function of value and slope is a product, and small noise leaves its first order alone
    x = mnvi.Gaussian(torch.tensor([-2.0, -0.5, 1.0]).double(), torch.tensor([1e-4, 1e-4, 1e-4]).double())
    with mnvi.options(activation="taylor"):
        trained, evaluated = F.rrelu(x, lower, upper, training=True), F.rrelu(x, lower, upper)
    generator = torch.Generator().manual_seed(0)
    z = x.sample(samples, generator)
    slope = lower + (upper - lower) * torch.rand(z.shape, generator=generator, dtype=z.dtype)
    values = torch.where(z > 0, z, slope * z)
    var, mean = torch.var_mean(values, 0)
    fourth = (values - mean).pow(4).mean(0)
    assert ((trained.var - var).abs() <= 5 * ((fourth - var.square()) / samples).sqrt()).all()
    slopes = torch.tensor([0.35, 0.35, 1.0], dtype=torch.float64)
    torch.testing.assert_close(evaluated.var, slopes.square() * x.var)


def test_clamp_takes_tensors_as_bounds_and_they_get_gradients():
    x = gaussian(4, 3)
    low = torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    high = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    y = torch.clamp(x, low, high)
    for column in range(3):
        assert_same(y[:, column], torch.clamp(x[:, column], low[column].item(), high[column].item()))

    def moments(low, high):
        both, below, above = torch.clamp(x, low, high), torch.clamp(x, min=low), torch.clamp(x, max=high)
        return both.mean, both.var, below.mean, below.var, above.mean, above.var

    assert torch.autograd.gradcheck(moments, (low, high))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e20, 1e38, math.inf])
@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_bounds_out_of_reach_of_a_clamp_change_nothing(kind, far, dtype):
    x = mnvi.Gaussian(torch.tensor([0.0, 5.0, -3.0], dtype=dtype), torch.tensor([1e-8, 1.0, 100.0], dtype=dtype))
    both, above, below = torch.clamp(x, kind(-far), kind(far)), torch.clamp(x, kind(-far), 2.0), torch.clamp(x, 1, far)
    for found, expected in ((both, x), (above, torch.clamp(x, max=2.0)), (below, torch.clamp(x, min=1.0))):
        torch.testing.assert_close(found.mean, expected.mean.to(found.dtype), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.var, expected.var.to(found.var.dtype), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("option", ["moments", "taylor"])
def test_clamp_by_wider_bounds_is_that_of_every_row(option):
    x, low = gaussian(3), torch.tensor([[-1.0, 0.0, 0.5], [0.5, -2.0, 1.0]], dtype=torch.float64)
    calls = [lambda x, low: torch.clamp(x, min=low), lambda x, low: torch.clamp(x, max=low)]
    calls += [lambda x, low: torch.clamp(x, low, low + 1), torch.clamp_min, torch.clamp_max]
    with mnvi.options(activation=option):
        for call in calls:
            out = call(x, low)
            assert out.mean.shape == out.var.shape == (2, 3)
            for row in range(2):
                assert_same(out[row], call(x, low[row]))


def test_clamp_with_bounds_the_wrong_way_round_is_the_upper_bound_as_in_torch():
    y = torch.clamp(gaussian(5), 2.0, -1.0)
    assert (y.mean == -1).all()
    assert (y.var == 0).all()


def test_clamp_by_float64_bounds_is_float64_as_in_torch():
    y = torch.clamp(gaussian(3, dtype=torch.float32), min=torch.zeros(3, dtype=torch.float64))
    assert y.mean.dtype == y.var.dtype == torch.float64


def test_clamp_without_bounds_is_refused():
    with pytest.raises(ValueError, match="clamp: min=None and max=None"):
        torch.clamp(gaussian(2))


def test_clamp_between_random_bounds_is_refused():
    with pytest.raises(TypeError, match="clamp: min must be a number or a tensor"):
        torch.clamp(gaussian(2), min=gaussian(2))


def test_softplus_with_a_low_threshold_follows_torch_which_jumps_to_the_identity():
    x = gaussian(6)
    assert_same(F.softplus(x, 1.0, 2.0), mnvi.elementwise(lambda z: F.softplus(z, 1.0, 2.0), "quadrature")(x))


def test_glu_multiplies_one_half_by_the_gate_of_the_other():
    x = gaussian(3, 8)
    assert_same(F.glu(x, -1), x[:, :4] * torch.sigmoid(x[:, 4:]))


@pytest.mark.parametrize(("reach", "error"), [(3.0, 2e-5), (6.0, 2e-3)])
def test_glu_is_within_the_documented_error_of_dense_quadrature(reach, error):
    nodes, weights = (torch.tensor(t, dtype=torch.float64) for t in zip(*gauss_hermite(200), strict=True))
    axes = torch.linspace(-reach, reach, 25), torch.tensor([0.01, 0.1, 1.0, 4.0]), torch.tensor([-3.0, 0.0, 0.5])
    gate, var, value = (t.double().flatten() for t in torch.meshgrid(*axes, indexing="ij"))
    gates = torch.sigmoid(gate[:, None] + var.sqrt()[:, None] * nodes)
    mean = value * (gates @ weights)
    expected = (value.square() + var) * (gates.square() @ weights) - mean.square()
    out = F.glu(mnvi.Gaussian(torch.stack([value, gate], 1), torch.stack([var, var], 1)))
    assert (out.mean[:, 0] - mean).abs().max() < 1e-6
    assert ((out.var[:, 0] / expected).sqrt() - 1).abs().max() < error


def test_paper_floor_bounds_the_variance_of_a_relu_input():
    x = mnvi.Gaussian(torch.zeros(1), torch.zeros(1))
    with mnvi.options(relu_floor=mnvi.options.PAPER_RELU_FLOOR):
        assert_same(torch.relu(x), torch.relu(mnvi.Gaussian(torch.zeros(1), torch.full((1,), 1e-5))))


ALL = [
    nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.LeakyReLU(), nn.PReLU(), nn.RReLU(), nn.Threshold(0.1, 2.0),
    nn.Hardsigmoid(), nn.Hardswish(), nn.Hardshrink(), nn.Softshrink(), nn.ELU(), nn.CELU(), nn.SELU(), nn.GELU(),
    nn.GELU("tanh"), nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.Mish(), nn.Softplus(), nn.LogSigmoid(), nn.Tanhshrink(),
    nn.Softsign(), nn.GLU(), torch.abs, torch.erf, torch.erfc, torch.special.ndtr, torch.exp, torch.expm1, torch.sin,
    torch.cos, torch.square, lambda x: torch.clamp(x, -0.5, 2.0), lambda x: torch.clamp(x, min=-0.5), lambda x: x**3,
]  # fmt: skip


class Each(nn.Module):
    """Every activation on the same input: one graph for all of them."""

    def __init__(self, activations):
        super().__init__()
        self.activations = activations
        self.owned = nn.ModuleList(f for f in activations if isinstance(f, nn.Module))

    def forward(self, mean, var):
        x = mnvi.Gaussian(mean, var)
        return [part for activation in self.activations for y in [activation(x)] for part in (y.mean, y.var)]


def inputs_and_networks(activations):
    x = gaussian(5, 4, dtype=torch.float32)
    return (x.mean, x.var), Each(activations).eval()


@pytest.mark.parametrize("option", ["quadrature", "taylor"])
def test_all_compile_into_one_graph(option):
    inputs, network = inputs_and_networks(ALL)
    with mnvi.options(activation=option):  # the compiler gets integrals where eager mode reads tables
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(*inputs), network(*inputs))


@pytest.mark.slow
def test_compiled_gradients_agree():
    inputs, network = inputs_and_networks([nn.SiLU()])  # one that has everything: closed form, nodes and a choice
    compiled = torch.compile(network, fullgraph=True)
    gradients = []
    with mnvi.options(activation="quadrature"):
        for model in (network, compiled):
            leaves = [t.clone().requires_grad_() for t in inputs]
            gradients.append(torch.autograd.grad(sum(part.sum() for part in model(*leaves)), leaves))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_all_export():
    inputs, network = inputs_and_networks(ALL)
    exported = torch.export.export(network, inputs, dynamic_shapes=[{0: torch.export.Dim("batch")}] * 2)
    x = gaussian(9, 4, dtype=torch.float32)
    with mnvi.options(activation="quadrature"):
        expected = network(x.mean, x.var)
    torch.testing.assert_close(exported.module()(x.mean, x.var), expected)


@pytest.mark.slow
def test_those_of_torchvision_run_in_onnxruntime(tmp_path):
    inputs, network = inputs_and_networks([nn.ReLU6(), nn.Hardsigmoid(), nn.Hardswish(), nn.SiLU(), nn.GELU()])
    file = tmp_path / "activations.onnx"
    torch.onnx.export(network, inputs, dynamo=True, verbose=False).save(file)
    session = onnxruntime.InferenceSession(file)
    names = [node.name for node in session.get_inputs()]
    outputs = session.run(None, dict(zip(names, (t.numpy() for t in inputs), strict=True)))
    for output, expected in zip(outputs, network(*inputs), strict=True):
        torch.testing.assert_close(torch.from_numpy(output), expected.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sigma", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("mean", [-6.0, -9.0, -12.0])
def test_elu_s_variance_keeps_its_digits_far_below_zero(mean, sigma):
    value = mnvi.Gaussian(torch.tensor([mean]), torch.tensor([sigma**2]))
    wide = mnvi.Gaussian(value.mean.double(), value.var.double())
    torch.testing.assert_close(F.elu(value).var.double(), F.elu(wide).var, rtol=1e-3, atol=0)
