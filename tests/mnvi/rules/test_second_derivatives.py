"""``create_graph=True`` through rules, layers and the objective."""

import pytest
import torch
import torch.nn.functional as F
from rule_checks import gaussian
from torch import Tensor, nn

import mnvi
from mnvi.moments.activations.relu import kernels

RULES = {
    "relu": torch.relu,
    "leaky relu": F.leaky_relu,
    "relu6": F.relu6,
    "abs": torch.abs,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 0.2),
    "elu": F.elu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "softsign": F.softsign,
    "erf": torch.erf,
    "exp": torch.exp,
    "sin": torch.sin,
    "cube": lambda x: x**3,
    "log of exp": lambda x: torch.log(torch.exp(x)),
    "root of square": lambda x: torch.sqrt(torch.square(x)),
    "by quadrature": mnvi.elementwise(torch.sinh),
    "by Taylor": mnvi.elementwise(torch.sinh, "taylor"),
    "softmax": lambda x: F.softmax(x, -1),
    "log softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "rms norm": lambda x: F.rms_norm(x, (3,)),
    "norm": lambda x: torch.norm(x, dim=-1),
    "std": lambda x: torch.std(x, -1),
    "maximum": lambda x: torch.maximum(x[0], x[1]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x.mean[None], 3 * x.mean[None] + 1),
    "dropout": lambda x: F.dropout(x, 0.3),
    "max pooling": lambda x: F.max_pool1d(x, 2),
    "pooling by a norm": lambda x: F.lp_pool1d(x, 2.0, 2),
    "local response norm": lambda x: F.local_response_norm(x[None], 2, alpha=1.0),
    "cosine": lambda x: F.cosine_similarity(x[:1], x[1:]),
    "distances": lambda x: torch.cdist(x[:1], x[1:]),
    "prod": lambda x: torch.prod(x, 1),
    "cumprod": lambda x: torch.cumprod(x, 1),
    "einsum of three": lambda x: torch.einsum("i,j,ij->j", x[0], x[1], x.mean[:1].T * x.mean[1:]),
    "scatter": lambda x: torch.zeros(2, 3).double().scatter_reduce(0, torch.tensor([[0, 0, 1], [0, 1, 1]]), x, "mean"),
    "sort": lambda x: torch.sort(x).values,
    "Fourier transform": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=3),
}
LAYERS = {
    "linear": (lambda: nn.Linear(3, 2), (2, 3)),
    "convolution": (lambda: nn.Conv2d(2, 2, 2), (1, 2, 3, 3)),
    "grouped convolution": (lambda: nn.Conv1d(2, 4, 2, groups=2), (1, 2, 3)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(2, 2, 2), (1, 2, 3)),
}
POSTERIORS = [mnvi.MultiplicativeNoise(0.1), mnvi.MeanField(1.0), mnvi.SharedMeanField(1.0)]


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("name", RULES)
def test_second_derivatives_of_rules_match_finite_differences(name):
    def moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        out = RULES[name](mnvi.Gaussian.trusted(mean, var))
        return out.mean, out.var

    x = gaussian(2, 3)
    assert torch.autograd.gradgradcheck(moments, leaves(x.mean, x.var), fast_mode=True, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("posterior", POSTERIORS, ids=lambda posterior: type(posterior).__name__)
@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives_of_layers_match_finite_differences(name, posterior):
    make, shape = LAYERS[name]
    layer = mnvi.convert(make(), posterior).double()
    names = [key for key, _ in layer.named_parameters()]

    def moments(mean: Tensor, var: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        given = dict(zip(names, parameters, strict=True))
        out = torch.func.functional_call(layer, given, (mnvi.Gaussian.trusted(mean, var),))
        return out.mean, out.var

    x = gaussian(*shape)
    inputs = leaves(x.mean, x.var, *layer.parameters())
    assert torch.autograd.gradgradcheck(moments, inputs, fast_mode=True, atol=1e-4, rtol=1e-3)


def test_a_penalty_on_the_gradient_of_the_objective_has_a_gradient():
    net = mnvi.convert(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), mnvi.MultiplicativeNoise(1.0)
    ).double()
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(approximation="second_order"), num_data=5)
    x, labels, parameters = torch.randn(5, 4).double(), torch.tensor([0, 1, 2, 0, 1]), list(net.parameters())

    def loss() -> Tensor:
        return elbo(net(x), labels, mnvi.kl_divergence(net)).loss

    slopes = torch.autograd.grad(loss(), parameters, create_graph=True)
    penalty = sum(slope.square().sum() for slope in slopes)
    step = torch.autograd.grad(penalty, parameters)
    small = 1e-5 / float(sum(s.square().sum() for s in step)) ** 0.5
    with torch.no_grad():
        for parameter, s in zip(parameters, step, strict=True):
            parameter -= small * s
    changed = sum(s.square().sum() for s in torch.autograd.grad(loss(), parameters))
    expected = small * float(sum(s.square().sum() for s in step))
    assert (penalty.detach() - changed).item() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives_of_a_large_relu_are_those_of_the_formula(dtype):
    """From the saved Φ and φ/σ alone, for |μ|/σ up to 12, also in blocks that stay in the cache."""
    generator = torch.Generator().manual_seed(0)
    size = 1 << 18
    var = 10 ** (4 * torch.rand(size, generator=generator, dtype=torch.float64) - 2)
    mean = (24 * torch.rand(size, generator=generator, dtype=torch.float64) - 12) * var.sqrt()
    weights = torch.randn(2, size, generator=generator, dtype=torch.float64)

    def twice(moments, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        mean, var = leaves(mean, var)
        expectation, variance = moments(mean, var)[:2]
        value = (weights[0].to(mean.dtype) * expectation / var.detach().sqrt()).sum()
        value = value + (weights[1].to(mean.dtype) * variance / var.detach()).sum()
        slopes = torch.autograd.grad(value, (mean, var), create_graph=True)
        scaled = (slopes[0] * var.detach().sqrt()).sum() + (slopes[1] * var.detach()).sum()
        return torch.autograd.grad(scaled, (mean, var))

    x = mnvi.Gaussian(mean.to(dtype), var.to(dtype))
    found = twice(kernels.ReLU.apply, x.mean, x.var)
    exact = twice(kernels.ReLUOfAnyOrder.apply, x.mean.double(), x.var.double())
    scale = x.var.double().sqrt(), x.var.double()
    error = 2e-4 if dtype == torch.float32 else 1e-10  # of weights up to 5; 1e-5 where Φ rounds to one
    for one, other, unit in zip(found, exact, scale, strict=True):
        assert ((one - other) * unit).abs().max() <= error
