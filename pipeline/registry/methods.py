"""The methods: their hyperparameters, how to build them, and the form of their loss and predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.registry import Reference, Registry, resolve
from pipeline.setting_types import Count, NotNegative, Number, Share, Variance

OTHER = "#9a9a9a"


@dataclass(frozen=True)
class Method:
    """One method.

    Args:
        hyperparameters: the method's own hyperparameters, each with the pydantic type that checks it. The recipe adds
            its own (batch size, learning rate, ...); images add `kappa_over_n` if there is a KL divergence.
        build: takes a function that builds the deterministic network, and the hyperparameters; returns the network to
            train. None means `mnvi.methods.build`.
        library: the name that `mnvi.methods.build` knows the method by; default: its own.
        arguments: of `build`, the same in every cell.
        has_kl: whether the loss has a KL divergence, which κ weights and which replaces weight decay.
        samples: whether predictions take several passes; for tables `build` then also takes `num_samples`, `chunk` and
            `seed`.
        members: whether the method trains several separate networks. For tables they train side by side.
        needs: hyperparameters that have no default, each with a usual value.
        networks: the only networks that the method works with; empty means all.
        otherwise: the error message for any other network.
        options: arguments of `mnvi.options` that differ from the paper's, in training and prediction.
    """

    name: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict, compare=False)
    build: Reference | None = None
    library: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    has_kl: bool = True
    samples: bool = False
    members: bool = False
    needs: Mapping[str, str] = field(default_factory=dict, compare=False)
    networks: tuple[str, ...] = field(default=(), compare=False)
    otherwise: str = field(default="", compare=False)
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    label: str = field(default="", compare=False)  # in tables
    colour: str = field(default=OTHER, compare=False)  # in figures

    @property
    def reference(self) -> Reference:
        return self.build or "mnvi.methods:build"

    def network(self, factory: Callable[[], Any], **arguments: Any) -> Any:
        """The network of this method, built from the deterministic network of the factory."""
        arguments = {**self.arguments, **arguments}
        if self.build is not None:
            return resolve(self.build)(factory, **arguments)
        return resolve("mnvi.methods:build")(self.library or self.name, factory, **arguments)


_MEAN_FIELD = {"prior_variance": Variance, "init_log_var": Number}
_NOISE = {"prior_variance": Variance, "init_rho": Number}
_SAMPLED = {"num_samples": Count, "train_samples": Count}

METHODS = Registry(
    "a method",
    (
        Method("mc_mfvi", {**_MEAN_FIELD, **_SAMPLED}, samples=True, label="MC-MFVI", colour="#2fa8b5"),
        Method(
            "mc_dropout",
            {"dropout": Share, **_SAMPLED},
            has_kl=False,
            samples=True,
            needs={"dropout": "0.1"},
            label="MC Dropout",
            colour="#e0953e",
        ),
        Method("ensemble", {"num_members": Count}, has_kl=False, members=True, label="Ensemble", colour="#3f9f6d"),
        Method(
            "dvi",
            {"init_log_var": Number},
            networks=("mlp",),
            otherwise="full covariances need the network mlp, not {network}; use ddvi",
            label="DVI",
            colour="#8d6cc7",
        ),
        Method("ddvi", {"init_log_var": Number}, label="dDVI", colour="#b5838d"),
        Method("deterministic", has_kl=False, label="Deterministic", colour="#87909c"),
        Method("mfvi", _MEAN_FIELD, label="MFVI", colour="#3d8bd4"),
        Method("smfvi", _MEAN_FIELD, label="Shared MFVI", colour="#97a13a"),
        Method("mnvi", _NOISE, label="MNVI", colour="#d1495b"),
        Method(
            "mnvi_factored",
            _NOISE,
            library="mnvi",
            arguments={"variance": "factored"},
            label="MNVI, factored variance",
            colour="#e58a96",
        ),
        Method(
            "mnvi_shared",
            _NOISE,
            library="mnvi",
            options={"spatial": "shared_weights"},
            label="MNVI, positions share weights",
            colour="#8f2f3e",
        ),
    ),
)
AFTERWARDS = {
    "temperature": ("Temperature scaling", "#5b6b7a"),
    "laplace": ("Last-layer Laplace", "#b08a3e"),
    "tuned_noise": ("MNVI, tuned noise", "#c77b86"),
    "seed_ensemble": ("Ensemble of the seeds", "#5fae86"),
}
"""Methods for networks that are already trained (`python -m pipeline.peers`): label and colour."""
KAPPA_OVER_N = {"kappa_over_n": NotNegative}


def label(name: str) -> str:
    if name in AFTERWARDS:
        return AFTERWARDS[name][0]
    return (METHODS[name].label if name in METHODS else "") or name


def colour(name: str) -> str:
    if name in AFTERWARDS:
        return AFTERWARDS[name][1]
    return METHODS[name].colour if name in METHODS else OTHER
