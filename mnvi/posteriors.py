"""What is learnt about a weight. A posterior is a small frozen description; its parameters live in the layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.checks import is_number
from mnvi.gaussian import Gaussian
from mnvi.moments import divergence, linear
from mnvi.precision import widened

if TYPE_CHECKING:
    from mnvi.layers import BayesianLayer

_SMALLEST_PRIOR_VARIANCE = 1e-9


class Posterior(ABC):
    """What a layer asks of its posterior :math:`q(w)`: parameters, moments of the output, and the divergence.

    Example:
        >>> import mnvi
        >>> [isinstance(p(1.0), mnvi.Posterior) for p in (mnvi.MultiplicativeNoise, mnvi.MeanField)]
        [True, True]
    """

    @abstractmethod
    def add_parameters(self, layer: BayesianLayer) -> None:
        """Register the parameters beside the layer's ``weight`` and ``bias``."""

    @abstractmethod
    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        """Variance of every weight, in the shape of ``weight``."""

    @abstractmethod
    def forward(self, layer: BayesianLayer, x: Tensor | Gaussian, **geometry: Any) -> Gaussian:
        """Mean and variance of the layer's output; ``geometry`` is what the layer's ``prepared`` takes."""

    @abstractmethod
    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        """KL from the posterior of the layer's weights to their prior, summed."""

    def bias_variance(self, layer: BayesianLayer) -> Tensor | None:
        """Variance of every bias, or None where biases are known."""
        return None


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
            :math:`10^{-10}`, which keeps the KL finite at :math:`m = 0`, lowers it. It is not negative as long as
            :math:`\alpha \le 10^{10}\sigma^2 - 2`, which is 8 for the smallest prior variance, and above
            :math:`-10^{-10}/2\sigma^2` for each weight whatever :math:`\alpha` is.
        init_rho: where ``rho`` starts; -3 gives :math:`\alpha \approx 0.05`.

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

    def __post_init__(self) -> None:
        _check_positive("MultiplicativeNoise", "prior_variance", self.prior_variance)
        if self.prior_variance < _SMALLEST_PRIOR_VARIANCE:
            raise ValueError(
                f"MultiplicativeNoise: prior_variance={self.prior_variance!r} must be at least "
                f"{_SMALLEST_PRIOR_VARIANCE:g}; below it the 1e-10 inside the KL's logarithm would make it negative "
                "for noise variances alpha of less than 8"
            )
        _check_finite("MultiplicativeNoise", "init_rho", self.init_rho)

    def add_parameters(self, layer: BayesianLayer) -> None:
        layer.rho = nn.Parameter(layer.weight.new_full((layer.in_units,), self.init_rho))

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        return layer.along_weight(F.softplus(widened(layer.rho))) * widened(layer.weight).square()

    def forward(self, layer: BayesianLayer, x: Tensor | Gaussian, **geometry: Any) -> Gaussian:
        affine, mean, var = layer.prepared(x, **geometry)
        weight, bias = layer.weight, layer.bias
        if var is None:  # noise laid on the weights instead: the backward pass need not go through to the input
            spread = self.weight_variance(layer)
            return Gaussian.trusted(*linear.independent_weights(affine, mean, None, weight, bias, spread, None))
        alpha = layer.along_input(F.softplus(widened(layer.rho)))
        return Gaussian.trusted(*linear.multiplicative_noise(affine, mean, var, weight, bias, alpha))

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        weight, alpha = layer.grouped_weight(), layer.grouped_units(F.softplus(widened(layer.rho)))
        return divergence.multiplicative_noise(weight, alpha, self.prior_variance)


