"""Which keys params.yaml has, and what each may hold."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.params import checks
from pipeline.params.checks import Check, boolean, integer, list_of, mapping, nullable, number, one_of, switch, text
from pipeline.params.settings import ClassificationLimits, RegressionLimits

KINDS = ("regression", "classification")
PRESETS = ("release", "paper")
NETWORKS = {"regression": ("mlp",), "classification": ("lenet", "all_cnn", "resnet18")}
OPTIMIZERS = {"regression": ("sgd", "adam"), "classification": ("sgd", "adam", "amsgrad")}
AUGMENTATIONS = ("none", "cifar-paper", "cifar-release", "imagenet-paper", "imagenet-release")
CROPS = {"imagenet-paper": 224, "imagenet-release": 224}
"""Pixels of a side that each cuts out; the others leave an image its size."""
IN_COLOUR = {"cifar-release": 3}
"""Channels that those need which turn the hue; the others take any."""
NORMALISATIONS = {"mnist": 1, "cifar10": 3, "cifar100": 3, "imagenet": 3}
"""Channels of the images that each is for."""


class KnownImages(NamedTuple):
    channels: int
    size: int  # pixels of a side
    training: int  # images, of which datasets.*.validation are held out


IMAGES = {
    "mnist": KnownImages(1, 28, 60_000),
    "fashion_mnist": KnownImages(1, 28, 60_000),
    "notmnist": KnownImages(1, 28, 0),
    "cifar10": KnownImages(3, 32, 50_000),
    "cifar100": KnownImages(3, 32, 50_000),
}
"""The image sets that are known by name."""
FOLDER_CHANNELS = 3  # whatever the photographs have
LENET_SIZE = 28  # pixels of a side; its first linear layer fits no other

SAMPLED = ("num_samples", "train_samples")
METHODS: dict[str, tuple[str, ...]] = {
    "deterministic": (),
    "mnvi": ("prior_variance", "init_rho"),
    "mfvi": ("prior_variance", "init_log_var"),
    "smfvi": ("prior_variance", "init_log_var"),
    "mc_mfvi": ("prior_variance", "init_log_var", *SAMPLED),
    "mc_dropout": ("dropout", *SAMPLED),
    "ensemble": ("num_members",),
    "dvi": ("init_log_var",),
    "ddvi": ("init_log_var",),
}
"""The hyperparameters of each method, apart from the recipe's."""
WITHOUT_KL = ("deterministic", "mc_dropout", "ensemble")
"""Methods without a posterior, whose loss has no KL divergence."""

TAKEN = (
    *("benchmarks", "build", "data", "dist", "docker", "docs", "dvc_plots", "mlartifacts", "mlruns", "mnvi"),
    *("pipeline", "studies", "tests", "tools", "work"),
)
"""Folders of the project that results would mix with, or that a stage would delete."""

name = checks.matching(r"[A-Za-z0-9][A-Za-z0-9_-]*", "a name of letters, digits, - and _")


def folder(path: str, value: Any) -> Path:
    given = Path(text(path, value))
    if given.is_absolute() or ".." in given.parts or given == Path("."):
        raise checks.fail(path, value, "a folder inside the project", "write a relative path such as results/mine")
    if given.parts[0] in TAKEN or any(part.startswith(".") for part in given.parts):
        raise checks.fail(path, value, "a folder of results alone", "write another one, such as results/mine")
    if any(part.is_file() for part in (given, *given.parents)):
        raise checks.fail(path, value, "a folder, as there is a file of that name", "write another one")
    return given


def column(path: str, value: Any) -> str | int:
    return text(path, value) if isinstance(value, str) else int(integer(0)(path, value))


RECIPE: dict[str, Check] = {
    "batch_size": integer(1),
    "learning_rate": number(above=0),
    "weight_decay": number(least=0),
    "momentum": number(least=0, below=1),
    "gamma": number(above=0),
    "clip": nullable(number(above=0)),
}
HYPERPARAMETERS: dict[str, Check] = {
    "prior_variance": number(least=1e-9),  # below that the library refuses MNVI
    "init_rho": number(),
    "init_log_var": number(),
    "num_samples": integer(1),
    "train_samples": integer(1),
    "num_members": integer(1),
    "dropout": number(above=0, below=1),
    "kappa_over_n": number(least=0),
    **RECIPE,
}
METHOD: dict[str, Check] = {"hyperparameters": mapping, "grid": mapping}

