"""Checks that settings fit together, which no single value can show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.params import fitting_images
from pipeline.params.settings import Dataset, Experiment, Place, Study
from pipeline.registry import networks
from pipeline.registry.images import IMAGES
from pipeline.registry.methods import METHODS
from pipeline.registry.pretrained import PRETRAINED


def check_dataset(dataset: Dataset) -> None:
    path = f"datasets.{dataset.name}"
    if dataset.kind == "images" and dataset.name not in IMAGES:
        raise unknown(path, dataset.name, IMAGES, "a known image set")
    fitting_images.check_validation(dataset)
    if dataset.splits == "kfold" and dataset.folds is None:
        raise StudyError(f"{path}.folds: is missing, but splits: kfold needs it; add e.g. folds: 10")
    if dataset.kind == "table" and (dataset.folder is None) == (dataset.file is None):
        raise StudyError(
            f"{path}: needs folder, in the layout of the standard splits, or file, a CSV file; write one of the two"
        )
    if dataset.file is not None and dataset.splits == "standard":
        raise StudyError(f"{path}.splits: 'standard' needs a folder with index files; with file write splits: kfold")
    if dataset.file is not None and dataset.target is None:
        raise StudyError(f"{path}.target: is missing, but file needs it; name the column, or count it from 0")


def check_experiment(experiment: Experiment, datasets: dict[str, Dataset]) -> None:
    path = f"experiments.{experiment.name}"
    _check_data(path, experiment, datasets)
    if experiment.momentum and experiment.optimizer != "sgd":
        raise _only_for_sgd(path, experiment.momentum, experiment)
    if experiment.nesterov and not experiment.momentum:
        raise StudyError(f"{path}.nesterov: true needs momentum, which is 0; set momentum: 0.9 or nesterov: false")
    _check_network(path, experiment)
    if experiment.kind == "classification":
        fitting_images.check_experiment(experiment, datasets[experiment.data])
    for name, method in experiment.methods.items():
        entry = METHODS[name]
        if entry.networks and experiment.network not in entry.networks:
            why = entry.otherwise or "is only for {networks}, not {network}; leave it out"
            said = why.format(network=experiment.network, networks=" and ".join(entry.networks))
            raise StudyError(f"{path}.methods.{name}: {said}")
        if (momentum := method.hyperparameters.get("momentum")) and experiment.optimizer != "sgd":
            raise _only_for_sgd(f"{path}.methods.{name}.hyperparameters", momentum, experiment)
        for key, fallback in _needed(experiment.kind, name).items():
            if key not in method.hyperparameters:
                raise StudyError(
                    f"{path}.methods.{name}.hyperparameters.{key}: is missing, but {name} needs it; add e.g. "
                    f"{key}: {fallback}"
                )
        check_grid(f"{path}.methods.{name}.grid", method.grid, experiment)


def check_grid(path: str, grid: dict[str, Any], experiment: Experiment) -> None:
    for key, values in grid.items():
        if key == "momentum" and experiment.optimizer != "sgd":
            raise _only_for_sgd(path, values, experiment)
        if not values:
            raise StudyError(f"{path}.{key}: is empty; list some values or leave the key out")


def _only_for_sgd(path: str, value: Any, experiment: Experiment) -> StudyError:
    return StudyError(f"{path}.momentum: {value} is for sgd, not {experiment.optimizer}; leave it out")


def _needed(kind: str, method: str) -> dict[str, str]:
    """Hyperparameters without a default, each with a usual value."""
    kappa = {"kappa_over_n": "2.0e-7"} if kind == "classification" and METHODS[method].has_kl else {}
    return {**METHODS[method].needs, **kappa}


def _check_network(path: str, experiment: Experiment) -> None:
    """Checks that keys for particular networks are present for these networks and absent for all others."""
    network = networks.find(experiment.network)
    for key, example in network.needs.items():
        if getattr(experiment, key) is None:
            raise StudyError(f"{path}.{key}: is missing, but {experiment.network} needs it; add {example}")
    if experiment.stem is not None and "stem" not in network.needs:
        takers = " or ".join(name for name, one in networks.NETWORKS.items() if "stem" in one.needs)
        raise StudyError(f"{path}.stem: {experiment.stem!r} is for {takers}, not {experiment.network}; leave it out")
    if experiment.weights is not None:
        _check_weights(f"{path}.weights", experiment.weights, experiment.network)


def _check_weights(path: str, weights: str, network: str) -> None:
    if weights in PRETRAINED:
        if PRETRAINED[weights].network != network:
            raise StudyError(f"{path}: {weights!r} is for {PRETRAINED[weights].network}, not {network}; leave it out")
    elif Path(weights).suffix in (".pt", ".pth"):
        if not Path(weights).is_file():
            raise StudyError(f"{path}: there is no file {weights}; correct the path")
    elif not networks.is_torchvisions(network):
        fitting = [name for name, one in PRETRAINED.items() if one.network == network]
        raise StudyError(
            f"{path}: {weights!r} are no weights for {network}; write "
            f"{' or '.join([*fitting, 'a file of torch.save that ends in .pt or .pth'])}"
        )


def _check_data(path: str, experiment: Experiment, datasets: dict[str, Dataset]) -> None:
    fitting = {name for name, given in datasets.items() if (given.kind == "table") == (experiment.kind == "regression")}
    named = [("data", experiment.data), *((f"ood[{index}]", name) for index, name in enumerate(experiment.ood))]
    for key, name in named:
        if name not in datasets:
            raise unknown(f"{path}.{key}", name, datasets, "in datasets")
        if name not in fitting:
            raise unknown(f"{path}.{key}", name, sorted(fitting), f"data for {experiment.kind}")


def check_study(study: Study, datasets: dict[str, Dataset], experiments: dict[str, Experiment]) -> None:
    for index, name in enumerate(study.data):
        if name not in datasets:
            raise unknown(f"study.data[{index}]", name, datasets, "in datasets")
    if not study.cells:
        raise StudyError("study.cells: {} has nothing to run; add a cell, e.g. " + example(experiments))
    for name, cell in study.cells.items():
        _check_cell(f"study.cells.{name}", cell, study, experiments)
    # The list may name cells that this part of a study leaves out; a name that is no possible cell is a mistake.
    possible = {f"{name}-{method}" for name, experiment in experiments.items() for method in experiment.methods}
    for index, name in enumerate(study.search):
        if name in study.cells:
            _check_searched(name, study, datasets, experiments)
        elif name not in possible:
            raise unknown(f"study.search[{index}]", name, study.cells, "a cell of this study")


def _check_searched(name: str, study: Study, datasets: dict[str, Dataset], experiments: dict[str, Experiment]) -> None:
    cell = study.cells[name]
    experiment = experiments[cell["experiment"]]
    if not study.grids.get(name, experiment.methods[cell["method"]].grid):
        raise StudyError(
            f"study.search: {name!r} has no experiments.{experiment.name}.methods.{cell['method']}.grid; "
            "write one, or leave the cell out of study.search"
        )
    # For tables, the search itself holds out rows.
    if experiment.kind == "classification" and datasets[experiment.data].validation is None:
        raise StudyError(
            f"datasets.{experiment.data}.validation: is missing, but study.search has {name!r}, whose trials need "
            "images held out from training; add e.g. validation: 5000, or leave the cell out of study.search"
        )


def _check_cell(path: str, cell: Place, study: Study, experiments: dict[str, Experiment]) -> None:
    if cell["experiment"] not in experiments:
        raise unknown(f"{path}.experiment", cell["experiment"], experiments, "in experiments")
    experiment = experiments[cell["experiment"]]
    if cell["data"] != experiment.data:
        raise StudyError(
            f"{path}.data: {cell['data']!r} is not the data of experiments.{experiment.name}; "
            f"write data: {experiment.data}"
        )
    if cell["method"] not in experiment.methods:
        what = f"a method of experiments.{experiment.name}.methods"
        raise unknown(f"{path}.method", cell["method"], experiment.methods, what)
    for needed in (experiment.data, *experiment.ood):
        if needed not in study.data:
            raise StudyError(f"study.data: lacks {needed!r}, which {path} needs; add it to the list")


def example(experiments: dict[str, Experiment]) -> str:
    experiment = next(iter(experiments.values()))
    method = next(iter(experiment.methods))
    where = f"{{experiment: {experiment.name}, data: {experiment.data}, method: {method}}}"
    return f"{experiment.name}-{method}: {where}"


def notes(study: Study, experiments: dict[str, Experiment]) -> list[str]:
    """Settings that are odd but harmless.

    Args:
        experiments: as planned, before limits shorten their schedules.
    """
    absent = [name for name in study.search if name not in study.cells]
    used = [experiments[cell["experiment"]] for cell in study.cells.values()]
    unused = [name for name in study.data if not any(name in (given.data, *given.ood) for given in used)]
    return [
        *(f"study.search: {name} is not in study.cells, so it is not searched" for name in absent),
        *(f"study.data: {name} is prepared, but no cell uses it" for name in unused),
        *(note for name in dict.fromkeys(one.name for one in used) for note in _never_reached(experiments[name])),
    ]


def _never_reached(experiment: Experiment) -> list[str]:
    """Steps of a schedule that come after the end of training."""
    kind, epochs = experiment.kind, experiment.epochs
    late = {
        "milestones": [epoch for epoch in experiment.milestones if epoch >= epochs],
        "kappa": [epoch for epoch in experiment.kappa if epoch >= epochs],
    }
    return [
        f"experiments.{experiment.name}.{key}: {', '.join(map(str, steps))} is never reached in {epochs} epochs; "
        f"study.limits.{kind}.epochs shortens the whole schedule"
        for key, steps in late.items()
        if steps
    ]
