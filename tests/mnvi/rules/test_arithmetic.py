"""Arithmetic, reductions and contractions: moments, broadcasting, dtypes, and one object used twice."""

import operator

import pytest
import torch
from packaging.version import Version
from rule_checks import (
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_moments_are_those_of_samples,
    assert_zero_variance_is_deterministic,
    gaussian,
)

import mnvi
from mnvi.rules.table import RULES

FLOATS = torch.randn(3, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
X, Y = gaussian(3, 4), gaussian(4, seed=1)
MATRIX = torch.randn(4, 2, generator=torch.Generator().manual_seed(8), dtype=torch.float64)

EXACT = {
    "x + y": (lambda x, y: x + y, (X, Y)),
    "x - y": (lambda x, y: x - y, (X, Y)),
    "x * y": (lambda x, y: x * y, (X, Y)),
    "add with alpha": (lambda x, y: torch.add(x, y, alpha=3), (X, Y)),
    "sub with alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), (X, Y)),
    "x + tensor": (lambda x: x + FLOATS, (Y,)),
    "tensor + x": (lambda x: FLOATS + x, (Y,)),
    "x - tensor": (lambda x: x - FLOATS, (Y,)),
    "tensor - x": (lambda x: FLOATS - x, (Y,)),
    "x * tensor": (lambda x: x * FLOATS, (Y,)),
    "tensor * x": (lambda x: FLOATS * x, (Y,)),
    "x / tensor": (lambda x: x / (FLOATS + 5), (Y,)),
    "x + 2": (lambda x: x + 2, (X,)),
    "2 - x": (lambda x: 2 - x, (X,)),
    "rsub with alpha": (lambda x: torch.rsub(x, 2, alpha=3), (X,)),
    "2 * x": (lambda x: 2 * x, (X,)),
    "x / 4": (lambda x: x / 4, (X,)),
    "-x": (lambda x: -x, (X,)),
    "x + x": (lambda x: x + x, (X,)),
    "x - x": (lambda x: x - x, (X,)),
    "x * x": (lambda x: x * x, (X,)),
    "x - 2x by alpha": (lambda x: torch.sub(x, x, alpha=2), (X,)),
    "square": (torch.square, (X,)),
    "integer tensor": (lambda x: x * torch.tensor([1, 2, 3, 4]) + torch.tensor(2), (X,)),
    "boolean tensor": (lambda x: x * torch.tensor([True, False, True, True]), (X,)),
    "sum": (lambda x: x.sum(), (X,)),
    "sum over one": (lambda x: torch.sum(x, 1, keepdim=True), (X,)),
    "mean": (lambda x: torch.mean(x), (X,)),
    "mean over one": (lambda x: torch.mean(x, dim=-1), (X,)),
    "mean over two": (lambda x: torch.mean(x, (0, 1), keepdim=True), (X,)),
    "cumsum": (lambda x: torch.cumsum(x, 1), (X,)),
    "matmul": (lambda x, y: x @ y, (X, gaussian(4, 2, seed=2))),
    "matmul with a tensor": (lambda x: x @ MATRIX, (X,)),
    "tensor matmul": (lambda x: MATRIX @ x, (gaussian(2, 3),)),
    "vector": (lambda x, y: torch.mv(x, y), (X, Y)),
    "batched": (torch.bmm, (gaussian(2, 3, 4), gaussian(2, 4, 2, seed=3))),
    "dot": (torch.dot, (Y, gaussian(4, seed=5))),
    "dot with itself": (lambda x: torch.dot(x, x), (Y,)),
    "addmm": (
        lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=0.5),
        (gaussian(2, seed=4), X, gaussian(4, 2, seed=2)),
    ),
    "baddbmm": (
        lambda x, y: torch.baddbmm(FLOATS[:, :2], x, y),
        (gaussian(2, 3, 4), gaussian(2, 4, 2, seed=3)),
    ),
    "addcmul": (lambda x, y: torch.addcmul(FLOATS, x, y, value=0.5), (X, Y)),
    "addcmul with known factors": (lambda x: torch.addcmul(x, FLOATS, FLOATS), (X,)),
    "addcmul, all random": (lambda x, y, z: x.addcmul(y, z), (X, Y, gaussian(3, 4, seed=2))),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "lerp from a tensor by a tensor": (lambda x: torch.lerp(FLOATS, x, FLOATS), (X,)),
    "lerp to itself": (lambda x: torch.lerp(x, x, 0.3), (X,)),
    "outer": (torch.outer, (gaussian(3), Y)),
    "outer with a tensor": (lambda y: torch.outer(FLOATS[0], y), (Y,)),
    "tensordot": (lambda x, y: torch.tensordot(x, y, 1), (X, gaussian(4, 2, seed=2))),
    "tensordot by pairs": (
        lambda x, y: torch.tensordot(x, y, ([0, 1], [1, 0])),
        (X, gaussian(4, 3, 2, seed=2)),
    ),
    "tensordot with a tensor": (lambda x: torch.tensordot(MATRIX, x, dims=([0], [1])), (X,)),
    "broadcast_tensors": (lambda x, y: torch.add(*torch.broadcast_tensors(x, y)), (X, Y)),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ki", x, y), (X, gaussian(4, 2, seed=2))),
    "einsum with a tensor": (lambda x: torch.einsum("ij, jk", x, MATRIX), (X,)),
    "einsum, private sums": (lambda x, y: torch.einsum("ij,jk->i", x, y), (X, gaussian(4, 2, seed=2))),
    "einsum, outer": (lambda x, y: torch.einsum("i,j->ij", x, y), (gaussian(3), Y)),
    "einsum, one operand": (lambda x: torch.einsum("ij->j", x), (X,)),
    "einsum, diagonal": (lambda x: torch.einsum("ii->i", x), (gaussian(3, 3),)),
    "einsum, ellipsis summed": (lambda x, y: torch.einsum("...i,i->", x, y), (gaussian(3, 2), gaussian(2, seed=1))),
    "einsum, ellipsis of one operand": (lambda x, y: torch.einsum("...i,i", x, y), (gaussian(2, 3, 4), Y)),
    "einsum, ellipses of two lengths": (
        lambda x, y: torch.einsum("...i,...i->i", x, y),
        (gaussian(2, 3, 4), gaussian(3, 4, seed=1)),
    ),
    "einsum, broadcast and summed": (lambda y: torch.einsum("ni,ni->", FLOATS, y), (gaussian(1, 4),)),
    "einsum, one broadcast and summed": (lambda x, y: torch.einsum("ni,ni->i", x, y), (X, gaussian(1, 4, seed=1))),
    "einsum, broadcast and kept": (lambda x, y: torch.einsum("ni,ni->n", x, y), (X, gaussian(1, 4, seed=1))),
    "einsum, diagonal of two": (lambda x, y: torch.einsum("ii,i->", x, y), (gaussian(3, 3), gaussian(3, seed=1))),
    "einsum, ellipsis": (
        lambda x, y: torch.einsum("...ij,...jk->...ik", x, y),
        (gaussian(2, 3, 4), gaussian(2, 4, 2, seed=3)),
    ),
}
SMALL_NOISE = {
    "reciprocal": lambda x: torch.reciprocal(x),
    "1 / x": lambda x: 1 / x,
    "tensor / x": lambda x: FLOATS[0] / x,
}


