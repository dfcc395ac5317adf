"""The settings of a study as values: one dataclass per section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

RECIPE_KEYS = ("batch_size", "learning_rate", "weight_decay", "momentum", "gamma", "clip")
"""What a method's hyperparameters may override in the recipe of its experiment."""


@dataclass(frozen=True)
class RegressionLimits:
    """Cuts of every regression experiment; None leaves it as it is."""

    runs: int | None = None
    folds: int | None = None
    epochs: int | None = None
    search_epochs: int | None = None

    def leaves_whole(self, experiment: Experiment) -> bool:
        """Whether schedule and data are the experiment's own; fewer runs do not count, tables say how many."""
        return experiment.epochs == experiment.planned_epochs and self.folds is None


@dataclass(frozen=True)
class ClassificationLimits:
    """Cuts of every classification experiment; None leaves it as it is."""

    seeds: int | None = None
    epochs: int | None = None
    train_examples: int | None = None
    validation_examples: int | None = None
    test_examples: int | None = None
    search_epochs: int | None = None
    steps_per_epoch: int | None = None

    def leaves_whole(self, experiment: Experiment) -> bool:
        """Whether schedule and data are the experiment's own; fewer seeds do not count, tables say how many."""
        cuts = (self.train_examples, self.validation_examples, self.test_examples, self.steps_per_epoch)
        return experiment.epochs == experiment.planned_epochs and not any(cuts)


Limits = RegressionLimits | ClassificationLimits


@dataclass(frozen=True)
class Study:
    """What is run, how much of it, and where its results go."""

    name: str
    results: Path
    preset: str
    data: tuple[str, ...]
    cells: dict[str, dict[str, str]]  # name -> experiment, data, method
    search: tuple[str, ...]
    searcher: str
    trials: int
    missing_data: str
    regression: RegressionLimits
    classification: ClassificationLimits

    def limits(self, kind: str) -> Limits:
        return self.regression if kind == "regression" else self.classification


@dataclass(frozen=True)
class Resources:
    """The machines: workers of one training, and how they compute."""

    workers: int = 1
    gpu: bool = False
    cpus_per_worker: int = 1
    precision: str = "float32"
    compile: bool | str = "auto"  # tables where it pays
    accumulate: int = 1
    allow_fewer_workers: bool = False


@dataclass(frozen=True)
class Dataset:
    """Where a data set is found and how it is split; keys that its kind does not have are None."""

    name: str
    kind: str  # table | images | folder
    folder: str | None = None  # of a table in the standard layout: a name that sources know, or a path
    file: str | None = None  # of a table in one CSV file, instead of a folder
    target: str | int | None = None  # its column
    splits: str | None = None  # kfold | standard
    folds: int | None = None
    sha256: str | None = None
    validation: int | None = None
    train: str | None = None
    test: str | None = None
    size: int | None = None
    recipe: str | None = None  # an experiment; this data set then has one of its own name that is like it

    @property
    def folder_out(self) -> Path:
        return Path("data") / self.name


@dataclass(frozen=True)
class Method:
    """A method's hyperparameters within an experiment, and the grid that `tune` searches."""

    hyperparameters: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """A network on a data set and the recipe that trains it, with the study's preset and limits applied."""

    name: str
    kind: str  # regression | classification
    data: str
    network: str
    optimizer: str
    learning_rate: float
    epochs: int
    batch_size: int
    planned_epochs: int  # before limits
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    clip: float | None = None
    # regression
    hidden: int | None = None
    kappa: dict[int, float] = field(default_factory=dict)  # from which epoch on: factor of the KL divergence
    runs: int | None = None
    # classification
    stem: str | None = None  # of resnet18: cifar | imagenet
    ood: tuple[str, ...] = ()
    augmentation: str | None = None
    normalisation: str | None = None
    seeds: int | None = None
    selection: str = "nll"  # whose best epoch on the validation images is kept: nll | error
    patience: int | None = None  # epochs without a better validation score before training stops
    methods: dict[str, Method] = field(default_factory=dict)

    def shortened(self, epochs: int | None) -> Experiment:
        """The same schedule in fewer epochs: milestones and κ's steps come proportionally earlier."""
        if epochs is None or epochs >= self.epochs:
            return self
        scale = epochs / self.epochs
        milestones = tuple(sorted({max(1, round(milestone * scale)) for milestone in self.milestones}))
        kappa = {round(epoch * scale): value for epoch, value in self.kappa.items()}
        return replace(self, epochs=epochs, milestones=milestones, kappa=kappa)

    def with_recipe(self, hyperparameters: dict[str, Any]) -> Experiment:
        """Takes over those hyperparameters that are part of the recipe."""
        return replace(self, **{key: value for key, value in hyperparameters.items() if key in RECIPE_KEYS})
