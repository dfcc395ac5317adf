"""From the text of params.yaml to settings, checked key by key."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.errors import StudyError
from pipeline.params import consistency, schema
from pipeline.params.cells import Cell
from pipeline.params.checks import list_of, mapping, section, text, unknown
from pipeline.params.settings import (
    ClassificationLimits,
    Dataset,
    Experiment,
    Method,
    RegressionLimits,
    Resources,
    Study,
)

SECTIONS = ("study", "resources", "datasets", "experiments")


@dataclass(frozen=True)
class Params:
    study: Study
    resources: Resources
    datasets: dict[str, Dataset]
    experiments: dict[str, Experiment]
    planned: dict[str, Experiment]  # the same before limits

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
            grid=method.grid,
            searched=name in self.study.search,
            study=self.study,
            resources=self.resources,
        ).with_hyperparameters(method.hyperparameters)

    def cells(self) -> list[Cell]:
        return [self.cell(name) for name in self.study.cells]


def load(path: str | Path = "params.yaml") -> Params:
    """Reads and checks the whole file, also what the study does not use.

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
        raise StudyError("no such file; run this in the project's folder, or name the file by --params") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot be read ({error}); it has to be a text file in UTF-8") from error
    except ValueError as error:
        raise StudyError(f"not YAML ({error}); mend that line") from error


def read(raw: Any) -> Params:
    sections = dict.fromkeys(SECTIONS, mapping)
    # Keys that start with "_" only hold plain values and lists for the others to share.
    top = {key: value for key, value in mapping("the file", raw).items() if not str(key).startswith("_")}
    top = section("the file", top, sections, SECTIONS)
    study = _study(top["study"])
    resources = Resources(**section("resources", top["resources"], schema.RESOURCES, schema.RESOURCES))
    datasets = {name: _dataset(name, value) for name, value in top["datasets"].items()}
    top["experiments"] = _with_recipes(datasets, top["experiments"])
    for preset in schema.PRESETS:
        for name, value in top["experiments"].items():
            consistency.check_experiment(_experiment(name, value, preset), datasets)
    planned = {name: _experiment(name, value, study.preset) for name, value in top["experiments"].items()}
    experiments = {name: _limited(experiment, study) for name, experiment in planned.items()}
    consistency.check_study(study, datasets, experiments)
    return Params(study, resources, datasets, experiments, planned)


def _study(raw: dict[str, Any]) -> Study:
    values = section("study", raw, schema.STUDY, schema.STUDY)
    limits = values.pop("limits")
    for name, cell in values["cells"].items():
        schema.name(f"study.cells.{name}", name)
        section(f"study.cells.{name}", cell, schema.CELL, schema.CELL)
    values |= {"data": tuple(values["data"]), "search": tuple(values["search"])}
    regression, classification = limits["regression"], limits["classification"]
    return Study(
        **values,
        regression=RegressionLimits(**regression),
        classification=ClassificationLimits(**classification),
    )


def _kind(path: str, raw: Any, known: tuple[str, ...]) -> str:
    kind = mapping(path, raw).get("kind")
    if kind not in known:
        raise unknown(f"{path}.kind", kind, known, "a kind")
    return str(kind)


def _dataset(name: str, raw: Any) -> Dataset:
    path = f"datasets.{name}"
    schema.name(path, name)
    kind = _kind(path, raw, tuple(schema.DATASETS))
    dataset = Dataset(name=name, **section(path, raw, schema.DATASETS[kind], schema.DATASET_REQUIRED[kind]))
    consistency.check_dataset(dataset)
    return dataset


def _with_recipes(datasets: dict[str, Dataset], experiments: dict[str, Any]) -> dict[str, Any]:
    """All experiments, those of data sets that name a recipe included, with what they take from their recipes."""
    named = dict(experiments)
    for name, dataset in datasets.items():
        if dataset.recipe is None:
            continue
        path = f"datasets.{name}.recipe"
        if dataset.recipe not in experiments:
            raise unknown(path, dataset.recipe, experiments, "in experiments")
        if name in experiments:
            raise StudyError(
                f"{path}: {dataset.recipe!r}, but there is an experiments.{name} as well; leave one of the two out"
            )
        named[name] = {"recipe": dataset.recipe, "data": name}
    return {name: _whole(name, named) for name in named}


