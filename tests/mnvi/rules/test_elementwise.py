"""Any elementwise function of a Gaussian: Gauss–Hermite nodes, the first-order rule, what they keep for backward."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mnvi
from mnvi.moments.quadrature import gauss_hermite, quadrature_moments, taylor_moments
from mnvi.rules.table import RULES


def gaussian(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(shape, generator=generator, dtype=dtype)
    return mnvi.Gaussian(mean, torch.rand(shape, generator=generator, dtype=dtype))


def by_quadrature(function, order=20):
    return mnvi.elementwise(function, "quadrature", order=order)


def by_taylor(function):
    return mnvi.elementwise(function, "taylor")


def bump(z):
    return torch.exp(-z * z)


def test_quadrature_is_exact_for_polynomials_up_to_half_the_order():
    x = gaussian(7)
    y = by_quadrature(lambda z: z**3 - 2 * z, order=4)(x)
    mean, var = x.mean, x.var
    torch.testing.assert_close(y.mean, mean**3 + 3 * mean * var - 2 * mean)
    slope = 3 * mean**2 - 2  # of f(μ + δ) = f(μ) + slope·δ + 3μδ² + δ³
    torch.testing.assert_close(y.var, slope**2 * var + (18 * mean**2 + 6 * slope) * var**2 + 15 * var**3)


def test_quadrature_matches_the_closed_form_of_a_smooth_function():
    x = gaussian(50)
    y = by_quadrature(bump, order=40)(x)
    spread = 1 + 2 * x.var
    mean = (-x.mean.square() / spread).exp() / spread.sqrt()
    wider = 1 + 4 * x.var
    square = (-2 * x.mean.square() / wider).exp() / wider.sqrt()
    torch.testing.assert_close(y.mean, mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(y.var, square - mean.square(), rtol=0, atol=1e-6)


def test_error_at_a_kink_is_the_documented_one():
    mean = torch.linspace(-3, 3, 601, dtype=torch.float64)
    x = mnvi.Gaussian(mean, torch.ones_like(mean))
    error = (by_quadrature(torch.abs)(x).mean - torch.abs(x).mean).abs().max()
    assert 0.03 < error < 0.06


def test_taylor_gives_value_and_squared_slope():
    x = gaussian(5)
    y = by_taylor(bump)(x)
    torch.testing.assert_close(y.mean, bump(x.mean))
    torch.testing.assert_close(y.var, (2 * x.mean * bump(x.mean)).square() * x.var)


@pytest.mark.parametrize("wrap", [mnvi.elementwise, by_quadrature, by_taylor])
def test_a_tensor_goes_through_the_function_itself(wrap):
    x = torch.randn(4)
    torch.testing.assert_close(wrap(bump)(x), bump(x), rtol=0, atol=0)


def test_elementwise_follows_the_option_unless_told_otherwise():
    x = gaussian(5)
    with mnvi.options(activation="taylor"):
        free, fixed = mnvi.elementwise(bump)(x), mnvi.elementwise(bump, "quadrature")(x)
    torch.testing.assert_close(free.var, by_taylor(bump)(x).var)
    torch.testing.assert_close(fixed.var, by_quadrature(bump)(x).var)


def test_message_of_a_missing_rule_keeps_its_promise():
    x = gaussian(5)
    with pytest.raises(mnvi.NoRuleError, match=r"mnvi.rule\(torch.sinh\)\(mnvi.elementwise\(torch.sinh\)\)"):
        torch.sinh(x)
    before = dict(RULES._rules)
    try:
        mnvi.rule(torch.sinh)(mnvi.elementwise(torch.sinh))
        mean = torch.sinh(x).mean
    finally:
        RULES._rules.clear()
        RULES._rules.update(before)
    torch.testing.assert_close(mean, (0.5 * x.var).exp() * torch.sinh(x.mean))


@pytest.mark.parametrize("wrap", [by_quadrature, by_taylor])
def test_a_wider_argument_widens_both_streams_at_the_first_call_and_later(wrap):
    x, factors = gaussian(3), torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]]).double()
    wrapped = wrap(lambda z, factor: factor * z)
    for factor in (factors, factors[0], factors):
        out = wrapped(x, factor)
        torch.testing.assert_close(out.mean, factor * x.mean)
        torch.testing.assert_close(out.var, factor.square() * x.var)


@pytest.mark.parametrize("wrap", [by_quadrature, by_taylor])
@pytest.mark.parametrize("function", [lambda z, d: z if d else z.sum(0), lambda z, d: z if d else z[None]])
def test_another_shape_is_refused_after_the_first_call_too(wrap, function):
    wrapped = wrap(function)
    wrapped(gaussian(3), True)
    with pytest.raises(ValueError, match=r"not elementwise: it maps shape \(3,\) to"):
        wrapped(gaussian(3), False)


def test_further_arguments_are_passed_on():
    x = gaussian(5)
    wrapped = mnvi.elementwise(lambda z, power, scale=1.0: scale * z**power)
    torch.testing.assert_close(wrapped(x, 2, scale=3.0).mean, 3 * (x.mean**2 + x.var))


def test_inplace_argument_leaves_the_input_alone():
    x = gaussian(5)
    mean = x.mean.clone()
    for approximation in ("quadrature", "taylor"):
        mnvi.elementwise(F.silu, approximation)(x, inplace=True)
        torch.testing.assert_close(x.mean, mean, rtol=0, atol=0)


@pytest.mark.parametrize("moments", [taylor_moments, lambda *args: quadrature_moments(*args, gauss_hermite(8))])
def test_gradients_match_finite_differences(moments):
    x = gaussian(4)
    inputs = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda mean, var: moments(bump, mean, var), inputs)


@pytest.mark.parametrize("approximation", ["quadrature", "taylor"])
def test_parameters_inside_the_function_get_gradients(approximation):
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x = gaussian(4)

    def moments(scale):
        y = mnvi.elementwise(lambda z: z * torch.sigmoid(scale * z), approximation)(x)
        return y.mean, y.var

    assert torch.autograd.gradcheck(moments, (scale,))


def test_gradient_without_noise_is_finite():
    mean, var = torch.randn(5, requires_grad=True), torch.zeros(5, requires_grad=True)
    y = by_quadrature(bump)(mnvi.Gaussian(mean, var))
    assert (y.var == 0).all()
    gradients = torch.autograd.grad(y.mean.sum() + y.var.sum(), (mean, var))
    torch.testing.assert_close(gradients[0], -2 * mean.detach() * bump(mean.detach()))
    assert gradients[1].isfinite().all()


def test_backward_keeps_the_same_memory_for_any_order():
    def kept(order):
        held = {}
        x = mnvi.Gaussian(torch.randn(1000, requires_grad=True), torch.rand(1000, requires_grad=True))

        def pack(tensor):
            held[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = by_quadrature(bump, order)(x)
        assert y.requires_grad
        return sum(held.values())

    assert kept(30) <= kept(3)


def test_variance_is_not_negative_where_the_function_is_flat():
    x = mnvi.Gaussian(torch.full((1000,), 30.0), torch.rand(1000))
    y = by_quadrature(lambda z: torch.tanh(z) + 1e3)(x)
    assert (y.var >= 0).all()


def test_half_precision_mean_keeps_its_dtype():
    x = gaussian(5, dtype=torch.float32)
    for wrapped in (by_quadrature(bump), by_taylor(bump)):
        y = wrapped(mnvi.Gaussian(x.mean.bfloat16(), x.var))
        assert (y.mean.dtype, y.var.dtype) == (torch.bfloat16, torch.float32)


def test_vmap_and_compile_agree_with_eager():
    x = gaussian(3, 4, dtype=torch.float32)
    functions = by_quadrature(bump), by_taylor(bump)

    def both(mean, var):
        values = [function(mnvi.Gaussian(mean, var)) for function in functions]
        return [part for value in values for part in (value.mean, value.var)]

    expected = both(x.mean, x.var)
    torch.testing.assert_close(torch.func.vmap(both)(x.mean, x.var), expected)
    torch.testing.assert_close(torch.compile(both, fullgraph=True, backend="aot_eager")(x.mean, x.var), expected)


def test_an_own_function_takes_part_in_a_network():
    class Bump(nn.Module):
        def forward(self, x):
            return wrapped(x)

    wrapped = mnvi.elementwise(bump)
    network = mnvi.convert(
        nn.Sequential(nn.Linear(3, 4), Bump(), nn.Linear(4, 1)), mnvi.MultiplicativeNoise(prior_variance=1e-2)
    )
    out = network(torch.randn(5, 3))
    assert out.shape == (5, 1)
    assert (out.var > 0).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"function": 3}, TypeError, "function=3 is not callable"),
        ({"function": bump, "approximation": "exact"}, ValueError, "approximation='exact' must be"),
        ({"function": bump, "order": 1}, ValueError, "order=1 must be"),
        ({"function": bump, "order": 2.5}, ValueError, r"order=2\.5 must be"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        mnvi.elementwise(**arguments)


def test_mean_of_a_log_normal_converges_with_the_order():
    x = mnvi.Gaussian(torch.zeros(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64))
    errors = [abs(by_quadrature(torch.exp, order)(x).mean.item() - math.e) for order in (4, 8, 16)]
    assert errors[0] > 10 * errors[1] > 100 * errors[2]


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda x: torch.softmax(x, -1), "changing one entry changes other entries"),
        (lambda x: torch.dropout(x, 0.5, True), "or random"),
        (lambda x: x.sum(-1), r"maps shape \(2, 300\) to \(2,\)"),
    ],
    ids=["softmax", "dropout", "sum"],
)
def test_a_function_that_is_not_elementwise_is_refused(function, complaint):
    with pytest.raises(ValueError, match=complaint):
        mnvi.elementwise(function)(mnvi.Gaussian(torch.ones(2, 300), torch.ones(2, 300)))


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.cumsum(0),
        lambda z: z.flip(0).cumsum(0).flip(0),
        lambda z: z + z.roll(1),
        lambda z: z - z.amax(),
        lambda z: z - z.amin(),
        lambda z: z + z[-1],
    ],
)
def test_a_dependence_of_any_entry_on_another_is_found_after_a_single_one_was_tried(function):
    wrapped = mnvi.elementwise(function)
    wrapped(mnvi.Gaussian(torch.ones(1), torch.ones(1)))
    with pytest.raises(ValueError, match="not elementwise"):
        wrapped(mnvi.Gaussian(torch.randn(5), torch.ones(5)))


def test_what_is_not_finite_is_refused_with_a_remedy():
    x = mnvi.Gaussian(torch.tensor([5.0, 1.0]), torch.tensor([0.01, 0.5]))
    message = r"log1p: not finite for a Gaussian of mean 1 and variance 0\.5; mnvi\.elementwise\(log1p, 'taylor'\)"
    with pytest.raises(ValueError, match=message):
        mnvi.elementwise(torch.log1p)(x)
    out = by_taylor(torch.log1p)(x)
    torch.testing.assert_close(out.var, x.var / (1 + x.mean).square())
    with pytest.raises(ValueError, match=r"log1p: not finite for a Gaussian of mean -2 and variance 0\.1$"):
        by_taylor(torch.log1p)(mnvi.Gaussian(torch.tensor([-2.0]), torch.tensor([0.1])))


def test_what_was_not_finite_before_is_passed_on():
    out = mnvi.elementwise(torch.sinh)(mnvi.Gaussian.trusted(torch.tensor([0.0, math.nan]), torch.ones(2)))
    assert out.mean[0].abs() < 1e-6 and out.mean[1].isnan()


@pytest.mark.parametrize("function", [torch.atanh, torch.acos, torch.special.logit])
def test_a_function_on_a_part_of_the_line_is_advised_the_first_order_rule(function):
    x = mnvi.Gaussian(torch.tensor([0.5]), torch.tensor([0.1]))
    with pytest.raises(mnvi.NoRuleError, match=r"mnvi\.rule\(.*\)\(mnvi\.elementwise\(.*, 'taylor'\)\)"):
        function(x)
    assert by_taylor(function)(x).var.isfinite().all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.bilinear(x, x.mean, torch.ones(1, 2, 2)),
        lambda x: torch.linalg.inv(x),
    ],
)
def test_a_function_that_is_not_elementwise_is_not_advised_to_be_taken_for_one(call):
    with pytest.raises(mnvi.NoRuleError) as caught:
        call(mnvi.Gaussian(torch.eye(2), torch.ones(2, 2)))
    assert "elementwise" not in str(caught.value)
