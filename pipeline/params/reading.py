"""Turns the text of params.yaml into settings: applies recipes, presets and limits, and checks every key."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pipeline import files, registry
from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.params import consistency
from pipeline.params.cells import Cell
from pipeline.params.method_settings import check_shared, read_grid, read_method
from pipeline.params.recipes import check_mergeable, check_part, kind_of, overridden, with_recipes
from pipeline.params.settings import (
    KINDS,
    PRESETS,
    ClassificationLimits,
    Dataset,
    Experiment,
    Place,
    RegressionLimits,
    Resources,
    Study,
    keys,
)
from pipeline.setting_types import Name, Texts, check_keys, checked, missing, section

SECTIONS = ("study", "resources", "datasets", "experiments")
OPTIONAL = ("plugins", "recipes")
OWN_TABLE = {"splits": "kfold", "folds": 10}
"""What an entry with a CSV file has if it does not say otherwise."""


@dataclass(frozen=True)
class Params:
    study: Study
    resources: Resources
    datasets: dict[str, Dataset]
    experiments: dict[str, Experiment]
    planned: dict[str, Experiment]  # the same before limits
    plugins: tuple[str, ...] = ()

    def cell(self, name: str) -> Cell:
        if name not in self.study.cells:
            raise unknown("study.cells", name, self.study.cells, "a cell of this study")
        where = self.study.cells[name]
        experiment = self.experiments[where["experiment"]]
        method = experiment.methods[where["method"]]
        return Cell(
            name=name,
            kind=experiment.kind,
            experiment=experiment,
            dataset=self.datasets[experiment.data],
            method=where["method"],
            hyperparameters={},
            grid=self.study.grids.get(name, method.grid),
            searched=name in self.study.search,
            study=self.study,
            resources=self.resources,
            plugins=self.plugins,
        ).with_hyperparameters(method.hyperparameters)

    def cells(self) -> list[Cell]:
        return [self.cell(name) for name in self.study.cells]


def load(path: str | Path = "params.yaml") -> Params:
    """Reads and checks the whole file, including sections that the study does not use.

    Raises:
        StudyError: for the first key that is wrong, with its path, its value, what was expected and what to do.
    """
    try:
        return read(parse(path))
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from error


def parse(path: str | Path) -> Any:
    try:
        return files.parse_yaml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StudyError("no such file; run this in the project's folder, or name the file with --params") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot be read ({error}); it must be a text file in UTF-8") from error
    except ValueError as error:
        raise StudyError(f"not YAML ({error}); correct that line") from error


def read(raw: Any) -> Params:
    for key in section("the file", raw):
        if key not in (*SECTIONS, *OPTIONAL):
            raise unknown(f"the file.{key}", key, (*SECTIONS, *OPTIONAL), "a key of this section")
    plugins = checked(Texts, "plugins", raw.get("plugins", []))
    registry.load(plugins)
    top = {key: _section("the file", raw, key) for key in SECTIONS}
    study = _study(top["study"])
    resources = checked(Resources, "resources", top["resources"])
    datasets = {name: _dataset(name, value) for name, value in top["datasets"].items()}
    given = with_recipes(datasets, top["experiments"], section("recipes", raw.get("recipes", {})))
    for preset in PRESETS:
        for name, value in given.items():
            consistency.check_experiment(_experiment(name, value, preset), datasets)
    planned = {name: _experiment(name, value, study.preset) for name, value in given.items()}
    experiments = {name: _limited(experiment, study) for name, experiment in planned.items()}
    consistency.check_study(study, datasets, experiments)
    study = replace(study, grids={name: _study_grid(study, name, experiments) for name in study.grids})
    return Params(study, resources, datasets, experiments, planned, plugins)


def _section(path: str, raw: dict[str, Any], key: str) -> dict[str, Any]:
    if key not in raw:
        raise missing(f"{path}.{key}")
    return section(key if path == "the file" else f"{path}.{key}", raw[key])


def _study(raw: dict[str, Any]) -> Study:
    names = [one.name for one in fields(Study) if one.name not in KINDS]
    check_keys("study", raw, [*names, "limits"])
    values = {key: value for key, value in raw.items() if key != "limits"}
    limits = _section("study", raw, "limits")
    check_keys("study.limits", limits, KINDS)
    for kind, form in (("regression", RegressionLimits), ("classification", ClassificationLimits)):
        path = f"study.limits.{kind}"
        values[kind] = checked(form, path, _section("study.limits", limits, kind))
    for name, cell in _section("study", raw, "cells").items():
        checked(Name, f"study.cells.{name}", name)
        checked(Place, f"study.cells.{name}", cell)
    study: Study = checked(Study, "study", values)
    return study


def _study_grid(study: Study, name: str, experiments: dict[str, Experiment]) -> dict[str, Any]:
    """The points that this study searches for one of its cells."""
    path = f"study.grids.{name}"
    if name not in study.cells:
        raise unknown(path, name, study.cells, "a cell of this study")
    where = study.cells[name]
    experiment = experiments[where["experiment"]]
    grid = read_grid(path, where["method"], experiment.kind, study.grids[name])
    consistency.check_grid(path, grid, experiment)
    return grid


def _of_kind(form: type, path: str, raw: dict[str, Any], kind: str) -> None:
    """Checks that all needed keys of this kind are present, and no unknown ones."""
    known = keys(form, kind)
    check_keys(path, raw, known)
    for key, needed in known.items():
        if needed and raw.get(key) in (None, {}):
            raise missing(f"{path}.{key}")


def _dataset(name: str, raw: Any) -> Dataset:
    path = f"datasets.{name}"
    checked(Name, path, name)
    if section(path, raw).get("file") is not None:
        raw = {**OWN_TABLE, **raw}
    _of_kind(Dataset, path, raw, kind_of(path, raw, ("table", "images", "folder")))
    dataset: Dataset = checked(Dataset, path, {"name": name, **raw})
    consistency.check_dataset(dataset)
    return dataset


def _experiment(name: str, raw: dict[str, Any], preset: str) -> Experiment:
    path = f"experiments.{name}"
    checked(Name, path, name)
    kind = kind_of(path, raw, KINDS)
    raw = dict(raw)
    presets = section(f"{path}.presets", raw.pop("presets", {}))
    for given in presets:
        if given not in PRESETS:
            raise unknown(f"{path}.presets.{given}", given, PRESETS, "a preset")
    if preset in presets:
        above = f"{path}.presets.{preset}"
        check_part(above, name, raw, section(above, presets[preset]))
        for where, part in ((path, raw), (above, presets[preset])):
            check_mergeable(where, part)
        raw = overridden(raw, presets[preset])
    shared = section(f"{path}.hyperparameters", raw.pop("hyperparameters", {}))
    check_shared(f"{path}.hyperparameters", kind, shared)
    _of_kind(Experiment, path, raw, kind)
    given_methods = _section(path, raw, "methods")
    methods = {key: read_method(f"{path}.methods.{key}", key, kind, one, shared) for key, one in given_methods.items()}
    planned = {"planned_epochs": raw["epochs"]} if "epochs" in raw else {}
    experiment: Experiment = checked(Experiment, path, {"name": name, **raw, **planned, "methods": methods})
    return experiment


def _limited(experiment: Experiment, study: Study) -> Experiment:
    if experiment.kind == "regression":
        runs = _smaller(experiment.runs, study.regression.runs)
        return replace(experiment, runs=runs).shortened(study.regression.epochs)
    seeds = _smaller(experiment.seeds, study.classification.seeds)
    return replace(experiment, seeds=seeds).shortened(study.classification.epochs)


def _smaller(given: int | None, limit: int | None) -> int | None:
    return given if limit is None or given is None else min(given, limit)