@dataclass(frozen=True)
class MeanField(Posterior):
    r"""MFVI: :math:`w_{ij} \sim \mathcal N(m_{ij}, s_{ij})`, one variance per weight and per bias.

    .. math:: V[Z] = S(v + x\circ x) + (M\circ M)\,v + s_b

    Adds ``log_var`` in the shape of ``weight`` and ``bias_log_var``; both are in the KL.

    .. math:: KL = \sum \tfrac12\Big(\log\frac{\sigma^2}{s} + \frac{s + m^2}{\sigma^2} - 1\Big)

    Args:
        prior_variance: :math:`\sigma^2` of the prior, or :class:`EmpiricalBayes` to have it found from the weights.
        init_log_var: where :math:`\log s` starts.

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

    def __post_init__(self) -> None:
        if not isinstance(self.prior_variance, EmpiricalBayes):
            _check_positive("MeanField", "prior_variance", self.prior_variance)
        _check_finite("MeanField", "init_log_var", self.init_log_var)

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

    def forward(self, layer: BayesianLayer, x: Tensor | Gaussian, **geometry: Any) -> Gaussian:
        affine, mean, var = layer.prepared(x, **geometry)
        spread, bias_spread = widened(layer.log_var).exp(), self.bias_variance(layer)
        return Gaussian.trusted(
            *linear.independent_weights(affine, mean, var, layer.weight, layer.bias, spread, bias_spread)
        )

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
        init_log_var: where :math:`\log s` starts.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.SharedMeanField(prior_variance=1.0))
        >>> layer.log_var.shape
        torch.Size([3])
    """

    prior_variance: float
    init_log_var: float = -10.0

    def __post_init__(self) -> None:
        _check_positive("SharedMeanField", "prior_variance", self.prior_variance)
        _check_finite("SharedMeanField", "init_log_var", self.init_log_var)

    def add_parameters(self, layer: BayesianLayer) -> None:
        layer.log_var = nn.Parameter(layer.weight.new_full((layer.in_units,), self.init_log_var))

    def weight_variance(self, layer: BayesianLayer) -> Tensor:
        return layer.along_weight(widened(layer.log_var).exp()).expand_as(layer.weight)

    def forward(self, layer: BayesianLayer, x: Tensor | Gaussian, **geometry: Any) -> Gaussian:
        affine, mean, var = layer.prepared(x, **geometry)
        spread = layer.along_input(widened(layer.log_var).exp())
        return Gaussian.trusted(*linear.shared_variance(affine, mean, var, layer.weight, layer.bias, spread))

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        log_var = layer.grouped_units(layer.log_var).expand_as(layer.grouped_weight())
        return divergence.mean_field(layer.grouped_weight(), log_var, self.prior_variance)


@dataclass(frozen=True)
class Sampled(Posterior):
    r"""Any posterior, with each layer's output drawn instead of its moments passed on: local reparameterisation.

    .. math:: z = E[Z] + \sqrt{V[Z]}\,\varepsilon, \qquad \varepsilon \sim \mathcal N(0, 1)

    The network then runs on plain tensors. Parameters, their names and the KL are those of the given posterior, so a
    network can be trained by sampling and evaluated sampling-free, or the reverse, by loading the ``state_dict``. The
    paper's MC-MFVI is ``mnvi.MonteCarlo(mnvi.convert(net, mnvi.Sampled(mnvi.MeanField(...))))``.

    Args:
        posterior: what is learnt about the weights.

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

    def forward(self, layer: BayesianLayer, x: Tensor | Gaussian, **geometry: Any) -> Tensor:  # type: ignore[override]
        return self.posterior.forward(layer, x, **geometry).sample(1)[0]

    def kl_divergence(self, layer: BayesianLayer) -> Tensor:
        return self.posterior.kl_divergence(layer)


@dataclass(frozen=True)
class EmpiricalBayes:
    r"""DVI's prior: each tensor's prior variance :math:`\lambda` has an inverse-gamma prior and is maximised out.

    With :math:`S = \sum(s + m^2)` over the :math:`n` entries, :math:`b = (1+a)s_0^2`, the best :math:`\lambda` is
    :math:`(S+2b)/(n+2a+2)`. The KL is taken there; the inverse gamma's own log-density at it is left out, as in DVI.

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
        _check_positive("EmpiricalBayes", "shape", self.shape)
        _check_positive("EmpiricalBayes", "scale", self.scale)

    def kl_divergence(self, mean: Tensor, log_var: Tensor, scale: float) -> Tensor:
        return divergence.empirical_bayes(mean, log_var, self.shape, scale)


def _check_positive(owner: str, name: str, value: float) -> None:
    if not is_number(value) or not 0 < value < float("inf"):
        raise ValueError(f"{owner}: {name}={value!r} must be a finite number > 0")


def _check_finite(owner: str, name: str, value: float) -> None:
    if not is_number(value) or not abs(value) < float("inf"):
        raise ValueError(f"{owner}: {name}={value!r} must be a finite number")
