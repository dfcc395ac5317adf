"""Laplace approximation of a trained network's last layer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mnvi.conversion.copying import copied
from mnvi.layers._wrapped import OneOperation
from mnvi.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood
from mnvi.likelihoods._noted import note
from mnvi.methods.last_layer import Features, features_of, with_layer
from mnvi.moments.checking import check_number
from mnvi.values.gaussian import Gaussian

_PRECISIONS = [10 ** (k / 4) for k in range(-16, 25)]  # 1e-4 to 1e6


def last_layer_laplace(
    net: nn.Module,
    data: Any,
    *,
    validation: Any = None,
    prior_precision: float | str | None = None,
    likelihood: Likelihood | None = None,
) -> nn.Module:
    r"""Give a trained network's last layer the Gaussian posterior of a Laplace approximation.

    With features :math:`\phi` (a one for the bias appended), probabilities :math:`p` and
    :math:`\Lambda = \mathrm{diag}(p) - pp^\top`, the curvature is the Kronecker-factored generalised Gauss-Newton
    matrix, and the output has the variances

    .. math:: P = N\,\overline{\phi\phi^\top} \otimes \overline\Lambda + \tau I, \qquad
              V[h_c] = (\phi \otimes e_c)^\top P^{-1} (\phi \otimes e_c)

    For classes :func:`mnvi.predict` uses the probit predictive, :math:`\mathrm{softmax}(\mu/\sqrt{1 + \pi v/8})`. For
    numbers, with ``GaussianLikelihood(homoscedastic=True)``, :math:`\overline\Lambda = 1/\sigma^2` and the posterior is
    exact: Bayesian linear regression on the features.

    Args:
        net: the trained network, which is copied; its last layer must be a ``torch.nn.Linear``.
        data: the data it was trained on: inputs and targets, or batches of them.
        validation: data that it was not trained on; they choose the prior precision by their NLL.
        prior_precision: instead of validation data, :math:`\tau > 0` of the prior :math:`\mathcal N(0, 1/\tau)`, or
            "marginal" for the one with the largest marginal likelihood. That one is far too small for a network that
            fits its training data perfectly: the curvature there is close to zero.
        likelihood: :class:`mnvi.CategoricalLikelihood` by default, with the probit approximation.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
        >>> x, y = torch.randn(100, 2), torch.randint(3, (100,))
        >>> laplace = mnvi.methods.last_layer_laplace(net, (x[:80], y[:80]), validation=(x[80:], y[80:]))
        >>> laplace(x).var.shape, mnvi.predict(laplace, x).probs.shape
        (torch.Size([100, 3]), torch.Size([100, 3]))
    """
    if (validation is None) == (prior_precision is None):
        raise ValueError(
            "last_layer_laplace: give either validation, data that choose the prior precision, or prior_precision, "
            "e.g. prior_precision=1.0 or 'marginal'"
        )
    likelihood = CategoricalLikelihood(approximation="probit") if likelihood is None else likelihood
    found = features_of("last_layer_laplace", net, data)
    layer = LaplaceLinear(found.layer, found.inputs, _output_curvature(likelihood, found))
    if validation is not None:
        held_out = features_of("last_layer_laplace", net, validation)
        layer.choose_precision(lambda: -_log_likelihood(likelihood, layer, held_out))
    elif prior_precision == "marginal":
        layer.choose_precision(lambda: -layer.log_marginal_likelihood())
    else:
        check_number("last_layer_laplace: prior_precision", prior_precision, above=0, because="or 'marginal'")
        layer.precision.fill_(float(prior_precision))  # type: ignore[arg-type]
    model = with_layer(copied("last_layer_laplace", net), found.name, layer).eval()
    note(model, likelihood)
    return model


class LaplaceLinear(OneOperation, nn.Linear):
    """A linear layer with the posterior of :func:`last_layer_laplace`; made for inputs without variance."""

    in_values: Tensor
    in_vectors: Tensor
    out_values: Tensor
    out_vectors: Tensor
    precision: Tensor

    def __init__(self, layer: nn.Linear, inputs: Tensor, curvature: Tensor) -> None:
        has_bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, has_bias, layer.weight.device, layer.weight.dtype)
        self.load_state_dict(layer.state_dict(), strict=False)
        features = self._features(inputs.detach()).double()
        for side, matrix in (("in", features.T @ features), ("out", curvature.double())):
            values, vectors = torch.linalg.eigh(matrix)
            self.register_buffer(f"{side}_values", values.clamp(min=0).to(layer.weight))
            self.register_buffer(f"{side}_vectors", vectors.to(layer.weight))
        self.register_buffer("precision", layer.weight.new_ones(()))

    def forward(self, input: Tensor) -> Gaussian:  # type: ignore[override]
        if not isinstance(input, Tensor):
            raise TypeError(
                f"LaplaceLinear: the input is a {type(input).__name__}; last_layer_laplace is for networks whose other "
                "layers have no posterior"
            )
        squares = (self._features(input) @ self.in_vectors).square()
        return Gaussian.trusted(super().forward(input), squares @ (1 / self._spectrum()) @ self.out_vectors.square().T)

    def log_marginal_likelihood(self) -> float:
        r"""Its part that depends on the prior precision,
        :math:`-\frac\tau2\|w\|^2 + \frac{n}{2}\log\tau - \frac12\log\det P`."""
        weights = [self.weight] if self.bias is None else [self.weight, self.bias]
        norm = sum(float(weight.detach().double().square().sum()) for weight in weights)
        tau, spectrum = float(self.precision), self._spectrum().double()
        return 0.5 * (spectrum.numel() * math.log(tau) - tau * norm - float(spectrum.log().sum()))

    def choose_precision(self, loss: Any) -> None:
        """Take the prior precision with the lowest loss, of 41 between 1e-4 and 1e6."""

        def tried(precision: float) -> float:
            self.precision.fill_(precision)
            return float(loss())

        self.precision.fill_(min(_PRECISIONS, key=tried))

    def _features(self, inputs: Tensor) -> Tensor:
        return inputs if self.bias is None else F.pad(inputs, (0, 1), value=1.0)

    def _spectrum(self) -> Tensor:
        """Eigenvalues of the posterior's precision, [inputs, outputs]."""
        return self.in_values[:, None] * self.out_values + self.precision


def _output_curvature(likelihood: Likelihood, found: Features) -> Tensor:
    """Mean over the data of the negative Hessian of the log-likelihood with respect to the outputs."""
    outputs = found.layer(found.inputs).detach()
    if isinstance(likelihood, CategoricalLikelihood):
        probs = outputs.double().softmax(-1)
        return torch.diag(probs.mean(0)) - probs.T @ probs / len(probs)
    if isinstance(likelihood, GaussianLikelihood) and likelihood.homoscedastic:
        return torch.diag(torch.exp(-likelihood.log_noise.detach().double()).expand(outputs.shape[-1]))
    raise TypeError(
        f"last_layer_laplace: likelihood is a {type(likelihood).__name__}; expected a CategoricalLikelihood or "
        "GaussianLikelihood(homoscedastic=True)"
    )


@torch.no_grad()
def _log_likelihood(likelihood: Likelihood, layer: LaplaceLinear, data: Features) -> float:
    return float(likelihood.predictive(layer(data.inputs)).log_prob(data.targets).double().mean())
