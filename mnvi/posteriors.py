"""The distributions learnt for weights. A posterior is a small frozen object; its parameters live in the layer."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.moments import divergence, factored, outer_products, position_weights
from mnvi.moments.affine import Affine, independent_weights, multiplicative_noise, shared_variance
from mnvi.moments.checking import check_number
from mnvi.moments.outer_products import Factors
from mnvi.moments.precision import widened
from mnvi.values.gaussian import Gaussian

if TYPE_CHECKING:
    from mnvi.layers.base import BayesianLayer

_SMALLEST_PRIOR_VARIANCE = 1e-9
Variance = Literal["exact", "factored"]
AnyVariance = Literal["exact", "factored", "separable"]  # the last one for inference only, see mnvi.inference.frozen


class Posterior(ABC):
    """Base class of posteriors :math:`q(w)`, which are Gaussian and independent for every weight.

    A subclass defines which parameters it adds, what variance they give each weight, and the KL to the prior. Moments
    of the output, folding, export and replicas then work without more code. Override :meth:`moments` if they have a
    cheaper form: :func:`mnvi.optimize_for_inference` then leaves the layer unchanged and logs this. A posterior reads a
    layer's ``weight``, ``bias``, ``geometry``, ``in_units``, ``fan_in`` and the parameters it has added; it calls no
    method of the layer.

    Example:
        >>> import mnvi
        >>> [isinstance(p(1.0), mnvi.Posterior) for p in (mnvi.MultiplicativeNoise, mnvi.MeanField)]
        [True, True]
    """

    variance: AnyVariance = "exact"

    @abstractmethod
    def add_parameters(self, layer: BayesianLayer) -> None:
        """Register the parameters beside the layer's ``weight`` and ``bias``."""

    @abstractmethod
    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        """Variance of every weight, in the shape of ``weight``."""

    @abstractmethod
    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        """KL from the posterior of the layer's weights to their prior, summed."""

    def kl_divergences(self, layers: Sequence[BayesianLayer]) -> Tensor:
        """Sum of :meth:`kl_divergence` over layers that have this posterior; override if there is a faster way."""
        return torch.stack([self.kl_divergence(layer) for layer in layers]).sum()

    def bias_variance(self, layer: BayesianLayer) -> Tensor | None:
        """Variance of every bias, or None if biases are deterministic."""
        return None

    def moments(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance of the layer's output; by default for independent weights with :meth:`weight_variance`.

        Args:
            layer: owner of the parameters.
            affine: the linear operation that the layer applies to its input.
            mean: the input's means.
            var: the input's variances, or None for a known input.
        """
        spread, bias_spread = self.weight_variance(layer), self.bias_variance(layer)
        form = factored.independent_weights if self.is_factored(layer) else independent_weights
        return form(affine, mean, var, layer.weight, layer.bias, spread, bias_spread)

    def output(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> Any:
        """The layer's output: a :class:`mnvi.Gaussian` made of :meth:`moments`, which takes the same arguments."""
        return Gaussian.trusted(*self.moments(layer, affine, mean, var))

    def tap_sums(
        self, layer: BayesianLayer, affine: Affine, inputs: Sequence[int], outputs: Sequence[int]
    ) -> position_weights.TapSums:
        """What the covariance between positions needs of the weights: :func:`mnvi.moments.position_weights.tap_sums`.

        Args:
            layer, affine: as in :meth:`moments`.
            inputs, outputs: the shapes of input and output.
        """
        return position_weights.tap_sums(affine, inputs, outputs, layer.weight, self.weight_variance(layer))

    def grown(self, var: Tensor, growth: Tensor) -> Tensor:
        """The variances of an output times a factor; a posterior that knows ``var`` to be new may write to it."""
        return position_weights.grow(var, growth)

    def drawn_weight(self) -> Tensor | None:
        """The weight that stands in for the posterior inside :func:`mnvi.comparison.drawn_weights`; None elsewhere."""
        return None

    def factoring(self, layer: BayesianLayer) -> tuple[Tensor, list[Factors]]:
        """For a layer with factored variances: the second moments that meet the input's variances, and their terms."""
        matrix = self.weight_variance(layer) + widened(layer.weight).square()
        return matrix, [outer_products.factors(layer.geometry, matrix)]

    def is_factored(self, layer: BayesianLayer) -> bool:
        """Whether the layer's variances are factored: only with ``variance="factored"``, and not in small layers.

        :mod:`mnvi.moments.factored` has the equations; :func:`mnvi.moments.outer_products.worthwhile` chooses layers.
        """
        affine = layer.geometry
        return self.variance != "exact" and type(affine) is Affine and outer_products.worthwhile(affine, layer.weight)


@dataclass(frozen=True)
class MultiplicativeNoise(Posterior):
    r"""MNVI: :math:`w_{ij} \sim \mathcal N(m_{ij}, \alpha_j m_{ij}^2)`, as induced by noise on input unit (channel) j.

    .. math:: V[Z] = (M\circ M)\,((1+\alpha)\circ v + \alpha\circ x\circ x)

    Adds one parameter ``rho`` per input unit or channel, :math:`\alpha = \log(1 + e^\rho)`. Biases are deterministic
    and outside the KL.

    .. math:: KL = \sum_{ij} \tfrac12\Big(\log\frac{\sigma^2}{\alpha_j m_{ij}^2 + 10^{-10}}
              + \frac{(1+\alpha_j)m_{ij}^2}{\sigma^2} - 1\Big)

    Args:
        prior_variance: :math:`\sigma^2` of the prior :math:`\mathcal N(0, \sigma^2)`, at least 1e-9. The
            :math:`10^{-10}` keeps the KL finite at :math:`m = 0` and lowers it. The KL stays non-negative as long as
            :math:`\alpha \le 10^{10}\sigma^2 - 2`, which is 8 for the smallest prior variance. For larger
            :math:`\alpha` the KL of each weight stays above :math:`-10^{-10}/2\sigma^2`.
        init_rho: initial value of ``rho``; -3 gives :math:`\alpha \approx 0.05`.
        variance: "exact", or "factored" for variances at a fraction of the price: the matrix of squared weights becomes
            an outer product with the same row and column sums (:mod:`mnvi.moments.factored`). The KL stays exact, and
            so do layers with fewer than 16 outputs or 22 inputs to each.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> layer.rho.shape
        torch.Size([3])
        >>> layer(torch.ones(5, 3)).var.shape
        torch.Size([5, 2])
    """

    prior_variance: float
    init_rho: float = -3.0
    variance: Variance = "exact"

    def __post_init__(self) -> None:
        check_number(
            "MultiplicativeNoise: prior_variance",
            self.prior_variance,
            least=_SMALLEST_PRIOR_VARIANCE,
            because="for smaller ones the 1e-10 inside the KL's logarithm would make the KL negative at noise "
            "variances alpha below 8",
        )
        check_number("MultiplicativeNoise: init_rho", self.init_rho)
        check_variance("MultiplicativeNoise", self.variance)

    def add_parameters(self, layer: BayesianLayer) -> None:
        layer.rho = nn.Parameter(layer.weight.new_full((layer.in_units,), self.init_rho))

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        alpha = F.softplus(widened(layer.rho))
        return layer.geometry.along_weight(alpha, layer.weight) * widened(layer.weight).square()

    def moments(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        alpha = F.softplus(widened(layer.rho))
        if self.is_factored(layer):
            return factored.multiplicative_noise(affine, mean, var, layer.weight, layer.bias, alpha)
        if var is None:  # noise on the weights instead, so that the backward pass need not reach the input
            return super().moments(layer, affine, mean, var)
        return multiplicative_noise(affine, mean, var, layer.weight, layer.bias, affine.along_input(alpha))

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        weight, alpha = layer.geometry.grouped(layer.weight, F.softplus(widened(layer.rho)))
        return divergence.multiplicative_noise(weight, alpha, self.prior_variance)

    def kl_divergences(self, layers: Sequence[BayesianLayer]) -> Tensor:
        kinds = {(layer.rho.dtype, layer.rho.device, type(layer.rho)) for layer in layers}
        overridden = type(self).kl_divergence is not MultiplicativeNoise.kl_divergence
        if overridden or len(kinds) > 1 or len(layers) == 1:
            return super().kl_divergences(layers)
        alphas = F.softplus(widened(torch.cat([layer.rho for layer in layers]))).split([len(x.rho) for x in layers])
        pairs = [layer.geometry.grouped(layer.weight, alpha) for layer, alpha in zip(layers, alphas, strict=True)]
        weights, shaped = zip(*pairs, strict=True)
        return divergence.multiplicative_noise_of_layers(list(weights), list(shaped), self.prior_variance)


@dataclass(frozen=True)
class MeanField(Posterior):
    r"""MFVI: :math:`w_{ij} \sim \mathcal N(m_{ij}, s_{ij})`, one variance per weight and per bias.

    .. math:: V[Z] = S(v + x\circ x) + (M\circ M)\,v + s_b

    Adds ``log_var`` in the shape of ``weight`` and ``bias_log_var``; both are in the KL.

    .. math:: KL = \sum \tfrac12\Big(\log\frac{\sigma^2}{s} + \frac{s + m^2}{\sigma^2} - 1\Big)

    Args:
        prior_variance: :math:`\sigma^2` of the prior, or :class:`EmpiricalBayes` to infer it from the weights.
        init_log_var: initial value of :math:`\log s`.
        variance: "exact" or "factored", as in :class:`MultiplicativeNoise`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MeanField(prior_variance=1.0))
        >>> layer.log_var.shape, layer.bias_log_var.shape
        (torch.Size([2, 3]), torch.Size([2]))
        >>> mnvi.kl_divergence(layer) > 0
        tensor(True)
    """

    prior_variance: float | EmpiricalBayes
    init_log_var: float = -10.0
    variance: Variance = "exact"

    def __post_init__(self) -> None:
        if not isinstance(self.prior_variance, EmpiricalBayes):
            check_number("MeanField: prior_variance", self.prior_variance, above=0)
        check_number("MeanField: init_log_var", self.init_log_var)
        check_variance("MeanField", self.variance)

    def add_parameters(self, layer: BayesianLayer) -> None:
        layer.log_var = nn.Parameter(torch.full_like(layer.weight, self.init_log_var))
        if layer.bias is None:
            layer.register_parameter("bias_log_var", None)
        else:
            layer.bias_log_var = nn.Parameter(torch.full_like(layer.bias, self.init_log_var))

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        return widened(layer.log_var).exp()

    def bias_variance(self, layer: BayesianLayer) -> Tensor | None:
        return None if layer.bias_log_var is None else widened(layer.bias_log_var).exp()

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        pairs = [(layer.weight, layer.log_var)]
        if layer.bias_log_var is not None:
            pairs.append((layer.bias, layer.bias_log_var))
        if isinstance(self.prior_variance, EmpiricalBayes):
            scale = self.prior_variance.scale / layer.fan_in
            terms = [self.prior_variance.kl_divergence(mean, log_var, scale) for mean, log_var in pairs]
        else:
            terms = [divergence.mean_field(mean, log_var, self.prior_variance) for mean, log_var in pairs]
        return torch.stack(terms).sum()


@dataclass(frozen=True)
class SharedMeanField(Posterior):
    r"""Mean field with one variance per input unit or channel: :math:`w_{ij} \sim \mathcal N(m_{ij}, s_j)`.

    .. math:: V[Z]_i = \sum_j s_j (v_j + x_j^2) + \sum_j m_{ij}^2 v_j

    Adds ``log_var`` [in]. The first sum is the same for every output, so it costs next to nothing. Biases are
    deterministic and outside the KL.

    .. math:: KL = \sum_{ij} \tfrac12\Big(\log\frac{\sigma^2}{s_j} + \frac{s_j + m_{ij}^2}{\sigma^2} - 1\Big)

    Args:
        prior_variance: :math:`\sigma^2` of the prior.
        init_log_var: initial value of :math:`\log s`.
        variance: "exact" or "factored", as in :class:`MultiplicativeNoise`.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.SharedMeanField(prior_variance=1.0))
        >>> layer.log_var.shape
        torch.Size([3])
    """

    prior_variance: float
    init_log_var: float = -10.0
    variance: Variance = "exact"

    def __post_init__(self) -> None:
        check_number("SharedMeanField: prior_variance", self.prior_variance, above=0)
        check_number("SharedMeanField: init_log_var", self.init_log_var)
        check_variance("SharedMeanField", self.variance)

    def add_parameters(self, layer: BayesianLayer) -> None:
        layer.log_var = nn.Parameter(layer.weight.new_full((layer.in_units,), self.init_log_var))

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        spread = widened(layer.log_var).exp()
        return layer.geometry.along_weight(spread, layer.weight).expand_as(layer.weight)

    def moments(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.is_factored(layer):
            return super().moments(layer, affine, mean, var)
        spread = affine.along_input(widened(layer.log_var).exp())
        return shared_variance(affine, mean, var, layer.weight, layer.bias, spread)

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        weight, log_var = layer.geometry.grouped(layer.weight, layer.log_var)
        return divergence.mean_field(weight, log_var.expand_as(weight), self.prior_variance)


@dataclass(frozen=True)
class Sampled(Posterior):
    r"""Any posterior, with each layer's output sampled instead of its moments passed on: local reparameterisation.

    .. math:: z = E[Z] + \sqrt{V[Z]}\,\varepsilon, \qquad \varepsilon \sim \mathcal N(0, 1)

    The network then runs on plain tensors. Parameters, their names and the KL are those of the given posterior, so a
    network can be trained by sampling and evaluated sampling-free, or the reverse, by loading the ``state_dict``. The
    paper's MC-MFVI is ``mnvi.MonteCarlo(mnvi.convert(net, mnvi.Sampled(mnvi.MeanField(...))))``.

    Args:
        posterior: the posterior of the weights.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.Sampled(mnvi.MeanField(prior_variance=1.0)))
        >>> type(layer(torch.ones(5, 3))).__name__, list(dict(layer.named_parameters()))
        ('Tensor', ['weight', 'bias', 'log_var', 'bias_log_var'])
    """

    posterior: Posterior

    def __post_init__(self) -> None:
        if not isinstance(self.posterior, Posterior) or isinstance(self.posterior, Sampled):
            raise TypeError(f"Sampled: posterior must be e.g. mnvi.MeanField(1.0), got {self.posterior!r}")

    def add_parameters(self, layer: BayesianLayer) -> None:
        self.posterior.add_parameters(layer)

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        return self.posterior.weight_variance(layer)

    def bias_variance(self, layer: BayesianLayer) -> Tensor | None:
        return self.posterior.bias_variance(layer)

    def moments(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.posterior.moments(layer, affine, mean, var)

    def output(self, layer: BayesianLayer, affine: Affine, mean: Tensor, var: Tensor | None) -> Any:
        return delivered(self, *self.moments(layer, affine, mean, var))

    def factoring(self, layer: BayesianLayer) -> tuple[Tensor, list[Factors]]:
        return self.posterior.factoring(layer)

    def is_factored(self, layer: BayesianLayer) -> bool:
        return self.posterior.is_factored(layer)

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        return self.posterior.kl_divergence(layer)

    def kl_divergences(self, layers: Sequence[BayesianLayer]) -> Tensor:
        return self.posterior.kl_divergences(layers)


def delivered(posterior: Posterior, mean: Tensor, var: Tensor) -> Any:
    """The output of a layer with this posterior: a :class:`mnvi.Gaussian`, or with :class:`Sampled` a sample."""
    out = Gaussian.trusted(mean, var)
    return out.sample(1)[0] if isinstance(posterior, Sampled) else out


@dataclass(frozen=True)
class EmpiricalBayes:
    r"""DVI's prior: each tensor's prior variance :math:`\lambda` has an inverse-gamma prior and is maximised out.

    With :math:`S = \sum(s + m^2)` over the :math:`n` entries, :math:`b = (1+a)s_0^2`, the best :math:`\lambda` is
    :math:`(S+2b)/(n+2a+2)`. The KL is evaluated there, without the inverse gamma's log-density, as in DVI.

    .. math:: KL = \tfrac12\Big[n\log\frac{S+2b}{n+2a+2} + S\,\frac{n+2a+2}{S+2b} - n - \sum\log s\Big]

    Args:
        shape: :math:`a` of the inverse gamma.
        scale: :math:`s_0^2` times the layer's fan-in.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MeanField(mnvi.EmpiricalBayes()))
        >>> bool(mnvi.kl_divergence(layer).isfinite())
        True
    """

    shape: float = 4.4798
    scale: float = 5.0

    def __post_init__(self) -> None:
        check_number("EmpiricalBayes: shape", self.shape, above=0)
        check_number("EmpiricalBayes: scale", self.scale, above=0)

    def kl_divergence(self, mean: Tensor, log_var: Tensor, scale: float) -> Tensor:
        return divergence.empirical_bayes(mean, log_var, self.shape, scale)


def check_variance(where: str, variance: object) -> None:
    """Raise an error that names the argument unless it is "exact" or "factored"."""
    if variance not in ("exact", "factored"):
        raise ValueError(f"{where}: variance={variance!r} must be 'exact' or 'factored'")


def with_variance(posterior: Posterior, variance: AnyVariance) -> Posterior:
    """The same posterior with exact or factored variances.

    Example:
        >>> import mnvi
        >>> with_variance(mnvi.MeanField(1.0), "factored").variance
        'factored'
    """
    if isinstance(posterior, Sampled):
        return Sampled(with_variance(posterior.posterior, variance))
    if posterior.variance == variance:
        return posterior
    changed = copy.copy(posterior)
    object.__setattr__(changed, "variance", variance)  # a posterior may be any class, frozen or not
    return changed
