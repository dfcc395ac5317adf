"""Turns the text of params.yaml into settings: applies recipes, presets and limits, and checks every key."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import TypedDict

from pipeline import files, registry
from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.params import consistency
from pipeline.params.cells import Cell
from pipeline.params.settings import (
    KINDS,
    PRESETS,
    RECIPE,
    ClassificationLimits,
    Dataset,
    Experiment,
    Method,
    Place,
    RegressionLimits,
    Resources,
    Study,
    keys,
)
from pipeline.registry.methods import KAPPA_OVER_N, METHODS
from pipeline.setting_types import EACH_ONCE, LISTED_AS_LIST, Name, Text, Texts, checked, section

SECTIONS = ("study", "resources", "datasets", "experiments")
OPTIONAL = ("plugins", "recipes")
OWN_TABLE = {"splits": "kfold", "folds": 10}
"""What an entry with a CSV file has if it does not say otherwise."""
OWN_RECIPE = "table"
"""The recipe of a CSV file that no experiment uses."""


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
    resources = checked(Resources, "resources", _whole_section(Resources, "resources", top["resources"]))
    datasets = {name: _dataset(name, value) for name, value in top["datasets"].items()}
    given = _with_recipes(datasets, top["experiments"], section("recipes", raw.get("recipes", {})))
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
        raise _missing(f"{path}.{key}")
    return section(key if path == "the file" else f"{path}.{key}", raw[key])


def _missing(path: str) -> StudyError:
    return StudyError(f"{path}: is missing, but the stages or dvc.yaml need it; add it")


def _whole_section(kind: type, path: str, raw: Any) -> dict[str, Any]:
    """Checks that all fields of this dataclass are present, and no others: `dvc exp run -S` sets existing keys only."""
    names = [one.name for one in fields(kind)]
    checked(dict[Any, Any], path, raw, keys=names)
    for name in names:
        if name not in raw:
            raise _missing(f"{path}.{name}")
    return dict(raw)


def _study(raw: dict[str, Any]) -> Study:
    names = [one.name for one in fields(Study) if one.name not in KINDS]
    checked(dict[Any, Any], "study", raw, keys=[*names, "limits"])
    values = {key: value for key, value in raw.items() if key != "limits"}
    limits = checked(dict[Any, Any], "study.limits", _section("study", raw, "limits"), keys=KINDS)
    for kind, form in (("regression", RegressionLimits), ("classification", ClassificationLimits)):
        path = f"study.limits.{kind}"
        values[kind] = checked(form, path, _whole_section(form, path, _section("study.limits", limits, kind)))
    for name, cell in _section("study", raw, "cells").items():
        checked(Name, f"study.cells.{name}", name)
        checked(Place, f"study.cells.{name}", cell, keys=list(Place.__annotations__))
    study: Study = checked(Study, "study", values)
    return study


def _study_grid(study: Study, name: str, experiments: dict[str, Experiment]) -> dict[str, Any]:
    """The points that this study searches for one of its cells."""
    path = f"study.grids.{name}"
    if name not in study.cells:
        raise unknown(path, name, study.cells, "a cell of this study")
    where = study.cells[name]
    experiment = experiments[where["experiment"]]
    grid = _grid(path, where["method"], experiment.kind, study.grids[name])
    consistency.check_grid(path, grid, experiment)
    return grid


def _kind(path: str, raw: Any, known: tuple[str, ...]) -> str:
    kind = section(path, raw).get("kind")
    if kind not in known:
        raise unknown(f"{path}.kind", kind, known, "a kind")
    return str(kind)


def _of_kind(form: type, path: str, raw: dict[str, Any], kind: str) -> None:
    """Checks that all needed keys of this kind are present, and no unknown ones."""
    known = keys(form, kind)
    checked(dict[Any, Any], path, raw, keys=known)
    for key, needed in known.items():
        if needed and raw.get(key) in (None, {}):
            raise _missing(f"{path}.{key}")


def _dataset(name: str, raw: Any) -> Dataset:
    path = f"datasets.{name}"
    checked(Name, path, name)
    if section(path, raw).get("file") is not None:
        raw = {**OWN_TABLE, **raw}
    _of_kind(Dataset, path, raw, _kind(path, raw, ("table", "images", "folder")))
    dataset: Dataset = checked(Dataset, path, {"name": name, **raw})
    consistency.check_dataset(dataset)
    return dataset


def _with_recipes(
    datasets: dict[str, Dataset], experiments: dict[str, Any], recipes: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """All experiments with the values of their recipes, including those of data sets that name a recipe."""
    named = {name: (f"experiments.{name}", value) for name, value in experiments.items()}
    for name, value in recipes.items():
        checked(Name, f"recipes.{name}", name)
        if name in experiments:
            raise StudyError(f"recipes.{name}: experiments.{name} has the same name; rename one of the two")
        named[name] = (f"recipes.{name}", value)
    used = {value.get("data") for value in experiments.values() if isinstance(value, dict)}
    for name, dataset in datasets.items():
        is_new = dataset.file is not None and name not in used and OWN_RECIPE in recipes
        recipe = OWN_RECIPE if dataset.recipe is None and is_new else dataset.recipe
        if recipe is None:
            continue
        path = f"datasets.{name}.recipe"
        if recipe not in named:
            raise unknown(path, recipe, named, "in experiments or recipes")
        if name in experiments:
            raise StudyError(f"{path}: {recipe!r}, but experiments.{name} exists, too; leave one of the two out")
        named[name] = (f"experiments.{name}", {"recipe": recipe, "data": name})
    whole = {name: _whole(name, named) for name in named}
    for name in recipes:
        _check_part(f"recipes.{name}", name, whole[name], recipes[name])
    return {name: value for name, value in whole.items() if name not in recipes}


def _whole(name: str, named: dict[str, tuple[str, Any]], passed: tuple[str, ...] = ()) -> dict[str, Any]:
    """The experiment or recipe, completed by the values of the recipe that it names."""
    path, given = named[name]
    raw = dict(section(path, given))
    if "recipe" not in raw:
        return raw
    recipe = checked(Text, f"{path}.recipe", raw.pop("recipe"))
    if recipe not in named:
        raise unknown(f"{path}.recipe", recipe, named, "in experiments or recipes")
    if recipe in (*passed, name):
        raise StudyError(f"{path}.recipe: {recipe!r} leads back to {name!r}; name one that holds the values itself")
    below = _whole(recipe, named, (*passed, name))
    for where, part in ((named[recipe][0], below), (path, raw)):
        _check_mergeable(where, part)
    return _overridden(below, raw)


def _check_part(path: str, name: str, whole: dict[str, Any], given: dict[str, Any]) -> None:
    """Checks a recipe or a preset, which need not have all keys of an experiment.

    Args:
        whole: the completed recipe, or the preset's experiment, which gives the kind.
    """
    kind = _kind(path, whole, KINDS)
    part = {key: value for key, value in given.items() if key not in ("recipe", "presets", "hyperparameters")}
    checked(dict[Any, Any], path, part, keys=keys(Experiment, kind))
    part.pop("methods", None)
    checked(Experiment, path, {"name": name, **part, "kind": kind}, partial=True)


def _experiment(name: str, raw: dict[str, Any], preset: str) -> Experiment:
    path = f"experiments.{name}"
    checked(Name, path, name)
    kind = _kind(path, raw, KINDS)
    raw = dict(raw)
    presets = section(f"{path}.presets", raw.pop("presets", {}))
    for given in presets:
        if given not in PRESETS:
            raise unknown(f"{path}.presets.{given}", given, PRESETS, "a preset")
    if preset in presets:
        above = f"{path}.presets.{preset}"
        _check_part(above, name, raw, section(above, presets[preset]))
        for where, part in ((path, raw), (above, presets[preset])):
            _check_mergeable(where, part)
        raw = _overridden(raw, presets[preset])
    shared = section(f"{path}.hyperparameters", raw.pop("hyperparameters", {}))
    _check_shared(f"{path}.hyperparameters", kind, shared)
    _of_kind(Experiment, path, raw, kind)
    given_methods = _section(path, raw, "methods")
    methods = {key: _method(f"{path}.methods.{key}", key, kind, one, shared) for key, one in given_methods.items()}
    planned = {"planned_epochs": raw["epochs"]} if "epochs" in raw else {}
    experiment: Experiment = checked(Experiment, path, {"name": name, **raw, **planned, "methods": methods})
    return experiment


def _check_mergeable(path: str, raw: dict[str, Any]) -> None:
    """Checks that the parts to merge are sections, whatever they contain."""
    section(f"{path}.hyperparameters", raw.get("hyperparameters", {}))
    for name, parts in section(f"{path}.methods", raw.get("methods", {})).items():
        _method_parts(f"{path}.methods.{name}", parts)


def _overridden(raw: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The recipe with the keys of `above`, e.g. a preset; of methods `above` replaces single hyperparameters."""
    merged = {**raw, **above}
    if "hyperparameters" in merged:
        merged["hyperparameters"] = {**raw.get("hyperparameters", {}), **above.get("hyperparameters", {})}
    if "methods" in raw:
        merged["methods"] = dict(raw["methods"])
        for method, changes in above.get("methods", {}).items():
            before = raw["methods"].get(method, {})
            merged["methods"][method] = {
                part: {**before.get(part, {}), **changes.get(part, {})} for part in {**before, **changes}
            }
    return merged


