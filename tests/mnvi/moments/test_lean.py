"""Formulas in blocks, computed again in the backward pass: same numbers, little memory."""

import pytest
import torch
from conformance import memory_layouts

from mnvi.moments import lean as module
from mnvi.moments.activations.hardswish import hardswish
from mnvi.moments.activations.piecewise import kink
from mnvi.moments.lean import lean

LARGE = 8 * module._BLOCK


def plain(mean, var):
    return mean.sin() * var, var * mean.square()


def layouts():
    """Name, mean and variance of tensors large enough for blocks, or just not fit for them."""
    size = (3, 16, 57, LARGE // (3 * 16 * 57) + 1)  # not divisible by a block
    mean, var = torch.randn(size), torch.rand(size)
    yield from memory_layouts(mean, var)
    yield "small", mean[:1, :1], var[:1, :1]


@pytest.mark.parametrize(("mean", "var"), [pytest.param(m, v, id=name) for name, m, v in layouts()])
def test_blocks_give_what_the_formula_gives(mean, var):
    expected_leaves = [t.clone().requires_grad_() for t in (mean, var)]
    expected = plain(*expected_leaves)
    leaves = [mean.requires_grad_(), var.requires_grad_()]
    with torch.no_grad():
        torch.testing.assert_close(lean(plain)(*leaves), expected)
    result = lean(plain)(*leaves)
    torch.testing.assert_close(result, expected)
    gradients = torch.autograd.grad(result, leaves, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, expected_leaves, expected))


def test_backward_keeps_the_inputs_alone():
    held = set()

    def pack(tensor):
        held.add(tensor.data_ptr())
        return tensor

    mean, var = torch.randn(100, requires_grad=True), torch.rand(100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hardswish(mean, var)
    assert held == {mean.data_ptr(), var.data_ptr()}


def test_blocks_keep_the_memory_format():
    mean = torch.randn(2, 16, 64, 64).contiguous(memory_format=torch.channels_last)
    assert mean.numel() >= LARGE
    for part in lean(plain)(mean, mean.square()):
        assert part.is_contiguous(memory_format=torch.channels_last)


def test_one_input_may_need_no_gradient():
    mean, var = torch.randn(10, dtype=torch.float64), torch.rand(10, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda var: lean(plain)(mean, var), (var,))


def test_one_output_may_be_unused():
    mean, var = torch.randn(10, requires_grad=True), torch.rand(10, requires_grad=True)
    (gradient,) = torch.autograd.grad(lean(plain)(mean, var)[0].sum(), mean)
    torch.testing.assert_close(gradient, mean.cos() * var)


def test_tensor_arguments_get_gradients():
    inputs = torch.randn(4, 3), torch.rand(4, 3), torch.rand(3), torch.rand(3)
    leaves = [t.double().requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(kink, leaves)


def test_functional_transforms_see_the_formula():
    mean, var = torch.randn(5), torch.rand(5)
    hessian = torch.func.jacrev(torch.func.jacrev(lambda m: lean(plain)(m, var)[1].sum()))(mean)
    torch.testing.assert_close(hessian, torch.diag(2 * var))
