"""Checks that an experiment's images, network, normalisation and augmentation fit together."""

from __future__ import annotations

from pipeline.errors import StudyError
from pipeline.params.settings import AUGMENTATIONS, CROPS, IN_COLOUR, Dataset, Experiment
from pipeline.registry import images, networks
from pipeline.registry.images import IMAGES

FOLDER_CHANNELS = 3  # images from folders become RGB, whatever their files hold


def check_validation(dataset: Dataset) -> None:
    path, training = f"datasets.{dataset.name}.validation", _training(dataset)
    if dataset.validation is None or training is None:
        return
    if training == 0:
        raise StudyError(f"{path}: {dataset.validation}, but there are no training images to hold out; leave it out")
    if dataset.validation >= training:
        raise StudyError(
            f"{path}: {dataset.validation} is not fewer than the {training} training images, so none would be left to "
            "train on; write e.g. 5000"
        )


def check_experiment(experiment: Experiment, data: Dataset) -> None:
    """Checks the data that an experiment trains on. `ood` images need no check: evaluation converts them to fit."""
    path = f"experiments.{experiment.name}"
    if _training(data) == 0:
        raise StudyError(
            f"{path}.data: {data.name!r} has no training images; name a different one, or add "
            f"datasets.{data.name}.train if it is a folder"
        )
    _check_normalisation(path, experiment, data)
    _check_network(path, experiment, data)
    _check_augmentation(path, experiment, data)


def _training(dataset: Dataset) -> int | None:
    """The number of training images; None for a folder, whose images only `prepare` counts."""
    if dataset.kind == "images":
        return IMAGES[dataset.name].training
    return None if dataset.train else 0


def _channels(dataset: Dataset) -> int:
    return IMAGES[dataset.name].channels if dataset.kind == "images" else FOLDER_CHANNELS


def _size(dataset: Dataset) -> int:
    """The length of the smaller side in pixels."""
    if dataset.kind == "images":
        return IMAGES[dataset.name].size
    assert dataset.size is not None  # reading params.yaml requires it
    return dataset.size


def _check_normalisation(path: str, experiment: Experiment, data: Dataset) -> None:
    given, channels = str(experiment.normalisation), _channels(data)
    counts = {name: len(mean) for name, (mean, _) in images.normalisations().items()}
    wanted = counts[given]
    if wanted != channels:
        fitting = [name for name, count in counts.items() if count == channels]
        raise StudyError(
            f"{path}.normalisation: {given!r} is for {wanted} channels, but the images of datasets.{data.name} have "
            f"{channels}; use {' or '.join(fitting)}"
        )


def _check_network(path: str, experiment: Experiment, data: Dataset) -> None:
    size = networks.find(experiment.network).size
    if size is not None and _size(data) != size:
        others = (networks.NETWORKS[name] for name in networks.of_kind(experiment.kind))
        fitting = [other.name for other in others if other.size in (None, _size(data))]
        raise StudyError(
            f"{path}.network: {experiment.network!r} is for images of {size} x {size} pixels, but those of "
            f"datasets.{data.name} have {_size(data)}; use {' or '.join(fitting)}"
        )


def _check_augmentation(path: str, experiment: Experiment, data: Dataset) -> None:
    given = str(experiment.augmentation)
    if data.kind == "folder" and _size(data) < CROPS.get(given, 0):
        crop = CROPS[given]
        raise StudyError(
            f"datasets.{data.name}.size: {data.size} is less than the {crop} x {crop} pixels that {path}.augmentation, "
            f"{given!r}, crops; write at least {crop}"
        )
    if why := _misfit(given, data):
        fitting = [name for name in AUGMENTATIONS if not _misfit(name, data)]
        raise StudyError(f"{path}.augmentation: {given!r} {why}; use {' or '.join(fitting)}")


def _misfit(augmentation: str, data: Dataset) -> str | None:
    """Why this augmentation does not fit these images; None if it does."""
    channels, size, crop = _channels(data), _size(data), CROPS.get(augmentation)
    wanted = IN_COLOUR.get(augmentation, channels)
    if channels != wanted:
        return f"is for {wanted} channels, but the images of datasets.{data.name} have {channels}"
    if data.kind == "images" and crop is not None and crop > size:
        return f"crops {crop} x {crop} pixels, but the images of datasets.{data.name} have {size} x {size}"
    return None