@pytest.mark.parametrize("case", EXACT)
def test_moments_are_those_of_samples(case):
    function, args = EXACT[case]
    assert_moments_are_those_of_samples(function, *args)


@pytest.mark.parametrize("case", EXACT)
def test_zero_variance_and_gradients(case):
    function, args = EXACT[case]
    assert_zero_variance_is_deterministic(function, *args)
    assert_gradients_are_right(function, *args)


@pytest.mark.parametrize("case", ["x * y", "x * x", "matmul", "einsum", "x - y", "mean over one", "cumsum"])
def test_half_precision(case):
    function, args = EXACT[case]
    assert_half_precision_keeps_the_variance(function, *args)


@pytest.mark.parametrize("case", SMALL_NOISE)
def test_quotients_are_right_for_small_noise(case):
    function, x = SMALL_NOISE[case], mnvi.Gaussian(Y.mean + 5, Y.var * 1e-4)
    draws = function(x.sample(100_000, torch.Generator().manual_seed(0)))
    out = function(x)
    torch.testing.assert_close(out.mean, function(x.mean))
    torch.testing.assert_close(out.var, draws.var(0), rtol=0.03, atol=0)  # 5 standard errors are 2.2 %


@pytest.mark.parametrize("ratio", [0.05, 0.1])
def test_the_reciprocal_is_as_far_off_as_documented(ratio):
    x = mnvi.Gaussian(torch.ones(1, dtype=torch.float64), torch.full((1,), ratio**2, dtype=torch.float64))
    draws, out = 1 / x.sample(2_000_000, torch.Generator().manual_seed(0)), 1 / x
    assert 1 - (out.mean / draws.mean(0)).item() == pytest.approx(ratio**2, rel=0.1)
    assert 1 - (out.std / draws.std(0)).item() == pytest.approx(4 * ratio**2, rel=0.1, abs=0.0025)  # 5 standard errors


