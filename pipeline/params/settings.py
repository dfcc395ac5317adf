"""The settings of a study: one pydantic dataclass per section of params.yaml.

A field's type alone says what its key may hold. `Of` names the kinds that have the key. For other kinds, the file must
not contain it, and the field keeps its default.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from pipeline.registry import images, networks
from pipeline.setting_types import (
    STRICT,
    Boolean,
    Column,
    Count,
    Epochs,
    Folds,
    Momentum,
    Name,
    Names,
    NotNegative,
    Positive,
    ResultsFolder,
    Schedule,
    Section,
    Sha256,
    Switch,
    Text,
    Texts,
    known,
    one_of,
)

KINDS = ("regression", "classification")
PRESETS = ("release", "paper")
OPTIMIZERS = {"regression": ("sgd", "adam"), "classification": ("sgd", "adam", "amsgrad")}
TARGETS = ("raw", "standardised")
CROPS = {"imagenet-paper": 224, "imagenet-release": 224}
"""Side length in pixels of each augmentation's crop; the other augmentations keep the size of an image."""
IN_COLOUR = {"cifar-release": 3}
"""Channels needed by augmentations that change the hue; the others take any number."""
AUGMENTATIONS = ("none", "cifar-paper", *IN_COLOUR, *CROPS)

RECIPE: dict[str, Any] = {
    "batch_size": Count,
    "learning_rate": Positive,
    "weight_decay": NotNegative,
    "momentum": Momentum,
    "gamma": Positive,
    "clip": Positive | None,
}
RECIPE_KEYS = tuple(RECIPE)
"""Keys of an experiment's recipe that a method's hyperparameters may override."""


class Of:
    """The kinds of data set or experiment that have a key."""

    def __init__(self, *kinds: str, needed: bool = False) -> None:
        self.kinds, self.needed = kinds, needed


Splits = Annotated[str, known("kfold", "standard")]
Stem = Annotated[str, known("cifar", "imagenet")]
Augmentation = Annotated[str, known(*AUGMENTATIONS)]
Normalisation = Annotated[str, one_of(lambda _: images.normalisations())]
Network = Annotated[
    str,
    one_of(
        lambda above: networks.of_kind(above["kind"]),
        lambda above: f"a network for {above['kind']}",
        or_like=networks.REFERENCE,
    ),
]
Optimizer = Annotated[
    str, one_of(lambda above: OPTIMIZERS[above["kind"]], lambda above: f"an optimiser for {above['kind']}")
]


@dataclass(frozen=True, config=STRICT)
class RegressionLimits:
    """Upper limits for every regression experiment; None means no limit."""

    runs: Count | None
    folds: Count | None
    epochs: Count | None
    search_epochs: Count | None

    def leaves_whole(self, experiment: Experiment) -> bool:
        """Whether schedule and data are uncut; fewer runs do not matter, as the tables state their number."""
        return experiment.epochs == experiment.planned_epochs and self.folds is None


@dataclass(frozen=True, config=STRICT)
class ClassificationLimits:
    """Upper limits for every classification experiment; None means no limit."""

    seeds: Count | None
    epochs: Count | None
    train_examples: Count | None
    validation_examples: Count | None
    test_examples: Count | None
    search_epochs: Count | None
    steps_per_epoch: Count | None

    def leaves_whole(self, experiment: Experiment) -> bool:
        """Whether schedule and data are uncut; fewer seeds do not matter, as the tables state their number."""
        cuts = (self.train_examples, self.validation_examples, self.test_examples, self.steps_per_epoch)
        return experiment.epochs == experiment.planned_epochs and not any(cuts)


Limits = RegressionLimits | ClassificationLimits


