"""What every layer must do, whatever its kind and posterior; the test classes of test_layers.py inherit it."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.overrides import TorchFunctionMode

import mnvi
from mnvi.layers.base import BayesianLayer

SAMPLES = 100_000
BATCH = 2_000  # drawn at a time
STANDARD_ERRORS = 5.0


@dataclass(frozen=True)
class Variant:
    """One way to build and call a layer.

    Args:
        arguments: of torch's constructor.
        input_shape: of the input, batch included where there is one.
        call: further arguments of the call.
        distinct: whether every window holds each input once; mirrored padding repeats inputs, which are then dependent.
    """

    arguments: dict[str, Any]
    input_shape: tuple[int, ...]
    call: dict[str, Any] = field(default_factory=dict)
    distinct: bool = True


class LayerConformance:
    kind: type[nn.Module]
    posterior: mnvi.Posterior
    variants: dict[str, Variant]
    parameters: dict[str, Callable[[nn.Module], tuple[int, ...]]]  # the posterior's own, by name, and their shapes
    calls_known_input: int
    calls_random_input: int

    def test_moments_match_sampled_weights_for_a_known_input(self, variant: Variant) -> None:
        layer, x = self.layer(variant), torch.randn(variant.input_shape)
        shifts = bilinear_map(layer, variant) @ x.flatten()  # [outputs, weights]
        assert_moments_of_samples(
            layer(x, **variant.call), lambda: sampled(layer.weight, layer.weight_variance()) @ shifts.T, layer
        )

    def test_moments_match_sampled_weights_and_inputs(self, variant: Variant) -> None:
        layer, x = self.layer(variant), random_input(variant)
        if variant.distinct:
            table = bilinear_map(layer, variant)

            def draw() -> Tensor:
                effects = sampled(layer.weight, layer.weight_variance()) @ table.transpose(0, 1).flatten(1)
                return torch.einsum("syq,sq->sy", effects.view(BATCH, len(table), -1), sampled(x.mean, x.var))

            assert_moments_of_samples(layer(x, **variant.call), draw, layer)
        else:  # every entry of the padded input is an independent variable, by assumption
            bare, padded = without_padding(layer), F.pad(x, *padding_of(layer))
            torch.testing.assert_close(layer(x).mean, bare(padded).mean)
            torch.testing.assert_close(layer(x).var, bare(padded).var)

    def test_zero_variance_is_the_deterministic_layer(self, variant: Variant) -> None:
        layer, x = self.layer(variant), torch.randn(variant.input_shape)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name in self.parameters:
                    parameter.fill_(-200.0)
        out = layer(x, **variant.call)
        torch.testing.assert_close(out.mean, deterministic(layer)(x, **variant.call))
        assert out.var.max() == 0

    def test_mean_is_the_deterministic_layer_at_any_variance(self, variant: Variant) -> None:
        layer, x = self.layer(variant), random_input(variant)
        torch.testing.assert_close(layer(x, **variant.call).mean, deterministic(layer)(x.mean, **variant.call))

    def test_known_input_is_an_input_of_zero_variance(self, variant: Variant) -> None:
        layer, x = self.layer(variant), torch.randn(variant.input_shape)
        known = layer(x, **variant.call)
        limit = layer(mnvi.Gaussian(x, torch.zeros_like(x)), **variant.call)
        torch.testing.assert_close(known.mean, limit.mean)
        torch.testing.assert_close(known.var, limit.var)

    def test_float32_agrees_with_float64_at_every_scale(self, variant: Variant) -> None:
        layer = self.layer(variant)
        precise = copy.deepcopy(layer).double()
        for scale in (1e-6, 1e-3, 1.0, 1e3):
            for spread in (1e-12, 1e-6, 1.0, 1e6):
                x = random_input(variant)
                x = mnvi.Gaussian(x.mean * scale, x.var * spread)
                out, exact = layer(x, **variant.call), precise(x.double(), **variant.call)
                size = deterministic(precise, absolute=True)(x.mean.double().abs(), **variant.call)
                assert ((out.mean - exact.mean).abs() <= 1e-6 * size).all()
                assert ((out.var - exact.var).abs() <= 1e-5 * exact.var).all()  # a sum without negative terms

    def test_gradients_are_those_of_plain_autograd(self, variant: Variant) -> None:
        layer = self.layer(variant).double()
        for x in (random_input(variant).double(), torch.randn(variant.input_shape, dtype=torch.float64)):
            leaves, function = as_function(layer, x, variant)
            weights = [torch.randn_like(t) for t in function(*leaves)]

            def loss(*leaves: Tensor, function: Any = function, weights: Any = weights) -> Tensor:
                return sum((t * w).sum() for t, w in zip(function(*leaves), weights, strict=True))

            by_hand = torch.autograd.grad(loss(*leaves), leaves)
            plain = torch.func.grad(loss, argnums=tuple(range(len(leaves))))(*(t.detach() for t in leaves))
            for ours, theirs in zip(by_hand, plain, strict=True):
                torch.testing.assert_close(ours, theirs)

    def test_gradcheck(self) -> None:
        for variant in list(self.variants.values())[:2]:
            layer = self.layer(variant).double()
            for x in (random_input(variant).double(), torch.randn(variant.input_shape, dtype=torch.float64)):
                leaves, function = as_function(layer, x, variant)
                assert torch.autograd.gradcheck(function, leaves, fast_mode=True)

    def test_second_derivatives(self) -> None:
        leaves, function = as_function(self.layer(self.first).double(), random_input(self.first).double(), self.first)
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)

    def test_gradient_to_some_leaves_only(self) -> None:
        variant = self.first
        for name in ("weight", *self.parameters):
            layer, x = self.layer(variant), random_input(variant)
            layer.requires_grad_(False)
            parameter = layer.get_parameter(name)
            parameter.requires_grad_(True)
            out = layer(x)
            (out.mean.sum() + out.var.sum()).backward()
            assert parameter.grad is not None and parameter.grad.abs().max() > 0
            assert all(p.grad is None for p in layer.parameters() if p is not parameter)

    def test_kl_is_that_of_torch_distributions(self, variant: Variant) -> None:
        layer = self.layer(variant).double()
        with torch.no_grad():
            layer.weight.copy_(bounded_away_from_zero(layer.weight))
        assert_kl_of_torch(layer)
        layer.float()
        torch.testing.assert_close(layer.kl_divergence(), layer.double().kl_divergence().float())

    def test_kl_is_not_negative(self, variant: Variant) -> None:
        layer = self.layer(variant)
        for scale in (0.0, 1e-6, 1e-2, 1.0, 30.0):
            with torch.no_grad():
                layer.weight.normal_(std=scale)
                for name in self.parameters:
                    if (parameter := getattr(layer, name)) is not None:
                        parameter.uniform_(-20, 5)
            assert layer.kl_divergence() >= 0

    def test_kl_gradcheck_and_plain_gradient(self) -> None:
        layer = self.layer(self.first).double()
        names, values = zip(*layer.named_parameters(), strict=True)

        def kl(*parameters: Tensor) -> Tensor:
            with parameters_replaced(layer, dict(zip(names, parameters, strict=True))):
                return layer.kl_divergence()

        leaves = [v.detach().requires_grad_() for v in values]
        assert torch.autograd.gradcheck(kl, leaves)
        lean = torch.autograd.grad(kl(*leaves), leaves, allow_unused=True)
        reference = torch.autograd.grad(
            kl_by_weight(layer, dict(zip(names, leaves, strict=True))), leaves, allow_unused=True
        )
        for ours, theirs in zip(lean, reference, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs)

    def test_linear_operation_is_called_once_more_or_twice(self) -> None:
        variant = self.first
        layer, x = self.layer(variant), random_input(variant)
        with torch.no_grad(), LinearCalls() as known:
            layer(x.mean)
        with torch.no_grad(), LinearCalls() as random:
            layer(x)
        assert (known.count, random.count) == (self.calls_known_input, self.calls_random_input)

    def test_state_dict_has_torchs_names_and_the_posteriors(self) -> None:
        for bias in (True, False):
            layer = self.layer(Variant({**self.first.arguments, "bias": bias}, self.first.input_shape))
            shapes = {name: tuple(t.shape) for name, t in layer.state_dict().items()}
            own = {name: shape(layer) for name, shape in self.parameters.items() if bias or name != "bias_log_var"}
            torchs = {name: tuple(t.shape) for name, t in deterministic(layer).state_dict().items()}
            assert shapes == {**torchs, **own}

    def test_state_dict_round_trip(self) -> None:
        layer, other, x = self.layer(self.first), self.layer(self.first), random_input(self.first)
        assert not torch.equal(layer(x).mean, other(x).mean)
        other.load_state_dict(layer.state_dict())
        assert torch.equal(layer(x).mean, other(x).mean) and torch.equal(layer(x).var, other(x).var)

    def test_deterministic_checkpoint_loads_and_lacks_only_the_posterior(self) -> None:
        layer, trained = self.layer(self.first), self.kind(**self.first.arguments)
        report = layer.load_state_dict(trained.state_dict(), strict=False)
        assert (set(report.missing_keys), report.unexpected_keys) == (set(self.parameters), [])
        x = torch.randn(self.first.input_shape)
        torch.testing.assert_close(layer(x).mean, trained(x))

    def test_deepcopy_and_pickle_give_an_equal_and_separate_layer(self) -> None:
        layer, x = self.layer(self.first), random_input(self.first)
        out = layer(x)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert type(other) is type(layer) and other.posterior == layer.posterior
            assert torch.equal(other(x).mean, out.mean) and torch.equal(other(x).var, out.var)
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.add_(1.0)
            assert torch.equal(layer(x).var, out.var)

    def test_autocast_keeps_variances_in_float32_and_gradients_finite(self) -> None:
        layer, x = self.layer(self.first), random_input(self.first)
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
            (out.mean.float().sum() + out.var.sum()).backward()
        assert out.mean.dtype == torch.bfloat16 and out.var.dtype == torch.float32
        full = layer(x)
        torch.testing.assert_close(out.var, full.var)
        torch.testing.assert_close(out.mean.float(), full.mean, rtol=2e-2, atol=2e-2)
        for parameter in layer.parameters():
            assert parameter.grad is not None
            assert parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all()

    def test_autocast_leaves_float64_alone(self) -> None:
        layer, x = self.layer(self.first).double(), random_input(self.first).double()
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        assert torch.equal(out.mean, layer(x).mean) and torch.equal(out.var, layer(x).var)

    def test_half_precision_layer_has_float32_variances_and_kl(self) -> None:
        layer, x = self.layer(self.first).bfloat16(), random_input(self.first)
        out = layer(mnvi.Gaussian(x.mean.bfloat16(), x.var))
        exact = copy.deepcopy(layer).float()
        assert out.mean.dtype == torch.bfloat16 and out.var.dtype == torch.float32
        torch.testing.assert_close(out.var, exact(x.bfloat16().float()).var, rtol=2e-2, atol=1e-3)
        torch.testing.assert_close(layer.kl_divergence(), exact.kl_divergence(), rtol=1e-2, atol=0.0)

    def test_wrong_number_of_input_units_is_named(self) -> None:
        layer, x = self.layer(self.first), torch.randn(self.first.input_shape)
        channel = -1 if self.kind is nn.Linear else 1
        wrong = torch.cat([x, x], channel)
        assert_raises(ValueError, f"expected {layer.in_units} input units", lambda: layer(wrong))

    def test_wrong_dtype_or_device_is_named(self) -> None:
        layer, x = self.layer(self.first), random_input(self.first)
        for wrong in (x.double(), x.mean.long(), x.mean.half()):
            assert_raises(TypeError, f"the input is {wrong.dtype}, the weight torch.float32", lambda w=wrong: layer(w))
        assert_raises(ValueError, "the input is on meta, the weight on cpu", lambda: layer(x.to("meta")))

    def test_runs_on_the_meta_device(self) -> None:
        layer = self.layer(self.first).to("meta")
        out = layer(random_input(self.first).to("meta"))
        assert out.mean.device.type == "meta" and out.var.shape == out.mean.shape

    @property
    def first(self) -> Variant:
        return next(iter(self.variants.values()))

    def layer(self, variant: Variant) -> BayesianLayer:
        """A layer whose posterior's parameters all differ, so that no wrong layout of them can hide."""
        layer = mnvi.convert(self.kind(**variant.arguments), self.posterior)
        assert isinstance(layer, BayesianLayer)
        with torch.no_grad():
            for name in self.parameters:
                if (parameter := getattr(layer, name)) is not None:
                    parameter.uniform_(-3.0, 0.0)
        return layer


