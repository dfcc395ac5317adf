"""Base class of layers with a posterior."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from mnvi.moments import position_weights
from mnvi.moments.affine import Affine
from mnvi.moments.precision import autocasts
from mnvi.posteriors import Posterior
from mnvi.rules.copies import check_sum
from mnvi.rules.options import current
from mnvi.rules.sums import window_dims
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian


class BayesianLayer(nn.Module):
    """Base class of layers with a posterior; their output is a :class:`mnvi.Gaussian`.

    Make layers with :func:`mnvi.convert`, or directly with torch's arguments and ``posterior=``. A forward pass goes
    one way: the layer works out the linear operation and the input's moments (:meth:`prepared`) and hands them to the
    posterior (:meth:`mnvi.Posterior.output`).

    To give your own layer a posterior, derive from this class and from the layer, define the properties
    :attr:`geometry` and :attr:`in_units`, and override :meth:`prepared` if the layer changes its input first;
    :func:`mnvi.register_layer` then makes :func:`mnvi.convert` use it.

    Args:
        args, kwargs: as in torch's layer of the same name.
        posterior: the posterior of the weights, e.g. ``mnvi.MultiplicativeNoise(prior_variance=1.0)``.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.layers.Linear(3, 2, posterior=mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> isinstance(layer, torch.nn.Linear), type(layer(torch.ones(1, 3))).__name__
        (True, 'Gaussian')
    """

    posterior: Posterior
    weight: Tensor
    bias: Any  # a tensor or None
    rho: Tensor  # with MultiplicativeNoise
    log_var: Tensor  # with MeanField and SharedMeanField
    bias_log_var: Tensor | None  # with MeanField
    own_names: tuple[str, ...] = ("weight", "bias")  # parameters that are not the posterior's

    def __init__(self, *args: Any, posterior: Posterior, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.adopt(posterior)

    def adopt(self, posterior: Posterior) -> None:
        """Take on a posterior: add its parameters to those of the layer.

        Args:
            posterior: the posterior of the weights.
        """
        if not isinstance(posterior, Posterior):
            raise TypeError(
                f"{type(self).__name__}: posterior must be e.g. mnvi.MultiplicativeNoise(prior_variance=1.0), got "
                f"{posterior!r}"
            )
        self.posterior = posterior
        self.own_names = ("weight", "bias", *self._parameters)
        posterior.add_parameters(self)

    @property
    def geometry(self) -> Affine:
        """The linear operation of the weights, without the parts that depend on the input."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the property geometry, the linear operation of its weights: "
            "mnvi.moments.affine.Affine() for a matrix product"
        )

    @property
    def in_units(self) -> int:
        """Number of input units or channels."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the property in_units, the number of its input units or channels"
        )

    @property
    def fan_in(self) -> int:
        """Number of inputs that one output sums over."""
        return self.weight[0].numel()

    @property
    def stored_weight(self) -> Tensor:
        """The parameter that holds the weight, or the first that it is computed from; tied layers share it."""
        stored = self._parameters.get("weight")
        if stored is None and "parametrizations" in self._modules:
            return next(cast(nn.Module, self.parametrizations).parameters())
        return self.weight if stored is None else stored

    def prepared(self, x: Tensor | Gaussian) -> tuple[Affine, Tensor | Gaussian]:
        """The linear operation for this input, and the input to apply it to.

        Args:
            x: the layer's input.
        """
        affine = self.geometry
        self._check(x, affine.channel_dim)
        return affine, x

    def unpadded(self, affine: Affine, x: Tensor | Gaussian, input: Any) -> tuple[Affine, Tensor | Gaussian]:
        """What :meth:`prepared` returned, or the same map of the input before zeros were put around it.

        The covariance between positions is that of the input alone.
        """
        return affine, x

    def forward(self, input: Any, *settings: Any) -> Any:
        affine, x = self.prepared(input, *settings)
        self._check_copies(affine, x)
        mean, var = (x.mean, x.var) if isinstance(x, Gaussian) else (x, None)
        out = self.posterior.output(self, affine, mean, var)
        if current().spatial == "independent" or not isinstance(out, Gaussian):
            return out
        return self._with_shared(out, *self.unpadded(affine, x, input))

    def _check_copies(self, affine: Affine, x: Tensor | Gaussian) -> None:
        """Warn if the layer adds copies of one random entry."""
        if isinstance(x, Gaussian) and x.origin is not None and x.origin.copied:
            at_once = affine.stride is not None and not affine.transposed
            dims = window_dims(self.weight) if at_once else (affine.channel_dim,)
            check_sum(type(self).__name__, x, dims, affine.groups)

    def _with_shared(self, out: Gaussian, affine: Affine, x: Tensor | Gaussian) -> Gaussian:
        """The output with the covariance between its positions, which share the layer's weights."""
        dims = position_weights.layer_positions(affine, out.dim())
        if all(out.shape[d] == 1 for d in dims):
            return out
        mean, var, shared = (x.mean, x.var, x.shared) if isinstance(x, Gaussian) else (x, None, None)
        if shared is not None and any(shared.shape[d] != 1 for d in dims):
            shared = None  # positions in other dimensions than those of this layer
        picked = None
        if isinstance(x, Gaussian) and shared is not None and x.picked is not None and x.picked.of is mean:
            picked = x.picked.rows
        sums = self.posterior.tap_sums(self, affine, mean.shape, out.shape)
        through = position_weights.through_weights(
            affine, mean, var, shared, sums, self.bias_variance(), out.shape, picked
        )
        if through.growth is not None:
            out = Gaussian.trusted(out.mean, self.posterior.grown(out.var, through.growth))
        out.shared = through.shared
        return out

    def weight_variance(self) -> Tensor:
        """Posterior variance of every weight, in the shape of ``weight``."""
        return self.posterior.weight_variance(self)

    def bias_variance(self) -> Tensor | None:
        """Posterior variance of every bias, or None if biases are deterministic."""
        return self.posterior.bias_variance(self)

    def kl_divergence(self) -> Tensor:
        """KL from this layer's posterior to its prior, summed over its weights."""
        return self.posterior.kl_divergence(self)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, posterior={self.posterior}"

    def _check(self, x: Tensor | Gaussian | JointGaussian, channel_dim: int) -> None:
        if not isinstance(x, Tensor | Gaussian | JointGaussian):
            raise TypeError(
                f"{type(self).__name__}: the input must be a tensor or mnvi.Gaussian, got {type(x).__name__}"
            )
        if channel_dim < -1 and x.dim() > 1 - channel_dim:
            raise ValueError(
                f"{type(self).__name__}: expected an input of {-channel_dim} or {1 - channel_dim} dimensions, got "
                f"shape {tuple(x.shape)}"
            )
        if x.dim() < -channel_dim or x.shape[channel_dim] != self.in_units:
            raise ValueError(
                f"{type(self).__name__}: expected {self.in_units} input units in dimension {channel_dim}, "
                f"got an input of shape {tuple(x.shape)}"
            )
        if x.device != self.weight.device:
            raise ValueError(
                f"{type(self).__name__}: the input is on {x.device}, the weight on {self.weight.device}; move one with "
                ".to(device)"
            )
        if x.dtype != self.weight.dtype and not autocasts(self.weight):
            raise TypeError(
                f"{type(self).__name__}: the input is {x.dtype}, the weight {self.weight.dtype}; convert one with "
                ".to(dtype)"
            )