@pytest.mark.parametrize("name", ["mean", "sum", "amax", "amin", "max", "min"])
@pytest.mark.parametrize("dim", [None, 0, -1])
def test_reductions_of_a_number_give_it_back(name, dim):
    x = mnvi.Gaussian(torch.tensor(0.3), torch.tensor(0.5))
    out = getattr(torch, name)(x) if dim is None else getattr(torch, name)(x, dim)
    out = out.values if isinstance(out, tuple) else out
    assert out.mean.shape == out.var.shape == ()
    assert torch.equal(out.mean, x.mean) and torch.equal(out.var, x.var)


def test_a_dimension_that_is_not_there_is_refused():
    for dim, x in ((2, X), (-3, X), (1, mnvi.Gaussian(torch.tensor(0.3), torch.tensor(0.5)))):
        with pytest.raises(IndexError, match=f"amax, amin: dim={dim} must be from"):
            torch.amin(x, dim)


def test_one_object_minus_itself_is_certain():
    out = X - X
    assert (out.mean == 0).all()
    assert (out.var == 0).all()


def test_one_object_divided_by_itself_is_refused():
    with pytest.raises(TypeError, match="divided by itself"):
        X / X


@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_wider_tensor_widens_mean_and_variance_in_shape_and_dtype(function, swapped):
    x, wide = gaussian(4, dtype=torch.float32), FLOATS + 5
    out = function(wide, x) if swapped else function(x, wide)
    assert out.mean.shape == out.var.shape == (3, 4)
    assert out.mean.dtype == out.var.dtype == torch.float64


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_in_place_forms_change_the_object_and_not_its_tensors(name):
    x = gaussian(3, 4)
    mean = x.mean.clone()
    held = x.mean
    expected = getattr(gaussian(3, 4), name[:-1])(FLOATS)
    assert getattr(x, name)(FLOATS) is x
    torch.testing.assert_close(x.mean, expected.mean)
    torch.testing.assert_close(x.var, expected.var)
    assert torch.equal(held, mean)


