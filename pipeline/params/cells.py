"""A cell: one experiment with one method, as it appears in a table of the report. Stages work on one cell each."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import files, registry
from pipeline.params import code
from pipeline.params.settings import RECIPE_KEYS, Dataset, Experiment, Limits, Resources, Study
from pipeline.registry.images import IMAGES, normalisations
from pipeline.registry.methods import METHODS
from pipeline.registry.methods import Method as KnownMethod
from pipeline.registry.metrics import METRICS, measured
from pipeline.registry.networks import NETWORKS, find

WORK = Path("work")
NOT_OF_THE_METHOD = (*RECIPE_KEYS, "dropout", "kappa_over_n")
APPLIED = {"epochs", "runs", "seeds"}  # limits that the experiment already contains
UNSEEN = {
    "tune": {"ood", "damaged", "seeds", "test_examples"},
    "train": {"ood", "damaged", "test_examples", "search_epochs"},
    "evaluate": {"search_epochs"},
}
"""Keys that a stage does not use."""
HOW_IT_COMPUTES = {
    "regression": ("compile",),
    "classification": ("workers", "gpu", "precision", "compile", "accumulate", "channels_last"),
}
"""Resources that change the results."""
RUNS_OF_A_TRIAL = 2  # at most, for each fold of a table


@dataclass(frozen=True)
class Cell:
    name: str
    kind: str  # regression | classification
    experiment: Experiment  # already contains the hyperparameters that belong to the recipe
    dataset: Dataset
    method: str
    hyperparameters: dict[str, Any]
    grid: dict[str, list[Any]]
    searched: bool
    study: Study
    resources: Resources
    plugins: tuple[str, ...] = ()  # modules of other packages that add entries to the registries

    @property
    def identity(self) -> dict[str, str]:
        """What tells it from other cells in a table."""
        recipe = self.experiment
        known = {"data": recipe.data, "experiment": recipe.name, "method": self.method, "network": recipe.network}
        return {"kind": self.kind, **known}

    @property
    def limits(self) -> Limits:
        return self.study.limits(self.kind)

    @property
    def complete(self) -> bool:
        """Whether the whole schedule runs on the whole data."""
        return self.limits.leaves_whole(self.experiment)

    @property
    def method_arguments(self) -> dict[str, Any]:
        """Arguments of `mnvi.methods.build`. Dropout goes to the network, κ to the objective, others to the recipe."""
        return {key: value for key, value in self.hyperparameters.items() if key not in NOT_OF_THE_METHOD}

    @property
    def known_method(self) -> KnownMethod:
        """The registry's entry of the cell's method; works in a worker too, which has not read the settings."""
        registry.load(self.plugins)
        return METHODS[self.method]

    def entries(self, stage: str) -> list[Any]:
        """The registry entries that the stage's result depends on; `registry.essence` says on which of their fields."""
        registry.load(self.plugins)
        metrics = [*measured(self.kind), *measured(self.kind, foreign=True)] if stage == "evaluate" else []
        return [METHODS[self.method], find(self.experiment.network), *metrics]

    def named_code(self, stage: str) -> list[str]:
        """The modules that these entries name, and the modules of other packages that added entries or data set."""
        method, network, *metrics = self.entries(stage)
        called = [method.reference, network.build, *(metric.function for metric in metrics)]
        added = [METHODS.origin(method.name), NETWORKS.origin(network.name), IMAGES.origin(self.dataset.name)]
        added += [METRICS.origin(metric.name) for metric in metrics]
        added += ["pipeline.data.starting_weights"] if self.experiment.weights else []
        return sorted({*filter(None, added), *(code.home(registry.spelled(one)) for one in called)})

    def foreign_code(self, stage: str) -> list[str]:
        """The modules of :meth:`named_code` that belong to other packages."""
        return [name for name in self.named_code(stage) if name.partition(".")[0] not in ("mnvi", "pipeline")]

    def parameters(self, stage: str) -> dict[str, Any]:
        """The parameters of a stage's run: recipe and hyperparameters side by side, limits, resources."""
        recipe = _without(asdict(self.experiment), {"name", "kind", "planned_epochs", "methods"})
        given = {key: value for key, value in recipe.items() if value is not None and value not in ((), {})}
        cuts = _without(asdict(self.limits), APPLIED | UNSEEN[stage])
        shown = {f"limits.{key}": value for key, value in cuts.items() if value is not None}
        how = {"preset": self.study.preset, "resources": self._how_it_computes()}
        return {**given, **self.hyperparameters, **shown, **how}

    @property
    def data(self) -> Path:
        return self.dataset.folder_out

    @property
    def ood(self) -> dict[str, Path]:
        return {name: Path("data") / name for name in self.experiment.ood}

    @property
    def tune(self) -> Path:
        return self.study.results / "tune" / self.name

    @property
    def model(self) -> Path:
        return self.study.results / "models" / self.name

    @property
    def evaluate(self) -> Path:
        return self.study.results / "evaluate" / self.name

    @property
    def plots(self) -> Path:
        """Curves that evaluation writes for the report to draw; empty for regression."""
        return self.evaluate / "plots"

    def state(self, stage: str) -> Path:
        """The folder a stage resumes from. DVC deletes a stage's outputs before it runs, but not this folder."""
        return WORK / self.study.results / stage / self.name

    def with_hyperparameters(self, hyperparameters: dict[str, Any]) -> Cell:
        """The cell with its hyperparameters updated by these."""
        merged = {**self.hyperparameters, **hyperparameters}
        return replace(self, hyperparameters=merged, experiment=self.experiment.with_recipe(merged))

    def starting_from(self, weights: Path) -> Cell:
        """The cell as a worker trains it, which has the file of `weights` somewhere else."""
        return replace(self, experiment=replace(self.experiment, weights=str(weights)))

    def tuned(self) -> Cell:
        """The cell with the hyperparameters that tuning chose."""
        best = files.read_yaml(self.tune / "best.yaml", made_by=f"python -m pipeline.tune {self.name}")
        return self.with_hyperparameters(best["hyperparameters"])

    def grid_points(self) -> list[dict[str, Any]]:
        """Every combination of the grid; a single empty one if there is no grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    @property
    def num_trials(self) -> int:
        """How many points of the grid a search tries."""
        points = len(self.grid_points())
        return points if self.study.searcher == "grid" else min(self.study.trials, points)

    @property
    def runs_of_a_trial(self) -> int | None:
        """Runs of each fold in a trial; None for images, where a trial is a single run."""
        return None if self.experiment.runs is None else min(RUNS_OF_A_TRIAL, self.experiment.runs)

    def fingerprint(self, stage: str) -> str:
        """Digest of all settings and code that the stage's resumable state depends on; it does not cover the data."""
        text = json.dumps(self.made_for(stage), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def made_for(self, stage: str) -> dict[str, Any]:
        """The settings and code that a stage's resumable state depends on; `predict` is a part of `evaluate`.

        The training and predictions of one seed or run do not depend on how many there are.
        """
        settings = self.settings("evaluate" if stage == "predict" else stage)
        if stage in ("train", "predict"):
            del settings["experiment"]["seeds"], settings["experiment"]["runs"]
        return {"settings": settings, "code": self.code(stage)}

    def code(self, stage: str) -> code.Digests:
        """The modules that the stage's result depends on, and their digests."""
        if stage == "tune" and not self.searched:
            return {}
        return code.of(self.kind, stage, self.named_code(stage))

    def settings(self, stage: str) -> dict[str, Any]:
        """All settings that the stage's result depends on."""
        if stage == "tune" and not self.searched:
            return {"stage": stage, "searched": False, "hyperparameters": self.hyperparameters}
        settings: dict[str, Any] = {
            "stage": stage,
            "method": self.method,
            "entries": [registry.essence(entry) for entry in self.entries(stage)],
            "normalisation": normalisations().get(self.experiment.normalisation or ""),
            "hyperparameters": self.hyperparameters,
            "dataset": asdict(self.dataset),
            "experiment": _without(asdict(self.experiment), {"methods"} | UNSEEN[stage]),
            "limits": _without(asdict(self.limits), APPLIED | UNSEEN[stage]),
            "resources": self._how_it_computes(),
        }
        for key in (
            "arguments",
            "weights",
            "images_per_worker",
            "warmup",
            "sync_batch_norm",
            "damaged",
        ):  # younger than some results
            if not settings["experiment"].get(key):
                settings["experiment"].pop(key, None)
        if self.experiment.weights_file is not None:
            settings["weights"] = files.sha256(self.experiment.weights_file)  # another may take the place of the first
        if stage == "tune":
            settings["search"] = {"grid": self.grid, "searcher": self.study.searcher, "trials": self.num_trials}
            settings["experiment"]["runs"] = self.runs_of_a_trial
            if self.experiment.patience is None:  # the best NLL judges a trial; `selection` only decides when it stops
                del settings["experiment"]["selection"]
        return settings

    def _how_it_computes(self) -> dict[str, Any]:
        return {key: getattr(self.resources, key) for key in HOW_IT_COMPUTES[self.kind]}


def _without(values: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
