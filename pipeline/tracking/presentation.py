"""What people see first in MLflow's pages: descriptions, scores as columns, links between scores and models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pipeline.tracking import descriptions
from pipeline.tracking.descriptions import NOTE

if TYPE_CHECKING:
    from mlflow import MlflowClient

VIEW = "scores"  # the name of the view that shows scores as columns
_SHARED = f"mlflow.sharedViewState.{VIEW}"  # what MLflow's own button "Share" writes
_COLUMNS = ("log_likelihood", "rmse", "misclassification", "nll", "ece")
TRAINED_BY, SCORED_BY = "train.run", "evaluate.run"
_MAX_SEEDS = 1000


def view(experiment: str) -> str:
    """The address of the experiment's scores, below that of the server."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={VIEW}"


def describe(client: MlflowClient, experiment: str, tags: dict[str, str]) -> None:
    """Gives an experiment its description and its view of scores, unless it has them.

    Args:
        experiment: its id.
        tags: those that it has.
    """
    columns = ["attributes.`Source`", *(f"metrics.`{name}`" for name in _COLUMNS)]
    shown = {"searchFilter": "tags.stage = 'evaluate'", "selectedColumns": columns, "runListHidden": False}
    note = (
        f"[Scores of all methods as columns]({view(experiment)}). Runs `evaluate …` have the scores, runs `train …` "
        "the models and their curves, runs `tune …` the searches with a run for each trial."
    )
    for key, value in {_SHARED: json.dumps(shown), NOTE: note}.items():
        if key not in tags:
            client.set_experiment_tag(experiment, key, value)


def link(client: MlflowClient, run_id: str, record: dict[str, Any]) -> None:
    """Links the run that has the scores with the run, its seeds and the model versions that the scores are about."""
    from mlflow.exceptions import MlflowException

    trained, scores = record["trained"], record["scores"]
    try:
        training = client.get_run(trained)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return
        raise
    if training.info.lifecycle_stage != "active":  # deleted in MLflow: there is nothing to link
        return
    experiment = training.info.experiment_id
    told = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
    client.set_tag(run_id, TRAINED_BY, trained)
    note = f"{told}. Trained by [this run]({_address(experiment, trained)})."
    descriptions.of_run(client, client.get_run(run_id), note)
    about = f"Scores on test data: {told}. [Run with all scores]({_address(experiment, run_id)})."
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{trained}'", max_results=_MAX_SEEDS)
    scored = {run.info.run_id: run for run in (training, *children)}
    for one, run in sorted(scored.items()):
        client.set_tag(one, SCORED_BY, run_id)
        descriptions.of_run(client, run, about)
    for version in client.search_model_versions(f"name='{record['model']}'"):
        if version.run_id in scored:
            descriptions.of_version(client, version, about)


def _address(experiment: str, run_id: str) -> str:
    return f"#/experiments/{experiment}/runs/{run_id}"
