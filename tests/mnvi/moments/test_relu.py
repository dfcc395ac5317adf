"""The ReLU's moments: stable identity, blocked path, closed-form backward pass."""

import math

import pytest
import torch
from conformance import memory_layouts
from scipy import integrate, stats
from torch import nn
from torch.autograd import forward_ad

import mnvi
from mnvi.moments.activations.relu import formula, kernels, relu
from mnvi.moments.normal import Deviation
from mnvi.moments.tracing import for_compiler

LARGE = kernels._BLOCKED_FROM


def textbook(mean, var):
    """E[x²] - E[x]², fit for float64 and moderate arguments."""
    sigma = var.sqrt()
    normal = torch.distributions.Normal(0.0, 1.0)
    cdf, density = normal.cdf(mean / sigma), normal.log_prob(mean / sigma).exp()
    first = mean * cdf + sigma * density
    return first, (mean.square() + var) * cdf + mean * sigma * density - first.square()


def large_inputs():
    size = (3, 16, 57, LARGE // (3 * 16 * 57) + 1)  # not divisible by a block
    generator = torch.Generator().manual_seed(3)
    return 3 * torch.randn(size, generator=generator), torch.rand(size, generator=generator)


every_layout = pytest.mark.parametrize(
    ("mean", "var"), [pytest.param(m, v, id=name) for name, m, v in memory_layouts(*large_inputs())]
)


def test_moments_match_the_textbook():
    mean = torch.linspace(-4, 4, 81, dtype=torch.float64)
    for v in (0.1, 1.0, 7.0):
        var = torch.full_like(mean, v)
        torch.testing.assert_close(relu(mean, var), textbook(mean, var), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("mean", "var"), [(-3.0, 1.0), (0.2, 4.0), (5.0, 0.3), (-20.0, 9.0)])
def test_moments_match_numerical_integration(mean, var):
    sigma = math.sqrt(var)

    def moment(power):
        end = max(mean, 0) + 12 * sigma
        return integrate.quad(
            lambda z: z**power * stats.norm.pdf(z, mean, sigma), 0, end, epsabs=0, epsrel=1e-11, limit=200
        )[0]

    expectation, variance = relu(torch.tensor([mean], dtype=torch.float64), torch.tensor([var], dtype=torch.float64))
    assert expectation.item() == pytest.approx(moment(1), rel=1e-6)
    assert variance.item() == pytest.approx(moment(2) - moment(1) ** 2, rel=1e-6)


def test_float32_has_no_cancellation_where_the_textbook_loses_everything():
    mean, var = torch.tensor([50.0]), torch.tensor([1e-5])
    assert textbook(mean, var)[1].item() != pytest.approx(1e-5, rel=0.5)
    torch.testing.assert_close(relu(mean, var)[1], var, rtol=1e-6, atol=0)


@every_layout
def test_blocked_path_gives_what_the_formula_gives(mean, var):
    expectation, variance, _, _ = formula.moments(mean, var)
    torch.testing.assert_close(relu(mean, var), (expectation, variance))


@every_layout
def test_gradients_of_large_tensors_are_those_of_the_formula(mean, var):
    leaves = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in (mean, var)]
    weights = torch.cos(mean), torch.sin(var)
    gradients = torch.autograd.grad(relu(*leaves), leaves, weights)
    expectation, _, cdf, slope = formula.moments(mean, var)
    torch.testing.assert_close(gradients, formula.gradients(*weights, expectation, cdf, slope))


@pytest.mark.parametrize("size", [kernels._BLOCKED_FROM - 1, kernels._BLOCKED_FROM, kernels._BLOCKED_FROM + 1])
def test_sizes_around_the_switch_to_blocks_agree(size):
    mean, var = torch.randn(size), torch.rand(size)
    expectation, variance, _, _ = formula.moments(mean, var)
    torch.testing.assert_close(relu(mean, var), (expectation, variance))


@pytest.mark.parametrize("way", ["formula", "blocked", "fused"])
def test_nothing_underflows_far_from_the_bend(way):
    mean = torch.linspace(-100, 0, 10_001)  # up to 300 standard deviations
    var = torch.full_like(mean, 1e-1)
    if way == "fused":
        with for_compiler():
            out = formula.moments(mean, var)
    else:
        out = formula.moments(mean, var) if way == "formula" else kernels.blocked(mean, var, for_backward=True)
    smallest = torch.finfo(torch.float32).tiny
    assert all(((part == 0) | (part.abs() > 1e10 * smallest)).all() for part in out)


def test_closed_form_backward_matches_finite_differences():
    mean = torch.tensor([-3.0, -0.7, 0.0, 0.4, 2.5], dtype=torch.float64, requires_grad=True)
    var = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(relu, (mean, var))