def test_augmented_assignment():
    x = gaussian(3, 4)
    alias = x
    x += FLOATS
    x *= 2
    assert alias is x
    torch.testing.assert_close(x.mean, (X.mean + FLOATS) * 2)
    torch.testing.assert_close(x.var, X.var * 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.einsum("i,i,i->i", Y, Y.mean, Y), "not independent of itself"),
        (lambda: torch.einsum("i,i->", Y, Y), "not independent of itself"),
        (lambda: torch.outer(Y, Y), "not independent of itself"),
        (lambda: torch.lerp(X, Y, Y), "lerp: weight must be a number or a tensor"),
        (lambda: torch.div(X, 2, rounding_mode="floor"), "rounding_mode='floor'"),
    ],
)
def test_what_has_no_meaning_is_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "function",
    [torch.unique, torch.quantile, torch.histc, torch.mode],
)
def test_what_would_drop_the_variance_has_no_rule(function):
    assert function not in RULES
    with pytest.raises(mnvi.NoRuleError):
        function(X, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.addcmul(X, X, Y), "not independent of the product"),
        (lambda: torch.tensordot(X, gaussian(1, 4), dims=([0], [0])), r"sizes \[3\] and \[1\]"),
        (lambda: torch.einsum("i,j->i", Y), "has 2 operands, but 1 are given"),
        (lambda: torch.einsum("ijk,k->i", X, Y), r"'ijk' does not fit an operand of shape \(3, 4\)"),
        (lambda: torch.einsum("ij,i->", X, Y), "index 'i' of 'ij,i->' has the sizes 3 and 4"),
        (lambda: torch.einsum("i,i->", X, Y), r"'i' does not fit an operand of shape \(3, 4\)"),
    ],
)
def test_indices_that_do_not_fit_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def chain(x, y):
    z = torch.maximum(2 * x - FLOATS, y) / 3 + (x * y).sum(1, keepdim=True)
    return torch.einsum("ij,jk->ik", z, MATRIX) + torch.mean(torch.matmul(z, MATRIX), 0)


def test_compile_without_graph_breaks():
    out = torch.compile(chain, fullgraph=True, backend="aot_eager")(X, Y)
    torch.testing.assert_close(out.mean, chain(X, Y).mean)
    torch.testing.assert_close(out.var, chain(X, Y).var)


def inside_a_compiled_function(operation, *args):
    return torch.compile(operation, fullgraph=True, backend="eager")(*args)


@pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_operators_keep_the_order_of_their_operands_when_compiled(operation):
    x = gaussian(3)
    x = mnvi.Gaussian(x.mean + 5, x.var)
    for args in ((x, FLOATS[0, :3]), (FLOATS[0, :3], x), (x, 2.0), (2.0, x)):
        torch.compiler.reset()
        out, expected = inside_a_compiled_function(lambda a, b: operation(a, b), *args), operation(*args)
        torch.testing.assert_close(out.mean, expected.mean)
        torch.testing.assert_close(out.var, expected.var)


@pytest.mark.parametrize("first", ["tensor", "gaussian"])
def test_the_matmul_operator_is_refused_when_compiled_since_dynamo_swaps_its_operands(first):
    x, tensor = gaussian(3, 3), FLOATS[:, :3]
    args = {"tensor": (tensor, x), "gaussian": (x, tensor)}[first]
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.matmul\(a, b\)"):
        inside_a_compiled_function(lambda a, b: a @ b, *args)
    broken = torch.compile(lambda a, b: a @ b, backend="eager")(*args)  # with a graph break it is right
    torch.testing.assert_close(broken.var, torch.matmul(*args).var)
    out = inside_a_compiled_function(torch.matmul, *args)
    torch.testing.assert_close(out.var, torch.matmul(*args).var)


def test_the_matmul_operator_between_two_gaussians_is_right_when_compiled():
    args = gaussian(3, 3), gaussian(3, 3, seed=1)
    known_to_dynamo = Version(torch.__version__) >= Version("2.14")
    if not known_to_dynamo:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="builtin operator `matmul`"):
            inside_a_compiled_function(lambda a, b: a @ b, *args)
    out = torch.compile(lambda a, b: a @ b, fullgraph=known_to_dynamo, backend="eager")(*args)
    torch.testing.assert_close(out.mean, torch.matmul(*args).mean)
    torch.testing.assert_close(out.var, torch.matmul(*args).var)
    out = inside_a_compiled_function(torch.matmul, *args)
    torch.testing.assert_close(out.var, torch.matmul(*args).var)


def test_vmap():
    x = gaussian(5, 3, 4)
    out = torch.func.vmap(lambda x: x @ MATRIX + x.sum())(x)
    torch.testing.assert_close(out.var, torch.stack([(x[i] @ MATRIX + x[i].sum()).var for i in range(5)]))
