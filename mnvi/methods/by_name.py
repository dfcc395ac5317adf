"""Every method of the paper's tables by its name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from mnvi.conversion.converting import convert
from mnvi.methods.dvi import DVI
from mnvi.methods.ensemble import Ensemble
from mnvi.methods.montecarlo import MonteCarlo, mc_dropout
from mnvi.posteriors import EmpiricalBayes, MeanField, MultiplicativeNoise, Sampled, SharedMeanField, Variance

Network = nn.Module | Callable[[], nn.Module]


def build(name: str, network: Network, **hyperparameters: Any) -> nn.Module:
    """Build a method from the paper's tables, ready for training with :class:`mnvi.Objective`.

    ===============  ===============================================================  ===========================
    name             hyperparameters                                                  output
    ===============  ===============================================================  ===========================
    deterministic                                                                     tensor
    mnvi             prior_variance, init_rho, variance                               :class:`mnvi.Gaussian`
    mfvi, smfvi      prior_variance, init_log_var                                     :class:`mnvi.Gaussian`
    mc_mfvi          prior_variance, init_log_var, and those of MonteCarlo            :class:`mnvi.Samples`
    mc_dropout       those of MonteCarlo; the network brings its dropout              :class:`mnvi.Samples`
    ensemble         num_members, seed, stacked                                       :class:`mnvi.Samples`
    dvi              init_log_var                                                     :class:`mnvi.JointGaussian`
    ddvi             init_log_var                                                     :class:`mnvi.Gaussian`
    ===============  ===============================================================  ===========================

    Args:
        name: one of the above.
        network: a function that builds the deterministic network, or such a network, which is copied; an ensemble needs
            the function.
        hyperparameters: keyword arguments of the method.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.methods.build("mc_dropout", mnvi.models.mlp(3, dropout=0.1), num_samples=8)
        >>> net.eval()(torch.ones(5, 3)).values.shape
        torch.Size([8, 5, 2])
    """
    if name not in _METHODS:
        raise ValueError(f"build: name={name!r} is not one of {', '.join(NAMES)}")
    known = list(inspect.signature(_METHODS[name]).parameters)[1:]
    if "montecarlo" in known:
        known = [*known[:-1], *list(inspect.signature(MonteCarlo).parameters)[1:]]
    for given in hyperparameters:
        if given not in known:
            names = ", ".join(known) or "none"
            raise TypeError(f"build: {name} has no hyperparameter {given!r}; it has: {names}")
    return _METHODS[name](network, **hyperparameters)


def _fresh(network: Network) -> nn.Module:
    return copy.deepcopy(network) if isinstance(network, nn.Module) else network()


def _mnvi(
    network: Network, prior_variance: float = 1.0, init_rho: float = -3.0, variance: Variance = "exact"
) -> nn.Module:
    return convert(_fresh(network), MultiplicativeNoise(prior_variance, init_rho, variance))


def _mfvi(network: Network, prior_variance: float = 1.0, init_log_var: float = -10.0) -> nn.Module:
    return convert(_fresh(network), MeanField(prior_variance, init_log_var))


def _smfvi(network: Network, prior_variance: float = 1.0, init_log_var: float = -10.0) -> nn.Module:
    return convert(_fresh(network), SharedMeanField(prior_variance, init_log_var))


def _mc_mfvi(
    network: Network, prior_variance: float = 1.0, init_log_var: float = -10.0, **montecarlo: Any
) -> nn.Module:
    return MonteCarlo(convert(_fresh(network), Sampled(MeanField(prior_variance, init_log_var))), **montecarlo)


def _mc_dropout(network: Network, **montecarlo: Any) -> nn.Module:
    return mc_dropout(_fresh(network), **montecarlo)


def _ensemble(network: Network, num_members: int = 5, seed: int = 0, stacked: bool = False) -> nn.Module:
    if isinstance(network, nn.Module):
        raise TypeError("build: an ensemble needs a function that builds its members, e.g. lambda: mnvi.models.mlp(13)")
    return Ensemble.of(network, num_members, seed, stacked=stacked)


def _ddvi(network: Network, init_log_var: float = -10.0) -> nn.Module:
    return convert(_fresh(network), MeanField(EmpiricalBayes(), init_log_var))


def _dvi(network: Network, init_log_var: float = -10.0) -> nn.Module:
    return DVI(_ddvi(network, init_log_var))


_METHODS: dict[str, Callable[..., nn.Module]] = {
    "deterministic": _fresh,
    "mnvi": _mnvi,
    "mfvi": _mfvi,
    "smfvi": _smfvi,
    "mc_mfvi": _mc_mfvi,
    "mc_dropout": _mc_dropout,
    "ensemble": _ensemble,
    "dvi": _dvi,
    "ddvi": _ddvi,
}
NAMES = tuple(_METHODS)
