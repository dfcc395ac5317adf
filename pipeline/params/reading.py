"""From the text of params.yaml to settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import StudyError
from pipeline.params.cells import Cell
from pipeline.params.settings import (
    ClassificationLimits,
    Dataset,
    Experiment,
    Method,
    RegressionLimits,
    Resources,
    Study,
)


@dataclass(frozen=True)
class Params:
    study: Study
    resources: Resources
    datasets: dict[str, Dataset]
    experiments: dict[str, Experiment]

    def cell(self, name: str) -> Cell:
        if name not in self.study.cells:
            raise StudyError(f"study.cells: {name!r} is not there; it has {', '.join(self.study.cells)}")
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
    raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    study = _study(raw["study"])
    datasets = {name: Dataset(name=name, **keys) for name, keys in raw["datasets"].items()}
    experiments = {name: _experiment(name, keys, study) for name, keys in raw["experiments"].items()}
    return Params(study, Resources(**raw["resources"]), datasets, experiments)


def _study(raw: dict[str, Any]) -> Study:
    raw = dict(raw)
    limits = raw.pop("limits")
    return Study(
        **raw | {"results": Path(raw["results"]), "data": tuple(raw["data"]), "search": tuple(raw["search"])},
        regression=RegressionLimits(**limits["regression"]),
        classification=ClassificationLimits(**limits["classification"]),
    )


def _experiment(name: str, raw: dict[str, Any], study: Study) -> Experiment:
    raw = dict(raw)
    presets = raw.pop("presets", {})
    raw |= presets.get(study.preset, {})
    methods = {key: Method(**value) for key, value in raw.pop("methods").items()}
    tuples = {key: tuple(raw[key]) for key in ("milestones", "ood") if key in raw}
    experiment = Experiment(name=name, planned_epochs=raw["epochs"], methods=methods, **raw | tuples)
    limits = study.limits(experiment.kind)
    return experiment.shortened(limits.epochs)