def _method_parts(path: str, raw: Any) -> Method:
    checked(dict[Any, Any], path, raw, keys=[one.name for one in fields(Method)])
    method: Method = checked(Method, path, raw)
    return method


def _method(path: str, name: str, kind: str, raw: Any, shared: dict[str, Any]) -> Method:
    """The method; its own hyperparameters override the shared ones, and its registry entry sets their order."""
    if name not in METHODS:
        raise unknown(path, name, METHODS, "a method")
    parts = _method_parts(path, raw)
    known = hyperparameters(kind, name)
    own = checked(_optional(kind, name), f"{path}.hyperparameters", parts.hyperparameters, keys=known)
    given = {**{key: value for key, value in shared.items() if key in known}, **own}
    values = checked(_optional(kind, name), f"{path}.hyperparameters", given)
    grid = _grid(f"{path}.grid", name, kind, parts.grid)
    return Method({key: values[key] for key in known if key in values}, grid)


def _grid(path: str, method: str, kind: str, raw: dict[str, Any]) -> dict[str, Any]:
    values = checked(_optional(kind, method, lists=True), path, raw, keys=hyperparameters(kind, method))
    return {key: values[key] for key in raw}


def hyperparameters(kind: str, method: str) -> dict[str, Any]:
    """The types of a method's hyperparameters: κ/N if images weight a KL divergence, its own, and the recipe's."""
    entry = METHODS[method]
    kappa = KAPPA_OVER_N if kind == "classification" and entry.has_kl else {}
    return {**kappa, **entry.hyperparameters, **RECIPE}