class Place(TypedDict):
    """A cell of the study: an experiment, its data and one of its methods."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    experiment: Text
    data: Text
    method: Text


@dataclass(frozen=True, config=STRICT)
class Study:
    """The cells to run, their limits, and the folder for the results."""

    name: Name
    results: ResultsFolder
    preset: Annotated[str, known(*PRESETS)]
    data: Names
    cells: dict[Name, Place]
    search: Names
    searcher: Annotated[str, known("grid", "random", "optuna")]
    trials: Count
    missing_data: Annotated[str, known("stop", "skip")]
    regression: RegressionLimits
    classification: ClassificationLimits
    grids: dict[Name, Section] = field(default_factory=dict)  # replace the experiments' own grids in this study

    def limits(self, kind: str) -> Limits:
        return self.regression if kind == "regression" else self.classification


@dataclass(frozen=True, config=STRICT)
class Resources:
    """The workers of one training, and how they compute."""

    workers: Count
    gpu: Boolean
    cpus_per_worker: Count
    precision: Annotated[str, known("float32", "bfloat16", "float16")]
    compile: Switch  # auto: tables if their training is long enough to pay for it, images on a GPU
    accumulate: Count
    allow_fewer_workers: Boolean
    channels_last: Switch = "auto"  # images on a GPU

    @property
    def per_worker(self) -> dict[str, float]:
        """What one worker occupies of a Ray node."""
        return {"CPU": float(self.cpus_per_worker), **({"GPU": 1.0} if self.gpu else {})}


@dataclass(frozen=True, config=STRICT)
class Dataset:
    """The location of a data set, and how to split it."""

    name: Name
    kind: Annotated[str, known("table", "images", "folder")]
    # in the standard layout: a name that sources know, or a path
    folder: Annotated[Text | None, Of("table")] = None
    file: Annotated[Text | None, Of("table")] = None  # one CSV file, instead of a folder
    target: Annotated[Column | None, Of("table")] = None  # column of the CSV file
    splits: Annotated[Splits | None, Of("table", needed=True)] = None
    folds: Annotated[Folds | None, Of("table")] = None
    sha256: Annotated[Sha256 | None, Of("table")] = None
    validation: Annotated[Count | None, Of("images", "folder")] = None
    train: Annotated[Text | None, Of("folder")] = None
    test: Annotated[Text | None, Of("folder", needed=True)] = None
    size: Annotated[Count | None, Of("folder", needed=True)] = None
    recipe: Text | None = None  # an experiment or recipe; adds an experiment like it, with this data set's name

    @property
    def folder_out(self) -> Path:
        return Path("data") / self.name


@dataclass(frozen=True, config=STRICT)
class Method:
    """A method's hyperparameters within an experiment, and the grid that `tune` searches."""

    hyperparameters: Section = field(default_factory=dict)
    grid: Section = field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class Experiment:
    """A network on a data set and the recipe that trains it, with the study's preset and limits applied."""

    name: Name
    kind: Annotated[str, known(*KINDS)]
    data: Text
    network: Network
    optimizer: Optimizer
    learning_rate: Positive
    epochs: Count
    batch_size: Count
    planned_epochs: Count  # before limits
    momentum: Momentum = 0.0
    nesterov: Boolean = False
    weight_decay: NotNegative = 0.0
    milestones: Epochs = ()
    gamma: Positive = 0.1
    clip: Positive | None = None
    hidden: Annotated[Count | None, Of("regression")] = None
    # first epoch of each step: factor of the KL divergence
    kappa: Annotated[Schedule, Of("regression", needed=True)] = field(default_factory=dict)
    runs: Annotated[Count | None, Of("regression", needed=True)] = None
    # what networks train on: targets in their own unit, or with mean 0 and deviation 1; scores are in their unit
    targets: Annotated[str, known(*TARGETS), Of("regression")] = "raw"
    stem: Annotated[Stem | None, Of("classification")] = None  # of resnet18
    ood: Annotated[Texts, Of("classification")] = ()
    damaged: Annotated[Count | None, Of("classification")] = None  # test images scored with every kind of damage
    augmentation: Annotated[Augmentation | None, Of("classification", needed=True)] = None
    normalisation: Annotated[Normalisation | None, Of("classification", needed=True)] = None
    seeds: Annotated[Count | None, Of("classification", needed=True)] = None
    # the score on the validation images whose best epoch is kept
    selection: Annotated[str, known("nll", "error"), Of("classification")] = "nll"
    # epochs without a better validation score before training stops
    patience: Annotated[Count | None, Of("classification")] = None
    # size of each worker's batch, with a learning rate in proportion; None: all workers share batch_size
    images_per_worker: Annotated[Count | None, Of("classification")] = None
    warmup: Annotated[Count | None, Of("classification")] = None  # epochs in which the learning rate rises to its value
    sync_batch_norm: Annotated[Boolean, Of("classification")] = False  # over the images of all workers
    methods: dict[Text, Method] = field(default_factory=dict)
    arguments: Section = field(default_factory=dict)  # of the network
    # to start from: a name of registry/pretrained.py, a file, or a name of torchvision's, such as DEFAULT
    weights: Annotated[Text | None, Of("classification")] = None

    @property
    def weights_file(self) -> Path | None:
        """The file that `weights` names; None if it names released weights, or nothing."""
        return Path(self.weights) if self.weights and Path(self.weights).suffix in (".pt", ".pth") else None

    def shortened(self, epochs: int | None) -> Experiment:
        """The same schedule in fewer epochs: milestones and κ steps come proportionally earlier."""
        if epochs is None or epochs >= self.epochs:
            return self
        scale = epochs / self.epochs
        milestones = tuple(sorted({max(1, round(milestone * scale)) for milestone in self.milestones}))
        kappa = {round(epoch * scale): value for epoch, value in self.kappa.items()}
        return replace(self, epochs=epochs, milestones=milestones, kappa=kappa)

    def with_recipe(self, hyperparameters: dict[str, Any]) -> Experiment:
        """The experiment, updated with the hyperparameters that belong to its recipe."""
        return replace(self, **{key: value for key, value in hyperparameters.items() if key in RECIPE_KEYS})


@cache
def keys(section: type, kind: str) -> dict[str, bool]:
    """The keys of a section of this kind in the file, and whether each is needed."""
    hints = get_type_hints(section, include_extras=True)
    found: dict[str, bool] = {}
    for one in fields(section):
        of = [part for part in getattr(hints[one.name], "__metadata__", ()) if isinstance(part, Of)]
        if one.name not in ("name", "planned_epochs") and all(kind in part.kinds for part in of):
            found[one.name] = any(part.needed for part in of)
    return found
