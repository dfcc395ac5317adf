"""Other packages for uncertainty, each as its own manual uses it, and the environment that they run in.

    fastbnns            moments of a mean-field posterior in one pass
    bayesian_torch      mean-field posterior, reparameterised; 8 samples
    torch_uncertainty   its Bayesian layers in the place of torch's; 8 samples
    laplace             last layer, Kronecker-factored, probit; trained as the deterministic network is

``rivals.txt`` pins their versions. They share no package with the environment of this project.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi

SAMPLES = 8
PINNED = Path(__file__).parent / "rivals.txt"
FOLDER = Path(__file__).parent.parent / "build" / "rivals"
KAPPA_OVER_N = 0.01 / 50_000  # as for this project's own methods


@dataclass
class Made:
    """A network of another package: what it is trained by, and what it predicts with."""

    net: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Any]


def fastbnns(net: nn.Module, x: Tensor, y: Tensor) -> Made:
    from fastbnns.bnn.base import BNN
    from fastbnns.bnn.losses import KLDivergence
    from fastbnns.bnn.types import MuVar

    bayesian, kl, likelihood = BNN(net), KLDivergence(), mnvi.CategoricalLikelihood(num_samples=64)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = bayesian(MuVar(x))
        fit = likelihood.expected_log_prob(mnvi.Gaussian(out.mu, out.var), y).mean()
        return KAPPA_OVER_N * kl(bayesian) - fit

    return Made(bayesian, loss, lambda x: bayesian(MuVar(x)))


def bayesian_torch(net: nn.Module, x: Tensor, y: Tensor) -> Made:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    dnn_to_bnn(net, {**prior, "type": "Reparameterization", "moped_enable": False})

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x), y) + KAPPA_OVER_N * get_kl_loss(net)

    return Made(net, loss, lambda x: torch.stack([net(x) for _ in range(SAMPLES)]))


def torch_uncertainty(net: nn.Module, x: Tensor, y: Tensor) -> Made:
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear
    from torch_uncertainty.losses import KLDiv
    from torch_uncertainty.methods import StochasticModel

    for name, layer in [*net.named_modules()]:
        if isinstance(layer, nn.Conv2d):
            sizes = layer.in_channels, layer.out_channels, layer.kernel_size
            shape = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
            net.set_submodule(name, BayesConv2d(*sizes, **shape, groups=layer.groups, bias=layer.bias is not None))
        if isinstance(layer, nn.Linear):
            net.set_submodule(name, BayesLinear(layer.in_features, layer.out_features, bias=layer.bias is not None))
    stochastic = StochasticModel(net, num_samples=SAMPLES)
    kl = KLDiv(stochastic)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(stochastic(x), y) + KAPPA_OVER_N * kl().squeeze()

    return Made(stochastic, loss, stochastic)


def laplace(net: nn.Module, x: Tensor, y: Tensor) -> Made:
    from laplace import Laplace

    approximation = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")

    def predict(x: Tensor) -> Tensor:
        if not fitted:
            raise RuntimeError("fit first")
        return approximation(x, pred_type="glm", link_approx="probit")

    fitted = not net.training
    if fitted:  # one batch: how good the fit is does not change how long a prediction takes
        approximation.fit(torch.utils.data.DataLoader([*zip(x, y, strict=True)], batch_size=len(x)))
    return Made(net, lambda x, y: F.cross_entropy(net(x), y), predict)


RIVALS: dict[str, Callable[[nn.Module, Tensor, Tensor], Made]] = {
    "fastbnns": fastbnns,
    "bayesian_torch": bayesian_torch,
    "torch_uncertainty": torch_uncertainty,
    "laplace": laplace,
}


def made(method: str, net: nn.Module, x: Tensor, y: Tensor) -> Made:
    import mnvi._torchvision  # noqa: F401  the packages import torchvision, which has to come from there first

    return RIVALS[method](net, x, y)


PACKAGES = {
    "fastbnns": "fastbnns",
    "bayesian_torch": "bayesian-torch",
    "torch_uncertainty": "torch-uncertainty",
    "laplace": "laplace-torch",
}


def interpreter() -> str:
    """The interpreter of the rivals' environment, which is made if it is missing or has other versions."""
    python, made_from = FOLDER / "bin" / "python", FOLDER / PINNED.name
    if not made_from.exists() or made_from.read_text() != PINNED.read_text():
        print(f"installing {PINNED.name} into {FOLDER}", file=sys.stderr, flush=True)
        venv.create(FOLDER, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(PINNED)]
        subprocess.run(command, check=True)
        made_from.write_text(PINNED.read_text())
    return str(python)