class LinearCalls(TorchFunctionMode):
    """Counts matrix products and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.count += name in ("linear", "matmul", "mm", "addmm", "bmm") or "conv" in name
        return func(*args, **(kwargs or {}))


def random_input(variant: Variant) -> mnvi.Gaussian:
    return mnvi.Gaussian(torch.randn(variant.input_shape), torch.rand(variant.input_shape) + 0.05)


def deterministic(layer: BayesianLayer, absolute: bool = False) -> nn.Module:
    """The torch layer with the same weights, or their absolute values."""
    plain = copy.deepcopy(layer)
    for name in ("rho", "log_var", "bias_log_var"):
        plain._parameters.pop(name, None)
    plain.__class__ = getattr(nn, type(layer).__name__)
    if absolute:
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.abs_()
    return plain


def without_padding(layer: BayesianLayer) -> BayesianLayer:
    bare: Any = copy.deepcopy(layer)
    bare.padding_mode, bare.padding = "zeros", (0,) * len(bare.kernel_size)
    return bare


def padding_of(layer: Any) -> tuple[list[int], str]:
    return layer._reversed_padding_repeated_twice, layer.padding_mode


def sampled(mean: Tensor, var: Tensor) -> Tensor:
    """[BATCH, number of entries]"""
    return torch.randn(BATCH, mean.numel()).mul_(var.flatten().sqrt()).add_(mean.flatten())


def bilinear_map(layer: BayesianLayer, variant: Variant) -> Tensor:
    """[outputs, weights, inputs]: torch's own layer is linear in its weights and in its input."""
    plain: Any = deterministic(layer)
    plain.bias = None
    count = math.prod(variant.input_shape)
    columns = []
    with torch.no_grad():
        for p in range(plain.weight.numel()):
            plain.weight.zero_().view(-1)[p] = 1.0
            units = torch.eye(count).view(count, *variant.input_shape)
            if variant.input_shape[0] == 1:
                columns.append(plain(units[:, 0], **variant.call).flatten(1).T)
            else:
                columns.append(torch.stack([plain(unit, **variant.call).flatten() for unit in units], -1))
    return torch.stack(columns, 1)


