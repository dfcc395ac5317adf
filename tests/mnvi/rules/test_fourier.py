"""Fourier transforms whose results are real: parts of a spectrum, and filters between a transform and its inverse."""

import pytest
import torch
from rule_checks import (
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_moments_are_those_of_samples,
    gaussian,
)

import mnvi

FILTER = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.complex128)
CASES = {
    "real part": lambda x: torch.fft.fft(x).real,
    "imaginary part": lambda x: torch.fft.fft(x, dim=1).imag,
    "of an inverse": lambda x: torch.real(torch.fft.ifft(x, norm="ortho")),
    "filled up with zeros": lambda x: torch.fft.fft(x, n=7).real,
    "cut off": lambda x: torch.real(torch.fft.fft(x, 3, norm="forward")),
    "half a spectrum": lambda x: torch.fft.rfft(x, dim=0).imag,
    "two dimensions": lambda x: torch.fft.fft2(x, norm="ortho").real,
    "all dimensions": lambda x: torch.fft.rfftn(x).imag,
    "one dimension after the other": lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
    "inverse over all": lambda x: torch.fft.ifftn(x, norm="forward").real,
    "there and back": lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho"), n=4, norm="ortho"),
    "filtered": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * FILTER[0, :2, :1], n=3, dim=1),
    "filtered in two dimensions": lambda x: torch.fft.irfft2(FILTER * torch.fft.rfft2(x), s=(3, 4)),
    "filtered by two": lambda x: torch.fft.irfft2(0.5 * (torch.fft.rfft2(x) * FILTER[0]) * FILTER[1], s=(3, 4)),
    "a shorter filter": lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=(-1,)) * FILTER[0, 0], s=(4,), dim=(-1,)),
}


@pytest.mark.parametrize("name", CASES)
def test_variances_go_through_squared_coefficients(name):
    """Against the Jacobian of torch's function, which holds the coefficients."""
    x = gaussian(2, 3, 4)
    out, coefficients = CASES[name](x), torch.func.jacrev(CASES[name])(x.mean)
    torch.testing.assert_close(out.mean, CASES[name](x.mean))
    torch.testing.assert_close(out.var, torch.tensordot(coefficients.square(), x.var, 3))


@pytest.mark.parametrize("name", ["real part", "filtered in two dimensions"])
def test_moments_are_those_of_samples(name):
    assert_moments_are_those_of_samples(CASES[name], gaussian(2, 3, 4))


@pytest.mark.parametrize("name", CASES)
def test_zero_variance_and_gradients(name):
    x = gaussian(2, 3, 4)
    known = mnvi.Gaussian(x.mean, torch.zeros_like(x.var))
    out = CASES[name](known)
    torch.testing.assert_close(out.mean, CASES[name](x.mean))
    assert (out.var <= 1e-12).all()
    noisy = CASES[name](x).var > 1e-12  # where nothing varies, the derivative of a variance is that of its bound
    assert_gradients_are_right(lambda x: mnvi.Gaussian.trusted((y := CASES[name](x)).mean, y.var * noisy), x)


def test_there_and_back_is_the_identity():
    x = gaussian(3, 8)
    out = torch.fft.irfft(torch.fft.rfft(x))
    torch.testing.assert_close((out.mean, out.var), (x.mean, x.var))


def test_a_learnt_filter_has_a_gradient():
    x, weight = gaussian(2, 6), torch.randn(4, dtype=torch.complex128, requires_grad=True)

    def moments(weight):
        out = torch.fft.irfft(torch.fft.rfft(x) * weight)
        return out.mean, out.var

    assert torch.autograd.gradcheck(moments, (weight,))


def test_half_precision_keeps_the_variance():
    assert_half_precision_keeps_the_variance(lambda x: torch.fft.irfft(2 * torch.fft.rfft(x)), gaussian(3, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: torch.abs(torch.fft.fft(x)), r"no rule for abs on the spectrum of a Gaussian; take its \.real"),
        (lambda x: torch.fft.fft(x) + 1, "unsupported operand"),
        (lambda x: (2 * torch.fft.rfft(x)).real, "filtered spectrum"),
        (lambda x: torch.fft.fft(torch.fft.fft(x)), "second transform along dimension -1"),
        (lambda x: torch.fft.ifft(torch.fft.fft(x, dim=0)), "this transform of the spectrum"),
        (lambda x: torch.fft.irfft(torch.fft.fft(x)), "it needs a spectrum of rfft"),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x), n=7), r"length \[7\] of a transform of length \[4\]"),
        (lambda x: torch.fft.fft(x) * x, "a spectrum times a Gaussian"),
        (lambda x: torch.fft.irfft(x), "no rule"),
    ],
)
def test_what_is_not_real_is_refused_with_a_way_out(call, message):
    with pytest.raises(TypeError, match=message):
        call(gaussian(2, 3, 4))


def test_a_mixing_layer_compiles():
    def mixed(x):
        return torch.relu(torch.fft.fft2(x).real)

    x = gaussian(2, 4, 4, dtype=torch.float32)
    expected, out = mixed(x), torch.compile(mixed, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))
