"""Posteriors for inference only: they compute once what does not depend on the input."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from mnvi.layers.base import BayesianLayer
from mnvi.moments import factored, outer_products
from mnvi.moments._torch import is_fused, is_traced, values_can_be_read
from mnvi.moments.affine import Affine
from mnvi.moments.one_channel import separable
from mnvi.moments.outer_products import Factors
from mnvi.moments.position_weights import TapSums
from mnvi.moments.precision import full_precision, widened
from mnvi.posteriors import MultiplicativeNoise, Posterior, Sampled, SharedMeanField
from mnvi.values.gaussian import Gaussian


class FrozenPosterior(Posterior):
    """Base of posteriors for inference, which propagate moments and have no prior."""

    @abstractmethod
    def constants(self, layer: BayesianLayer, gain: Tensor, learnt: Tensor) -> dict[str, Tensor | None]:
        """The tensors to keep.

        Args:
            layer: still has its learnt posterior; its weight and bias are already scaled.
            gain: factor that this scaling puts on the variances of weights and biases, one per output unit.
            learnt: the weight before the scaling.
        """

    @abstractmethod
    def output_variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None, like: Tensor) -> Tensor:
        """Variance of the layer's output, from the constants that are now buffers of ``layer``.

        Args:
            like: the output's means; the variance should lie in memory as they do.
        """

    def moments(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        expectation = affine(mean, layer.weight, layer.bias)
        with full_precision(mean):
            var = None if var is None else widened(var)
            return expectation, self.output_variance(layer, affine, widened(mean), var, expectation)

    def add_parameters(self, layer: BayesianLayer) -> None:
        """Adds none: nothing is learnt any more."""

    def grown(self, var: Tensor, growth: Tensor) -> Tensor:
        return super().grown(var, growth) if torch.is_grad_enabled() or is_traced() else var.mul_(growth)

    def tap_sums(self, layer: BayesianLayer, affine: Affine, inputs: Sequence[int], outputs: Sequence[int]) -> TapSums:
        """Computed once for each size of the input, as long as nobody writes to the layer's tensors.

        A trace computes them: it knows no values, and its compiler joins the sums into few passes over the weights.
        """
        weight = layer.weight
        if not values_can_be_read(weight) or weight.is_inference():  # such a tensor does not count what is written
            return super().tap_sums(layer, affine, inputs, outputs)
        sizes = () if affine.stride is None else (*inputs[1:], *outputs[1:])
        tensors = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        key = (affine, sizes, *((tensor.data_ptr(), tensor._version) for tensor in tensors))
        kept = _TAP_SUMS.get(layer)
        if kept is None or kept[0] != key:
            with torch.inference_mode(False), torch.no_grad():
                kept = key, super().tap_sums(layer, affine, inputs, outputs)
            _TAP_SUMS[layer] = kept
        return kept[1]

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        raise TypeError("kl_divergence: a model optimised for inference has no priors; use the model it was made from")


# What layers keep, beside them: pickles and copies of a layer need not hold it.
_TAP_SUMS: WeakKeyDictionary[BayesianLayer, tuple[Any, TapSums]] = WeakKeyDictionary()


@dataclass(frozen=True)
class FrozenMultiplicativeNoise(FrozenPosterior):
    r""":class:`mnvi.MultiplicativeNoise` for inference; only one product and one sum precede the convolution.

    .. math:: V = A\,(v + (r\circ x)^2), \qquad A = M\circ M\circ(1+\alpha), \quad r = \sqrt{\alpha/(1+\alpha)}
    """

    def constants(self, layer: BayesianLayer, gain: Tensor, learnt: Tensor) -> dict[str, Tensor | None]:
        alpha = F.softplus(widened(layer.rho))
        return {
            "noise": layer.geometry.along_input((alpha / (1 + alpha)).sqrt()),
            "second_moment": widened(layer.weight).square() * layer.geometry.along_weight(1 + alpha, layer.weight),
        }

    def output_variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None, like: Tensor) -> Tensor:
        noise = mean * widened(layer.noise)
        noisy = noise.square() if var is None else torch.addcmul(var, noise, noise)
        return affine(noisy, widened(layer.second_moment))

    def weight_variance(self, layer: Any) -> Tensor:
        noise = layer.noise.flatten().square()
        variance: Tensor = layer.second_moment * layer.geometry.along_weight(noise, layer.weight)
        return variance


@dataclass(frozen=True)
class FrozenMeanField(FrozenPosterior):
    r""":class:`mnvi.MeanField`, or any other posterior of independent weights, for inference.

    .. math:: V = S(x\circ x + v) + (M\circ M)\,v + s_b
    """

    def constants(self, layer: BayesianLayer, gain: Tensor, learnt: Tensor) -> dict[str, Tensor | None]:
        posterior = _learnt(layer)
        bias_spread = posterior.bias_variance(layer)
        return {
            "spread": widened(posterior.weight_variance(layer)) * layer.geometry.along_outputs(gain, layer.weight),
            "squared_weight": widened(layer.weight).square(),
            "bias_spread": None if bias_spread is None else widened(bias_spread) * gain,
        }

    def output_variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None, like: Tensor) -> Tensor:
        bias_spread = None if layer.bias_spread is None else widened(layer.bias_spread)
        second = mean.square() if var is None else torch.addcmul(var, mean, mean)
        variance = affine(second, widened(layer.spread), bias_spread)
        return variance if var is None else variance.add_(affine(var, widened(layer.squared_weight)))

    def weight_variance(self, layer: Any) -> Tensor:
        variance: Tensor = layer.spread
        return variance

    def bias_variance(self, layer: Any) -> Tensor | None:
        variance: Tensor | None = layer.bias_spread
        return variance


@dataclass(frozen=True)
class FrozenSharedMeanField(FrozenPosterior):
    r""":class:`mnvi.SharedMeanField` for inference; all outputs of a group still share one sum.

    .. math:: V_i = g_i \sum_j s_j (v_j + x_j^2) + \sum_j m_{ij}^2 v_j
    """

    def constants(self, layer: BayesianLayer, gain: Tensor, learnt: Tensor) -> dict[str, Tensor | None]:
        spread = widened(_learnt(layer).weight_variance(layer))
        affine = layer.geometry
        return {
            # one output per group
            "spread": spread[:, :1] if affine.transposed else spread[:: len(spread) // affine.groups],
            "second_moment": widened(layer.weight).square(),
            "gain": affine.along_input(gain.to(spread.dtype)),  # outputs have the layout of inputs
        }

    def output_variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None, like: Tensor) -> Tensor:
        square = mean.square()
        shared = affine(square if var is None else square.add_(var), widened(layer.spread))
        gain = widened(layer.gain)
        if affine.groups > 1:
            shared = shared.repeat_interleave(len(gain) // affine.groups, -gain.dim())
        if var is None:
            return shared * gain
        return torch.addcmul(affine(var, widened(layer.second_moment)), shared, gain)

    def weight_variance(self, layer: Any) -> Tensor:
        spread = layer.spread
        if not layer.geometry.transposed:
            spread = spread.repeat_interleave(len(layer.weight) // len(spread), 0)
        variance: Tensor = spread * layer.geometry.along_outputs(layer.gain.flatten(), layer.weight)
        return variance


@dataclass(frozen=True)
class FrozenFactoredNoise(FrozenPosterior):
    r""":class:`mnvi.MultiplicativeNoise` with factored variances for inference.

    .. math:: V = \sum_r a_r b_r^\top(v + (r\circ x)^2), \qquad r = \sqrt{\alpha/(1+\alpha)}

    with :math:`1+\alpha` inside b. A batch norm scales only a, so folding does not change the result. Where results may
    change, layers take as many terms as they need (:func:`mnvi.moments.outer_products.few_terms`). If one is enough
    and its b is nearly a product of channels and taps, b becomes one (:func:`mnvi.moments.outer_products.separated`).
    """

    def constants(self, layer: BayesianLayer, gain: Tensor, learnt: Tensor) -> dict[str, Tensor | None]:
        alpha = F.softplus(widened(layer.rho))
        rows, columns = _stacked(_terms(layer, widened(learnt).square()))
        taps = None
        if _learnt(layer).variance == "separable" and len(rows) == 1:
            parts = outer_products.separated(layer.geometry, columns[0])
            columns, taps = (columns, None) if parts is None else (parts[0][None], parts[1])
        return {
            "noise": layer.geometry.along_input((alpha / (1 + alpha)).sqrt()),
            "rows": rows * gain,
            "columns": columns * layer.geometry.along_weight(1 + alpha, columns[0]),
            "taps": taps,
        }

    def output(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None) -> Any:
        if not is_fused() or len(layer.rows) > 1 or affine.groups > 1:
            return super().output(layer, affine, mean, var)
        expectation = affine(mean, layer.weight, layer.bias)
        with full_precision(mean):
            rows = widened(layer.rows)[0]
            sums = self._sums(layer, affine, widened(mean), None if var is None else widened(var))[0]
            out = Gaussian.trusted(expectation, factored.spread_out(affine, rows, sums))
            out.deviation = factored.deviation(affine, out.var, rows, sums)
        return out

    def output_variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None, like: Tensor) -> Tensor:
        first, *more = (
            factored.spread_out(affine, rows, sums, like)
            for rows, sums in zip(widened(layer.rows), self._sums(layer, affine, mean, var), strict=True)
        )
        return sum(more, first)

    def _sums(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None) -> list[Tensor]:
        """s of every term."""
        noise = mean * widened(layer.noise)
        noisy = noise.square() if var is None else torch.addcmul(var, noise, noise)
        if layer.taps is not None:
            return [separable(affine, noisy, widened(layer.columns)[0], widened(layer.taps))]
        return [factored.summed(affine, noisy, columns) for columns in widened(layer.columns)]

    def factoring(self, layer: Any) -> tuple[Tensor, list[Factors]]:
        alpha = layer.noise.flatten().square() / (1 - layer.noise.flatten().square())
        second_moment = widened(layer.weight).square() * layer.geometry.along_weight(1 + alpha, layer.weight)
        columns = layer.columns if layer.taps is None else layer.columns * layer.taps
        return second_moment, _unstacked(layer.rows, columns)

    def weight_variance(self, layer: Any) -> Tensor:
        """Exact: only the variances of outputs are factored."""
        square = layer.noise.flatten().square()
        return layer.geometry.along_weight(square / (1 - square), layer.weight) * widened(layer.weight).square()

    def is_factored(self, layer: BayesianLayer) -> bool:
        return True


@dataclass(frozen=True)
class FrozenFactored(FrozenPosterior):
    r"""Any other posterior of independent weights with factored variances for inference.

    .. math:: V = \sum_r a_r b_r^\top(x\circ x) + \sum_r a_r' b_r'^\top v + s_b
    """

    def constants(self, layer: BayesianLayer, gain: Tensor, learnt: Tensor) -> dict[str, Tensor | None]:
        posterior = _learnt(layer)
        spread, bias_spread = widened(posterior.weight_variance(layer)), posterior.bias_variance(layer)
        spread_rows, spread_columns = _stacked(_terms(layer, spread))
        rows, columns = _stacked(_terms(layer, spread + widened(learnt).square()))
        return {
            "spread_rows": spread_rows * gain,
            "spread_columns": spread_columns,
            "rows": rows * gain,
            "columns": columns,
            "bias_spread": None if bias_spread is None else widened(bias_spread) * gain,
        }

    def output_variance(self, layer: Any, affine: Affine, mean: Tensor, var: Tensor | None, like: Tensor) -> Tensor:
        of_spread = _unstacked(layer.spread_rows, layer.spread_columns)
        of_second = _unstacked(layer.rows, layer.columns)
        bias_spread = None if layer.bias_spread is None else widened(layer.bias_spread)
        return factored.variance(affine, mean, var, of_spread, of_second, bias_spread, like)

    def factoring(self, layer: Any) -> tuple[Tensor, list[Factors]]:
        return self.weight_variance(layer) + widened(layer.weight).square(), _unstacked(layer.rows, layer.columns)

    def weight_variance(self, layer: Any) -> Tensor:
        """The outer products that stand for the variances; the variances themselves are not kept."""
        return outer_products.total(layer.geometry, _unstacked(layer.spread_rows, layer.spread_columns))

    def bias_variance(self, layer: Any) -> Tensor | None:
        variance: Tensor | None = layer.bias_spread
        return variance

    def is_factored(self, layer: BayesianLayer) -> bool:
        return True


def _terms(layer: BayesianLayer, matrix: Tensor) -> list[Factors]:
    """As many terms as the matrix needs; one for a layer that was trained with one."""
    if _learnt(layer).variance == "separable":
        return outer_products.few_terms(layer.geometry, matrix)
    return [outer_products.factors(layer.geometry, matrix)]


def _stacked(terms: list[Factors]) -> tuple[Tensor, Tensor]:
    """Rows [terms, out], and columns with the terms in front."""
    return torch.stack([term.rows for term in terms]), torch.stack([term.columns for term in terms])


def _unstacked(rows: Tensor, columns: Tensor) -> list[Factors]:
    return [Factors(*term) for term in zip(widened(rows), widened(columns), strict=True)]


_FROZEN: dict[type[Posterior], type[FrozenPosterior]] = {
    MultiplicativeNoise: FrozenMultiplicativeNoise,
    SharedMeanField: FrozenSharedMeanField,
}


def can_be_frozen(layer: BayesianLayer) -> bool:
    """Whether the posterior has a form for inference; one from outside mnvi that overrides ``moments`` has none."""
    return _frozen(layer) is not None


def is_frozen(layer: BayesianLayer) -> bool:
    """Whether the posterior is one of those here already."""
    return isinstance(_learnt(layer), FrozenPosterior)


def _frozen(layer: BayesianLayer) -> type[FrozenPosterior] | None:
    posterior = _learnt(layer)
    if type(posterior) not in _FROZEN and type(posterior).moments is not Posterior.moments:
        return None
    if posterior.is_factored(layer):
        return FrozenFactoredNoise if type(posterior) is MultiplicativeNoise else FrozenFactored
    return _FROZEN.get(type(posterior), FrozenMeanField)


def _learnt(layer: BayesianLayer) -> Posterior:
    return layer.posterior.posterior if isinstance(layer.posterior, Sampled) else layer.posterior


def freeze(layer: BayesianLayer, gain: Tensor | None = None, learnt: Tensor | None = None) -> None:
    """Replace, in place, a layer's posterior by its counterpart for inference.

    Args:
        layer: loses its posterior's parameters; ``weight`` and ``bias`` stay.
        gain: factor for the variances of weights and biases, one per output unit; None for 1.
        learnt: the weight before it was scaled; None for the layer's weight.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> freeze(layer)
        >>> list(layer.state_dict())
        ['weight', 'bias', 'noise', 'second_moment']
    """
    kind = _frozen(layer)
    assert kind is not None
    frozen = kind()
    with torch.no_grad():
        if gain is None:
            gain = widened(layer.weight).new_ones(layer.geometry.out_units(layer.weight))
        learnt = layer.weight if learnt is None else learnt
        constants = frozen.constants(layer, gain, learnt)  # needs the learnt posterior, which is still in place
    for name in [name for name in layer._parameters if name not in layer.own_names]:
        delattr(layer, name)
    for name, constant in constants.items():
        layer.register_buffer(name, None if constant is None else constant.to(widened(layer.weight).dtype).clone())
    layer.posterior = Sampled(frozen) if isinstance(layer.posterior, Sampled) else frozen