@torch.no_grad()
def assert_moments_of_samples(out: mnvi.Gaussian, draw: Callable[[], Tensor], layer: BayesianLayer) -> None:
    """Check mean and variance against samples of ``draw() + bias``, within a number of standard errors."""
    mean, var = out.mean.flatten().double(), out.var.flatten().double()
    channel = -1 if isinstance(layer, nn.Linear) else -1 - len(layer.kernel_size)
    index = torch.arange(out.shape[channel]).view(-1, *(1 for _ in range(-1 - channel))).expand(out.shape).flatten()
    powers = torch.zeros(3, len(mean), dtype=torch.float64)
    for _ in range(SAMPLES // BATCH):
        values = draw()
        if layer.bias is not None:
            spread = layer.bias_variance()
            values += sampled(layer.bias, torch.zeros_like(layer.bias) if spread is None else spread)[:, index]
        centred = values.double() - mean
        square = centred.square()
        powers += torch.stack([centred.sum(0), square.sum(0), square.square().sum(0)])
    shift, estimate, fourth = powers / SAMPLES
    mean_error = (estimate / SAMPLES).sqrt()
    var_error = ((fourth - estimate.square()) / SAMPLES).sqrt()
    rounding = 1e-6 * (1 + mean.abs())
    assert (shift.abs() <= STANDARD_ERRORS * mean_error + rounding).all()
    assert ((estimate - var).abs() <= STANDARD_ERRORS * var_error + rounding).all()


def as_function(
    layer: BayesianLayer, x: Any, variant: Variant
) -> tuple[list[Tensor], Callable[..., tuple[Tensor, ...]]]:
    """The layer as a function of tensors: the input's parts, then its parameters."""
    names = [name for name, _ in layer.named_parameters()]
    parts = [x.mean, x.var] if isinstance(x, mnvi.Gaussian) else [x]
    leaves = [t.detach().clone().requires_grad_() for t in (*parts, *layer.parameters())]

    def function(*leaves: Tensor) -> tuple[Tensor, ...]:
        head, rest = leaves[: len(parts)], leaves[len(parts) :]
        given = mnvi.Gaussian.trusted(*head) if len(head) == 2 else head[0]
        out = torch.func.functional_call(layer, dict(zip(names, rest, strict=True)), (given,), variant.call)
        return out.mean, out.var

    return leaves, function


def parameters_replaced(module: nn.Module, parameters: dict[str, Tensor]) -> Any:
    return torch.nn.utils.stateless._reparametrize_module(module, parameters)


def bounded_away_from_zero(weight: Tensor) -> Tensor:
    return (weight.abs() + 0.5) * torch.where(weight < 0, -1.0, 1.0)


def assert_kl_of_torch(layer: BayesianLayer) -> None:
    zero = torch.zeros((), dtype=torch.float64)
    prior = Normal(zero, (zero + layer.posterior.prior_variance).sqrt())
    expected = kl_divergence(Normal(layer.weight, layer.weight_variance().sqrt()), prior).sum()
    spread = layer.bias_variance()
    if spread is not None:
        expected = expected + kl_divergence(Normal(layer.bias, spread.sqrt()), prior).sum()
    # the 1e-10 inside the logarithm of MNVI shows from the ninth digit on
    torch.testing.assert_close(layer.kl_divergence(), expected, rtol=1e-7, atol=0.0)


def kl_by_weight(layer: BayesianLayer, parameters: dict[str, Tensor]) -> Tensor:
    """Weight by weight from the definition, differentiated by autograd; 1e-10 joins the noise of MNVI."""
    with parameters_replaced(layer, parameters):
        spread = layer.weight_variance()
        prior = layer.posterior.prior_variance
        inside = spread + 1e-10 if isinstance(layer.posterior, mnvi.MultiplicativeNoise) else spread
        total = 0.5 * (math.log(prior) - inside.log() + (spread + layer.weight.square()) / prior - 1).sum()
        bias_spread = layer.bias_variance()
        if bias_spread is not None:
            assert layer.bias is not None
            terms = math.log(prior) - bias_spread.log() + (bias_spread + layer.bias.square()) / prior - 1
            total = total + 0.5 * terms.sum()
        return total


def assert_raises(kind: type[Exception], message: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert message in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