@cache
def _optional(kind: str, method: str, lists: bool = False) -> Any:
    """A type for any subset of a method's hyperparameters, or for lists of their values."""
    types = hyperparameters(kind, method)
    if lists:
        types = {key: Annotated[list[given], LISTED_AS_LIST, EACH_ONCE] for key, given in types.items()}  # type: ignore[valid-type]
    return TypedDict(f"{method}_hyperparameters", types, total=False)  # type: ignore[operator]


def _check_shared(path: str, kind: str, shared: dict[str, Any]) -> None:
    known = {key: given for name in METHODS for key, given in hyperparameters(kind, name).items() if key not in RECIPE}
    checked(dict[Any, Any], path, shared, keys=known)
    for key, value in shared.items():
        checked(known[key], f"{path}.{key}", value)


def _limited(experiment: Experiment, study: Study) -> Experiment:
    if experiment.kind == "regression":
        runs = _smaller(experiment.runs, study.regression.runs)
        return replace(experiment, runs=runs).shortened(study.regression.epochs)
    seeds = _smaller(experiment.seeds, study.classification.seeds)
    return replace(experiment, seeds=seeds).shortened(study.classification.epochs)


def _smaller(given: int | None, limit: int | None) -> int | None:
    return given if limit is None or given is None else min(given, limit)