REGRESSION_LIMITS = {field.name: nullable(integer(1)) for field in fields(RegressionLimits)}
CLASSIFICATION_LIMITS = {field.name: nullable(integer(1)) for field in fields(ClassificationLimits)}
LIMITS: dict[str, Check] = {
    "regression": lambda path, value: checks.section(path, value, REGRESSION_LIMITS, REGRESSION_LIMITS),
    "classification": lambda path, value: checks.section(path, value, CLASSIFICATION_LIMITS, CLASSIFICATION_LIMITS),
}
STUDY: dict[str, Check] = {
    "name": name,
    "results": folder,
    "preset": one_of(PRESETS),
    "data": list_of(name),
    "cells": mapping,
    "search": list_of(name),
    "searcher": one_of(("grid", "random", "optuna")),
    "trials": integer(1),
    "missing_data": one_of(("stop", "skip")),
    "limits": lambda path, value: checks.section(path, value, LIMITS, LIMITS),
}
CELL: dict[str, Check] = {"experiment": text, "data": text, "method": text}
RESOURCES: dict[str, Check] = {
    "workers": integer(1),
    "gpu": boolean,
    "cpus_per_worker": integer(1),
    "precision": one_of(("float32", "bfloat16", "float16")),
    "compile": switch,
    "accumulate": integer(1),
    "allow_fewer_workers": boolean,
}
DATASETS: dict[str, dict[str, Check]] = {
    "table": {
        "kind": text,
        "folder": text,
        "file": text,
        "target": column,
        "splits": one_of(("kfold", "standard")),
        "folds": nullable(integer(2)),
        "sha256": nullable(checks.matching("[0-9a-f]{64}", "64 hexadecimal digits")),
        "recipe": text,
    },
    "images": {"kind": text, "validation": nullable(integer(1)), "recipe": text},
    "folder": {
        "kind": text,
        "train": nullable(text),
        "test": text,
        "size": integer(1),
        "validation": nullable(integer(1)),
        "recipe": text,
    },
}
DATASET_REQUIRED = {"table": ("splits",), "images": (), "folder": ("test", "size")}

EXPERIMENT_REQUIRED = ("data", "network", "optimizer", "learning_rate", "epochs", "batch_size", "methods")
OF_KIND_REQUIRED = {
    "regression": ("hidden", "kappa", "runs"),
    "classification": ("augmentation", "normalisation", "seeds"),
}


def experiment(kind: str) -> dict[str, Check]:
    """The keys of an experiment of this kind."""
    of_kind: dict[str, dict[str, Check]] = {
        "regression": {"hidden": integer(1), "kappa": checks.schedule, "runs": integer(1)},
        "classification": {
            "stem": one_of(("cifar", "imagenet")),
            "ood": list_of(text),
            "augmentation": one_of(AUGMENTATIONS),
            "normalisation": one_of(NORMALISATIONS),
            "seeds": integer(1),
            "selection": one_of(("nll", "error")),
            "patience": nullable(integer(1)),
        },
    }
    return {
        "kind": text,
        "data": text,
        "network": one_of(NETWORKS[kind], f"a network for {kind}"),
        "optimizer": one_of(OPTIMIZERS[kind], f"an optimiser for {kind}"),
        "nesterov": boolean,
        "epochs": integer(1),
        "milestones": checks.ascending,
        "methods": mapping,
        **RECIPE,
        **of_kind[kind],
    }


def hyperparameters(kind: str, method: str) -> dict[str, Check]:
    """What this method takes: its own hyperparameters, κ/N if it has a KL divergence to weigh, and the recipe's."""
    own = METHODS[method]
    if kind == "classification" and method not in WITHOUT_KL:
        own = (*own, "kappa_over_n")
    return {key: HYPERPARAMETERS[key] for key in (*own, *RECIPE)}