def bayesian_layers(model: nn.Module) -> list[BayesianLayer]:
    """All layers of a model with a posterior, each once.

    Args:
        model: any module, a layer included.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(torch.nn.Sequential(torch.nn.Linear(3, 2)), mnvi.MeanField(1.0))
        >>> len(mnvi.bayesian_layers(net))
        1
    """
    return [module for module in model.modules() if isinstance(module, BayesianLayer)]


def layers_with_own_weight(caller: str, model: nn.Module) -> list[BayesianLayer]:
    """All layers of a model with a posterior, but only one of those that share a weight.

    Raises a ``ValueError`` if two layers share a weight but not its posterior: someone tied it after
    :func:`mnvi.convert`.

    Args:
        caller: the function that the error names.
        model: any module.

    Example:
        >>> import torch, mnvi
        >>> layer = torch.nn.Linear(3, 3)
        >>> net = mnvi.convert(torch.nn.Sequential(layer, torch.nn.ReLU(), layer), mnvi.MeanField(1.0))
        >>> len(layers_with_own_weight("example", net))
        1
    """
    # an embedding comes after the linear layer whose posterior it shares
    layers = sorted(bayesian_layers(model), key=lambda layer: isinstance(layer, nn.Embedding))
    weights = [layer.stored_weight for layer in layers]  # kept alive: Python reuses the id of a freed tensor
    distinct: dict[int, BayesianLayer] = {}
    for weight, layer in zip(weights, layers, strict=True):
        twin = distinct.setdefault(id(weight), layer)
        if twin is not layer:
            _check_tied(caller, model, layer, twin)
    return list(distinct.values())


def _check_tied(caller: str, model: nn.Module, layer: BayesianLayer, twin: BayesianLayer) -> None:
    own = {name for name, value in layer._parameters.items() if name not in layer.own_names and value is not None}
    if any(layer._parameters[name] is not twin._parameters.get(name) for name in own):
        names = {module: name for name, module in model.named_modules()}
        raise ValueError(
            f"{caller}: layers {names[twin]!r} and {names[layer]!r} share their weight, but each has its own "
            f"{', '.join(sorted(own))}; tie weights before mnvi.convert, which ties these too"
        )