def _whole(name: str, experiments: dict[str, Any], passed: tuple[str, ...] = ()) -> dict[str, Any]:
    """The experiment, and below it the one that it names as its recipe."""
    raw = dict(mapping(f"experiments.{name}", experiments[name]))
    recipe = raw.pop("recipe", None)
    if recipe is None:
        return raw
    path = f"experiments.{name}.recipe"
    if text(path, recipe) not in experiments:
        raise unknown(path, recipe, experiments, "in experiments")
    if recipe in (*passed, name):
        raise StudyError(f"{path}: {recipe!r} leads back to {name!r}; name an experiment that holds the values itself")
    below = _whole(recipe, experiments, (*passed, name))
    for owner, given in ((recipe, below), (name, raw)):
        _check_methods(f"experiments.{owner}.methods", given.get("methods", {}))
    return _overridden(below, raw)


def _experiment(name: str, raw: Any, preset: str) -> Experiment:
    path = f"experiments.{name}"
    schema.name(path, name)
    kind = _kind(path, raw, schema.KINDS)
    raw = dict(raw)
    presets = mapping(f"{path}.presets", raw.pop("presets", {}))
    for given in presets:
        if given not in schema.PRESETS:
            raise unknown(f"{path}.presets.{given}", given, schema.PRESETS, "a preset")
    fields = schema.experiment(kind)
    if preset in presets:
        section(f"{path}.presets.{preset}", presets[preset], fields, ())
        for where, given in ((path, raw), (f"{path}.presets.{preset}", presets[preset])):
            _check_methods(f"{where}.methods", given.get("methods", {}))
        raw = _overridden(raw, presets[preset])
    values = section(path, raw, fields, (*schema.EXPERIMENT_REQUIRED, *schema.OF_KIND_REQUIRED[kind]))
    values["methods"] = {
        key: _method(f"{path}.methods.{key}", key, kind, given) for key, given in raw["methods"].items()
    }
    values["ood"] = tuple(values.get("ood", ()))
    return Experiment(name=name, planned_epochs=values["epochs"], **values)


def _check_methods(path: str, raw: Any) -> None:
    """That there are sections to merge, whatever is in them."""
    for name, parts in mapping(path, raw).items():
        section(f"{path}.{name}", parts, schema.METHOD, ())


def _overridden(raw: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """What stands above a recipe, a preset for instance, replaces keys of it, and single hyperparameters of methods."""
    merged = {**raw, **above}
    if "methods" in raw:
        merged["methods"] = dict(raw["methods"])
        for method, changes in above.get("methods", {}).items():
            before = raw["methods"].get(method, {})
            merged["methods"][method] = {
                part: {**before.get(part, {}), **changes.get(part, {})} for part in {**before, **changes}
            }
    return merged


def _method(path: str, name: str, kind: str, raw: Any) -> Method:
    if name not in schema.METHODS:
        raise unknown(path, name, schema.METHODS, "a method")
    parts = section(path, raw, schema.METHOD, ())
    fields = schema.hyperparameters(kind, name)
    grid_fields = {key: list_of(check) for key, check in fields.items()}
    return Method(
        section(f"{path}.hyperparameters", parts.get("hyperparameters", {}), fields, ()),
        section(f"{path}.grid", parts.get("grid", {}), grid_fields, ()),
    )


def _limited(experiment: Experiment, study: Study) -> Experiment:
    if experiment.kind == "regression":
        runs = _smaller(experiment.runs, study.regression.runs)
        return replace(experiment, runs=runs).shortened(study.regression.epochs)
    seeds = _smaller(experiment.seeds, study.classification.seeds)
    return replace(experiment, seeds=seeds).shortened(study.classification.epochs)


def _smaller(given: int | None, limit: int | None) -> int | None:
    return given if limit is None or given is None else min(given, limit)
