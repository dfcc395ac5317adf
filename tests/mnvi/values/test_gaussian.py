"""The value: arithmetic, shapes, conversion, copying, and its passage through torch's transformations."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import mnvi
from mnvi import Gaussian
from mnvi.moments.normal import safe_sqrt

SAMPLES = 200_000
STANDARD_ERRORS = 5.0


def gaussian(*shape: int, dtype: torch.dtype = torch.float32) -> Gaussian:
    return Gaussian(torch.randn(shape, dtype=dtype), torch.rand(shape, dtype=dtype) + 0.1)


def assert_equal(a: Gaussian, b: Gaussian) -> None:
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.var, b.var)
    assert a.mean.shape == a.var.shape


def assert_moments_of_samples(out: Gaussian, samples: Tensor) -> None:
    assert out.mean.shape == out.var.shape == samples.shape[1:]
    centred = samples.double() - out.mean
    square = centred.square().mean(0)
    error = ((centred.pow(4).mean(0) - square.square()).clamp(min=0) / SAMPLES).sqrt()
    assert (centred.mean(0).abs() <= STANDARD_ERRORS * (square / SAMPLES).sqrt() + 1e-6).all()
    assert ((square - out.var).abs() <= STANDARD_ERRORS * error + 1e-6).all()


T = torch.tensor([[0.5], [-2.0]], dtype=torch.float64)  # broadcasts against [2, 3]

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x + x": lambda x, y: x + x,
    "x - x": lambda x, y: x - x,
    "x * x": lambda x, y: x * x,
    "x + 2": lambda x, y: x + 2,
    "2 + x": lambda x, y: 2 + x,
    "x - 2": lambda x, y: x - 2,
    "2 - x": lambda x, y: 2 - x,
    "x * 3": lambda x, y: x * 3,
    "3 * x": lambda x, y: 3 * x,
    "x / 3": lambda x, y: x / 3,
    "-x": lambda x, y: -x,
    "x + t": lambda x, y: x + T,
    "t + x": lambda x, y: T + x,
    "x - t": lambda x, y: x - T,
    "t - x": lambda x, y: T - x,
    "x * t": lambda x, y: x * T,
    "t * x": lambda x, y: T * x,
    "x / t": lambda x, y: x / T,
    "x - alpha y": lambda x, y: torch.sub(x, y, alpha=3),
    "x + alpha y": lambda x, y: torch.add(x, y, alpha=-2),
    "x + alpha x": lambda x, y: torch.add(x, x, alpha=2),
    "x - alpha x": lambda x, y: torch.sub(x, x, alpha=3),
    "broadcast": lambda x, y: x[..., :1] + y,
    "broadcast product": lambda x, y: x[..., :1] * y,
    "square": lambda x, y: x.square(),
    "sum": lambda x, y: x.sum(-1),
    "total": lambda x, y: x.sum((-1, -2)),
    "average": lambda x, y: torch.mean(x, -1, keepdim=True),
    "x @ t": lambda x, y: x @ torch.ones(3, 2, dtype=torch.float64),
    "t @ x": lambda x, y: torch.ones(4, 2, dtype=torch.float64) @ x,
    "x @ y": lambda x, y: x @ y.transpose(-1, -2),
}


@pytest.mark.parametrize("operation", list(ARITHMETIC.values()), ids=list(ARITHMETIC))
def test_arithmetic_has_the_moments_of_samples(operation: Callable[[Any, Any], Any]) -> None:
    x, y = gaussian(2, 3, dtype=torch.float64), gaussian(2, 3, dtype=torch.float64)
    assert_moments_of_samples(operation(x, y), operation(x.sample(SAMPLES), y.sample(SAMPLES)))


def test_division_by_a_gaussian_is_first_order() -> None:
    """With σ = |μ|/100 the neglected second order is 1e-4 of the mean, 1e-3 of the variance."""
    x = gaussian(2, 3, dtype=torch.float64)
    y = Gaussian(torch.full((2, 3), 4.0).double(), torch.full((2, 3), 0.04**2).double())
    for quotient, samples in (
        (x / y, x.sample(SAMPLES) / y.sample(SAMPLES)),
        (2 / y, 2 / y.sample(SAMPLES)),
        (T / y, T / y.sample(SAMPLES)),
    ):
        torch.testing.assert_close(quotient.mean, samples.mean(0), rtol=2e-4, atol=3e-3)
        torch.testing.assert_close(quotient.var, samples.var(0), rtol=0.02, atol=0.0)


def test_mixed_dtypes_keep_the_precision_of_the_mean() -> None:
    x = gaussian(3)
    for out in (x + torch.zeros(3).double(), x * torch.ones(3).double(), torch.ones(3).double() - x):
        assert out.mean.dtype == out.var.dtype == torch.float64


def test_squares_of_small_dtypes_do_not_overflow() -> None:
    x = Gaussian(torch.ones(1), torch.ones(1))
    assert (x * torch.tensor([200], dtype=torch.uint8)).var.item() == 40_000
    assert (x / torch.tensor([20], dtype=torch.int8)).var.item() == pytest.approx(1 / 400)
    half = Gaussian(torch.ones(1).half(), torch.ones(1))
    assert (half * torch.tensor([300.0]).half()).var.item() == 90_000


def test_zero_dimensional_tensor_scales_like_a_number() -> None:
    x = gaussian(3)
    assert_equal(x * torch.tensor(2.0, dtype=torch.float64), x * 2)


REARRANGEMENTS: dict[str, Callable[[Any], Any]] = {
    "view": lambda x: x.view(6, 4),
    "view -1": lambda x: x.view(2, -1),
    "reshape": lambda x: torch.reshape(x, (4, 6)),
    "flatten": lambda x: torch.flatten(x, 1),
    "method flatten": lambda x: x.flatten(0, 1),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2),
    "T": lambda x: x[0].T,
    "mT": lambda x: x.mT,
    "t": lambda x: x[0].t(),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: torch.unsqueeze(x, 1),
    "expand": lambda x: x[:, :1].expand(2, 3, 4),
    "expand_as": lambda x: x[:, :1].expand_as(torch.zeros(2, 3, 4)),
    "repeat": lambda x: x.repeat(2, 1, 1),
    "index": lambda x: x[1],
    "negative index": lambda x: x[..., -1],
    "slice": lambda x: x[:, 1:, ::2],
    "None": lambda x: x[:, None],
    "mask": lambda x: x[torch.tensor([True, False])],
    "fancy": lambda x: x[:, torch.tensor([2, 0])],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "select": lambda x: torch.select(x, 2, 1),
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 2])),
    "flip": lambda x: torch.flip(x, (0,)),
    "roll": lambda x: x.roll(1, 2),
    "pad": lambda x: F.pad(x, (1, 2)),
    "reflect": lambda x: F.pad(x, (1, 2), "reflect"),
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x], -1),
    "chunk": lambda x: x.chunk(2, 2)[1],
    "split": lambda x: torch.split(x, [1, 2], 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "iteration": lambda x: list(x)[1],
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "clone": lambda x: x.clone(),
    "detach": lambda x: x.detach(),
    "double": lambda x: x.double(),
    "to dtype": lambda x: x.to(torch.float64),
    "to device": lambda x: x.to("cpu"),
    "to other": lambda x: x.to(torch.zeros(1, dtype=torch.float64)),
    "type_as": lambda x: x.type_as(torch.zeros(1, dtype=torch.float64)),
    "float": lambda x: x.double().float(),
    "cpu": lambda x: x.cpu(),
}


@pytest.mark.parametrize("operation", list(REARRANGEMENTS.values()), ids=list(REARRANGEMENTS))
def test_rearrangement_does_to_variances_what_it_does_to_means(operation: Callable[[Any], Any]) -> None:
    x = gaussian(2, 3, 4)
    out, mean, var = operation(x), operation(x.mean), operation(x.var)
    assert torch.equal(out.mean, mean) and torch.equal(out.var, var)
    assert out.shape == out.mean.shape == out.var.shape and out.dtype == mean.dtype


def test_padding_with_a_constant_has_no_variance() -> None:
    out = F.pad(gaussian(2, 3), (1, 0), value=7.0)
    assert (out.mean[:, 0] == 7).all() and (out.var[:, 0] == 0).all()


def test_joining_with_a_plain_tensor_gives_it_zero_variance() -> None:
    x, t = gaussian(2, 3), torch.ones(2, 3)
    assert torch.equal(torch.cat([x, t]).var, torch.cat([x.var, torch.zeros(2, 3)]))
    assert torch.equal(torch.stack([t, x]).var, torch.stack([torch.zeros(2, 3), x.var]))


def test_where_and_masked_fill_take_the_variance_of_what_they_take() -> None:
    x, y, mask = gaussian(2, 3), gaussian(2, 3), torch.tensor([True, False, True])
    assert torch.equal(torch.where(mask, x, y).var, torch.where(mask, x.var, y.var))
    assert torch.equal(torch.where(mask, x, 1.0).var, torch.where(mask, x.var, 0.0))
    assert torch.equal(torch.where(mask, 1.0, x).mean, torch.where(mask, 1.0, x.mean))
    assert torch.equal(x.where(mask, y).mean, torch.where(mask, x.mean, y.mean))
    assert torch.equal(x.masked_fill(mask, 5.0).var, x.var.masked_fill(mask, 0.0))


def test_attributes_are_those_of_the_mean() -> None:
    x = gaussian(2, 3)
    assert (x.shape, x.size(), x.size(1), x.size(-1)) == ((2, 3), (2, 3), 3, 3)
    assert (x.dim(), x.ndim, x.numel(), len(x)) == (2, 2, 6, 2)
    assert (x.dtype, x.device, x.is_cuda) == (torch.float32, torch.device("cpu"), False)
    assert x.is_floating_point() and x.is_contiguous() and not x.T.is_contiguous()
    assert x.new_zeros(2).shape == (2,) and torch.zeros_like(x).shape == (2, 3)
    assert torch.equal(x.std, x.var.sqrt())


def test_requires_grad_if_either_part_does() -> None:
    plain = torch.ones(2)
    assert not Gaussian(plain, plain).requires_grad
    assert Gaussian(torch.ones(2, requires_grad=True), plain).requires_grad
    assert Gaussian(plain, torch.ones(2, requires_grad=True)).requires_grad
    assert not Gaussian(plain, torch.ones(2, requires_grad=True)).detach().requires_grad


def test_printing_shows_both_parts() -> None:
    x = Gaussian(torch.tensor([1.0]), torch.tensor([0.25]))
    assert repr(x) == str(x) == "Gaussian(mean=tensor([1.]), var=tensor([0.2500]))"


def test_unknown_attribute_is_named_and_hasattr_says_no() -> None:
    x = gaussian(2)
    with pytest.raises(AttributeError, match=r"no attribute 'means'; use \.mean and \.var"):
        _ = x.means
    assert not hasattr(x, "means") and not hasattr(x, "__array_interface__") and not hasattr(x, "grad_fn")
    assert hasattr(x, "relu") and hasattr(x, "view")


def test_attributes_cannot_be_added() -> None:
    with pytest.raises(AttributeError):
        gaussian(2).name = "x"


def test_operation_without_a_rule_names_itself_and_mnvi_rule() -> None:
    x = gaussian(2, 2)
    for name, call in (
        ("torch.linalg.inv", lambda: torch.linalg.inv(x)),
        ("torch.sinh", lambda: torch.sinh(x)),
        ("torch.Tensor.sinh", lambda: x.sinh()),
        ("torch.nn.functional.mse_loss", lambda: F.mse_loss(x, x)),
        ("torch.equal", lambda: torch.equal(x, x)),
    ):
        with pytest.raises(mnvi.NoRuleError) as caught:
            call()
        assert str(caught.value).startswith(f"no rule for {name} on a Gaussian")
        assert f"@mnvi.rule({name})" in str(caught.value)


def test_truth_value_is_refused() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(gaussian(2))


def test_in_place_operations_change_the_object() -> None:
    for operation, expected in (
        (lambda x: x.add_(1), lambda x: x + 1),
        (lambda x: x.mul_(2), lambda x: x * 2),
        (torch.relu_, torch.relu),
        (lambda x: F.relu(x, inplace=True), torch.relu),
        (nn.ReLU(inplace=True), torch.relu),
    ):
        x = gaussian(2, 3)
        before, alias = copy.copy(x), x
        assert operation(x) is x
        assert_equal(alias, expected(before))


def test_augmented_assignment_changes_the_object_and_not_its_copies() -> None:
    x, y = gaussian(2, 3), gaussian(2, 3)
    alias, shallow, deep, clone, mean = x, copy.copy(x), copy.deepcopy(x), x.clone(), x.mean.clone()
    x += y
    assert alias is x
    for other in (shallow, deep, clone):
        assert torch.equal(other.mean, mean)
    torch.testing.assert_close(alias.mean, mean + y.mean)
    x -= 1
    x *= 2
    x /= 4
    torch.testing.assert_close(alias.mean, (mean + y.mean - 1) / 2)
    torch.testing.assert_close(alias.var, (shallow.var + y.var) / 4)


def test_augmented_assignment_of_itself_is_recognised() -> None:
    x = gaussian(3)
    before = x.clone()
    x += x
    torch.testing.assert_close(x.var, 4 * before.var)


def test_in_place_change_of_shape_is_refused() -> None:
    x = gaussian(3)
    with pytest.raises(ValueError, match=r"cannot change a Gaussian of shape \(3,\) to \(2, 3\)"):
        x += torch.zeros(2, 3)
    assert x.shape == (3,)


def test_tensor_cannot_take_in_a_gaussian_in_place() -> None:
    x = gaussian(3)
    t = torch.zeros(3)
    with pytest.raises(RuntimeError, match=r"its variance would be lost; write y = x\.add\("):
        t += x
    with pytest.raises(RuntimeError, match=r"its variance would be lost; write y = x\.mul\("):
        t *= x
    with pytest.raises(TypeError, match="out= cannot hold a Gaussian"):
        torch.add(x, 1, out=t)
    assert (t == 0).all()


def test_assignment_to_a_part_writes_mean_and_variance() -> None:
    x, y = gaussian(4), gaussian(2)
    mean, var = x.mean.clone(), x.var.clone()
    x[0] = 1.0
    x[1] += 2.0
    x[2:] = y
    torch.testing.assert_close(x.mean, torch.cat([torch.ones(1), mean[1:2] + 2, y.mean]))
    torch.testing.assert_close(x.var, torch.cat([torch.zeros(1), var[1:2], y.var]))


def test_assignment_to_a_part_keeps_gradients() -> None:
    mean, value = torch.zeros(3, requires_grad=True), torch.ones((), requires_grad=True)
    x = Gaussian(mean * 2, torch.ones(3))
    x[1] = value
    x.mean.sum().backward()
    assert mean.grad is not None and mean.grad.tolist() == [2, 0, 2] and value.grad == 1


def test_samples_have_the_moments_and_repeat_with_a_generator() -> None:
    x = gaussian(2, 3, dtype=torch.float64)
    assert_moments_of_samples(x, x.sample(SAMPLES))
    first = x.sample(4, torch.Generator().manual_seed(3))
    torch.manual_seed(99)
    assert torch.equal(first, x.sample(4, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, x.sample(4, torch.Generator().manual_seed(4)))


def test_samples_are_differentiable_also_at_zero_variance() -> None:
    mean, var = torch.zeros(3, requires_grad=True), torch.tensor([0.0, 0.5, 2.0], requires_grad=True)
    Gaussian(mean, var).sample(10).square().sum().backward()
    assert mean.grad is not None and var.grad is not None
    assert var.grad.isfinite().all() and var.grad[0] == 0 and (var.grad[1:] != 0).all()


def test_safe_sqrt_gradcheck_away_from_zero() -> None:
    assert torch.autograd.gradcheck(safe_sqrt, torch.rand(4, dtype=torch.float64).add(0.1).requires_grad_())


def test_pytree_takes_it_apart_and_together() -> None:
    x = gaussian(2, 3)
    leaves, structure = pytree.tree_flatten({"a": [x, 1]})
    assert leaves[0] is x.mean and leaves[1] is x.var and leaves[2] == 1
    back = pytree.tree_unflatten(leaves, structure)["a"][0]
    assert type(back) is Gaussian and back.mean is x.mean and back.var is x.var
    assert_equal(pytree.tree_map(lambda t: t * 2, x), Gaussian(x.mean * 2, x.var * 2))
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(x)[0]]
    assert paths == [".mean", ".var"]


def test_pickle_and_deepcopy() -> None:
    x = gaussian(2, 3)
    for other in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert_equal(other, x)
        assert other is not x and other.mean.data_ptr() != x.mean.data_ptr()
    first, second = copy.deepcopy([x, x])
    assert first is second


def test_torch_save_and_load(tmp_path: Any) -> None:
    x = gaussian(2, 3)
    torch.save(x, tmp_path / "x.pt")
    assert_equal(torch.load(tmp_path / "x.pt", weights_only=False), x)


def test_goes_through_vmap_as_input_and_output() -> None:
    x, y = gaussian(5, 3), gaussian(5, 3)
    assert_equal(torch.vmap(lambda a, b: torch.relu(a * b) + 1)(x, y), torch.relu(x * y) + 1)


def test_goes_through_grad_and_vmap_of_grad() -> None:
    x = gaussian(5, 3, dtype=torch.float64)

    def loss(g: Gaussian) -> Tensor:
        out = torch.relu(g * 2 + 1)
        return (out.mean + out.var).sum()

    slopes = torch.func.grad(loss)(x)
    assert type(slopes) is Gaussian
    mean, var = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    loss(Gaussian(mean, var)).backward()
    torch.testing.assert_close(slopes.mean, mean.grad)
    torch.testing.assert_close(slopes.var, var.grad)
    assert_equal(torch.vmap(torch.func.grad(loss))(x), slopes)


def test_constructor_inside_vmap_does_not_read_values() -> None:
    out = torch.vmap(lambda m, v: Gaussian(m, v) + 1)(torch.zeros(4, 2), torch.ones(4, 2))
    assert out.shape == (4, 2)


def model(x: Gaussian) -> tuple[Gaussian, dict[str, Gaussian]]:
    y = torch.relu(x.flatten(1)) * 2 - x.flatten(1)[:, :1]
    y += 1
    return torch.cat([y, x.flatten(1)], 1), {"part": Gaussian(y.mean[:, 0], y.var[:, 0].abs())}


def test_compiles_without_graph_breaks_as_input_and_output() -> None:
    x = gaussian(2, 3, 4)
    out, extra = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    expected, expected_extra = model(x)
    assert_equal(out, expected)
    assert_equal(extra["part"], expected_extra["part"])


def test_exports_as_input_and_output() -> None:
    class Wrapped(nn.Module):
        def forward(self, x: Gaussian) -> Any:
            return model(x)

    x = gaussian(2, 3, 4)
    program = torch.export.export(Wrapped(), (x,))
    out, extra = program.module()(x)
    assert_equal(out, model(x)[0])
    assert_equal(extra["part"], model(x)[1]["part"])


def test_second_derivatives_through_relu_where_the_graph_is_recorded() -> None:
    mean = torch.tensor([0.0, 1.0], requires_grad=True)
    out = torch.relu(Gaussian(mean, torch.ones(2)))
    (slope,) = torch.autograd.grad(out.mean.sum(), mean, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), mean)
    torch.testing.assert_close(curvature, torch.exp(-0.5 * mean.detach().square()) / (2 * torch.pi) ** 0.5)


def test_second_derivatives_through_relu_by_nested_transforms() -> None:
    def total(mean: Tensor) -> Tensor:
        return torch.relu(Gaussian.trusted(mean, torch.ones(2))).mean.sum()

    assert torch.func.jacrev(total)(torch.zeros(2)).tolist() == [0.5, 0.5]
    density = 0.3989422804014327  # E'' = φ(0)
    for second in (torch.func.jacrev(torch.func.jacrev(total)), torch.func.hessian(total)):
        torch.testing.assert_close(second(torch.zeros(2)), density * torch.eye(2))


def test_half_precision_mean_keeps_a_float32_variance() -> None:
    x = Gaussian(torch.ones(3).bfloat16(), torch.ones(3))
    for out in (x + 1, x * 2, x + x, torch.relu(x), x.sum(), torch.mean(x, 0), x * x):
        assert out.var.dtype == torch.float32


def test_a_saved_value_is_loaded_without_running_code(tmp_path):
    torch.save({"out": Gaussian(torch.tensor([1.0]), torch.tensor([2.0]))}, tmp_path / "out.pt")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)["out"]
    assert (loaded.mean.item(), loaded.var.item()) == (1.0, 2.0)


def test_what_is_asked_of_a_tensor_can_be_asked_of_a_value() -> None:
    x = gaussian(2, 3)
    assert x.stride() == (3, 1) and x.stride(0) == 3
    assert x.nelement() == x.numel() == 6
    assert torch.equal(x.new_full((2,), 7.0), torch.full((2,), 7.0))
    assert not x.requires_grad
    assert x.requires_grad_() is x and x.mean.requires_grad and x.var.requires_grad
    assert not x.requires_grad_(False).requires_grad
