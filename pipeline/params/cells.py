"""A cell: one experiment with one method, as it stands in a table of the report. What stages work on."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.params.settings import RECIPE_KEYS, Dataset, Experiment, Limits, Resources, Study

WORK = Path("work")
NOT_OF_THE_METHOD = (*RECIPE_KEYS, "dropout", "kappa_over_n")
HOW_IT_COMPUTES = ("workers", "gpu", "precision", "compile", "accumulate")


@dataclass(frozen=True)
class Cell:
    name: str
    kind: str  # regression | classification
    experiment: Experiment  # hyperparameters that belong to the recipe are already in it
    dataset: Dataset
    method: str
    hyperparameters: dict[str, Any]
    grid: dict[str, list[Any]]
    searched: bool
    study: Study
    resources: Resources

    @property
    def limits(self) -> Limits:
        return self.study.limits(self.kind)

    @property
    def complete(self) -> bool:
        """Whether the whole schedule runs on the whole data."""
        return self.limits.leaves_whole(self.experiment)

    @property
    def method_arguments(self) -> dict[str, Any]:
        """What `mnvi.methods.build` takes; dropout is the network's, κ the objective's, the rest the recipe's."""
        return {key: value for key, value in self.hyperparameters.items() if key not in NOT_OF_THE_METHOD}

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

    def state(self, stage: str) -> Path:
        """Where a stage keeps what it resumes from. DVC deletes outputs before a stage runs, but not this."""
        return WORK / self.study.results / stage / self.name

    def with_hyperparameters(self, hyperparameters: dict[str, Any]) -> Cell:
        """The cell with these hyperparameters in place of its own of the same name."""
        merged = {**self.hyperparameters, **hyperparameters}
        return replace(self, hyperparameters=merged, experiment=self.experiment.with_recipe(merged))

    def grid_points(self) -> list[dict[str, Any]]:
        """Every combination of the grid; a single empty one if there is no grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def fingerprint(self, stage: str) -> str:
        """Digest of all settings that the stage's result depends on; the data are not part of it.

        The number of seeds is left out of training and searching for images: each seed stands for itself.
        """
        text = json.dumps(self.settings(stage), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def settings(self, stage: str) -> dict[str, Any]:
        """All settings that the stage's result depends on."""
        experiment, limits, resources = asdict(self.experiment), asdict(self.limits), asdict(self.resources)
        del experiment["methods"]
        settings: dict[str, Any] = {
            "stage": stage,
            "method": self.method,
            "hyperparameters": self.hyperparameters,
            "dataset": asdict(self.dataset),
            "experiment": experiment,
            "limits": limits,
            "resources": {key: resources[key] for key in HOW_IT_COMPUTES},
        }
        if stage == "tune":
            study = self.study
            settings["search"] = [self.searched, self.grid, study.searcher, study.trials]
        else:
            del limits["search_epochs"]
        for applied in ("epochs", "runs", "seeds"):  # they are part of the experiment by now
            limits.pop(applied, None)
        if stage != "evaluate":
            for unseen in ("ood", "seeds"):
                del experiment[unseen]
            limits.pop("test_examples", None)
        return settings