def test_backward_without_noise_is_that_of_the_relu():
    mean, var = torch.tensor([-2.0, 3.0], requires_grad=True), torch.zeros(2, requires_grad=True)
    expectation, variance = relu(mean, var)
    to_mean, to_var = torch.autograd.grad(expectation.sum() + variance.sum(), (mean, var))
    torch.testing.assert_close(to_mean, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(to_var, torch.tensor([0.0, 1.0]))


def test_backward_keeps_three_tensors():
    held = set()

    def pack(tensor):
        held.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        relu(torch.randn(100, requires_grad=True), torch.rand(100, requires_grad=True))
    assert len(held) == 3


def test_either_output_may_be_unused_in_backward():
    mean, var = torch.randn(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    leaves = mean.requires_grad_(), var.requires_grad_()
    for part in (0, 1):
        assert torch.autograd.gradcheck(lambda mean, var, part=part: relu(mean, var)[part], leaves)


def test_floor_raises_small_variances_only():
    mean, var = torch.zeros(2), torch.tensor([1e-8, 1.0])
    torch.testing.assert_close(relu(mean, var, 1e-5), relu(mean, torch.tensor([1e-5, 1.0])))


POSTERIORS = [mnvi.MultiplicativeNoise(1.0), mnvi.MeanField(1.0), mnvi.SharedMeanField(1.0)]
every_posterior = pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda p: type(p).__name__)


def trained_network(posterior):
    """Its parameters require gradients, as those of every network do that is not frozen."""
    torch.manual_seed(0)
    net = mnvi.convert(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), posterior).double()
    return net, torch.randn(5, 3, dtype=torch.float64)


def score(out):
    return out.mean.sum() + out.var.square().sum()


@every_posterior
def test_torch_func_differentiates_a_network_whose_parameters_require_gradients(posterior):
    net, x = trained_network(posterior)
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(score(net(leaf)), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: score(net(x)))(x), expected)
    torch.testing.assert_close(torch.func.jacrev(lambda x: score(net(x)))(x), expected)
    torch.testing.assert_close(torch.func.jacfwd(lambda x: score(net(x)))(x), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda x: score(net(x))))(x), expected)
    slope = torch.func.jvp(lambda x: score(net(x)), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(slope, expected.sum())


@every_posterior
def test_functional_call_takes_the_parameters_as_they_are(posterior):
    net, x = trained_network(posterior)
    expected = torch.autograd.grad(score(net(x)), list(net.parameters()))

    def loss(parameters, x):
        return score(torch.func.functional_call(net, parameters, (x,)))

    parameters = dict(net.named_parameters())
    whole = torch.func.grad(loss)(parameters, x)
    by_example = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(whole[name], gradient)
        torch.testing.assert_close(by_example[name].sum(0), gradient)


@every_posterior
def test_gradients_of_a_gradient_reach_the_parameters(posterior):
    net, x = trained_network(posterior)

    def penalty(*values):
        parameters = dict(zip(dict(net.named_parameters()), values, strict=True))
        gradient = torch.func.grad(lambda x: score(torch.func.functional_call(net, parameters, (x,))))(x)
        return gradient.square().sum()

    assert torch.autograd.gradcheck(penalty, [p.detach().clone().requires_grad_() for p in net.parameters()])


def test_second_derivatives_match_finite_differences_also_under_a_floor():
    mean = torch.tensor([-3.0, -0.7, 0.0, 0.4, 2.5], dtype=torch.float64, requires_grad=True)
    var = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.float64, requires_grad=True)

    def slopes(mean, var):
        return torch.func.grad(lambda m, v: sum(part.sin().sum() for part in relu(m, v, 0.3)), (0, 1))(mean, var)

    assert torch.autograd.gradcheck(slopes, (mean, var))


def test_derivatives_to_any_order_are_finite_without_noise():
    mean, var = torch.tensor([-2.0, 0.0, 3.0]), torch.zeros(3)
    for part in (0, 1):
        second = torch.func.hessian(lambda m, v, part=part: relu(m, v)[part].sum(), (0, 1))(mean, var)
        assert all(block.isfinite().all() for row in second for block in row)
    slope = torch.func.jacfwd(lambda m: relu(m, var)[0])(mean)
    assert slope.diagonal().tolist() == [0.0, 0.5, 1.0]


def test_forward_mode_of_autograd_itself():
    mean, var = torch.tensor([0.3]), torch.tensor([2.0])
    with forward_ad.dual_level():
        out = relu(forward_ad.make_dual(mean, torch.ones(1)), var)[0]
        slope = forward_ad.unpack_dual(out).tangent
    torch.testing.assert_close(slope, torch.special.ndtr(mean / var.sqrt()))


def test_compiled_gradients_are_those_of_eager_mode():
    mean = torch.linspace(-2, 2, 9, requires_grad=True)
    var = torch.linspace(0.1, 1, 9, requires_grad=True)

    def loss(mean, var):
        expectation, variance = relu(2 * mean, 2 * var)
        return (expectation.square() + variance).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    actual, expected = (torch.autograd.grad(f(mean, var), (mean, var)) for f in (compiled, loss))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("known", [False, True])
def test_the_compilers_formula_is_right_to_float32(known):
    mean, var = torch.linspace(-12, 12, 4001), torch.tensor(0.25)
    with for_compiler():
        found = formula.moments(mean, var, Deviation(var, var.sqrt(), 1 / var.sqrt()) if known else None)
    expected = formula.moments(mean.double(), var.double())
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=2e-6, atol=5e-7)
        assert (ours >= 0).all()
    likely = mean > -0.5  # a standard deviation below zero, from where on no difference cancels
    torch.testing.assert_close(found[0][likely].double(), expected[0][likely], rtol=5e-6, atol=0)
    torch.testing.assert_close(found[1][likely].double(), expected[1][likely], rtol=5e-6, atol=0)


def test_a_deviation_belongs_to_its_variance():
    x = mnvi.Gaussian(torch.zeros(3), torch.ones(3))
    x.deviation = Deviation(x.var, torch.ones(3), torch.ones(3))
    with for_compiler():
        assert torch.relu(x).before[3] is x.deviation
        x.var = torch.full((3,), 4.0)
        assert torch.relu(x).before[3] is None
