"""Sends records of the journal to MLflow; sending a record twice does not duplicate it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import console
from pipeline.tracking import descriptions, presentation

if TYPE_CHECKING:
    from mlflow import MlflowClient

Record = dict[str, Any]
ERROR = "error"  # the tag that says why a run failed
_BATCH = 100  # parameters and tags in one request
_DIGEST = 36  # characters of a digest that MLflow keeps


def metrics(client: MlflowClient, run_id: str, records: list[Record], in_doubt: bool) -> bool:
    """Sends metrics; if ``in_doubt``, only those that the store lacks. Returns whether the store had some of them."""
    from mlflow.entities import Metric

    fresh = records
    if in_doubt:
        keys = {record["key"] for record in records}
        there = {(key, metric.step) for key in keys for metric in client.get_metric_history(run_id, key)}
        fresh = [record for record in records if (record["key"], record["step"]) not in there]
    if fresh:
        client.log_batch(run_id, [Metric(r["key"], r["value"], r["time"], r["step"]) for r in fresh])
    return len(fresh) < len(records)


def other(client: MlflowClient, run_id: str, record: Record) -> None:
    """Sends a record that is not a metric."""
    _KINDS[record["kind"]](client, run_id, record)


def _params(client: MlflowClient, run_id: str, record: Record) -> None:
    from mlflow.entities import Param

    there = client.get_run(run_id).data.params
    given: dict[str, str] = record["values"]
    fresh = [Param(key, value) for key, value in given.items() if key not in there]
    for start in range(0, len(fresh), _BATCH):
        client.log_batch(run_id, params=fresh[start : start + _BATCH])
    for key, value in given.items():
        if there.get(key, value) != value:
            console.say(f"MLflow: {key} was {there[key]} when this run began, now it is {value}; kept as a tag")
            client.set_tag(run_id, f"changed.{key}", value)


def _tags(client: MlflowClient, run_id: str, record: Record) -> None:
    from mlflow.entities import RunTag

    tags = [RunTag(key, value) for key, value in record["values"].items()]
    for start in range(0, len(tags), _BATCH):
        client.log_batch(run_id, tags=tags[start : start + _BATCH])


def _dataset(client: MlflowClient, run_id: str, record: Record) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    digest = record["digest"]
    dataset = Dataset(
        name=record["name"],
        digest=digest[:_DIGEST],
        source_type="code",
        source=json.dumps({"tags": {"source": record["source"]}}),
        profile=json.dumps(record["profile"]),
    )
    tags = [InputTag("mlflow.data.context", record["context"]), InputTag("sha256", digest)]
    client.log_inputs(run_id, [DatasetInput(dataset, tags)])


def _artifact(client: MlflowClient, run_id: str, record: Record) -> None:
    path, folder = Path(record["path"]), record["folder"]
    if path.is_dir():
        client.log_artifacts(run_id, str(path), "/".join(part for part in (folder, path.name) if part))
    elif path.exists():
        client.log_artifact(run_id, str(path), folder or None)
    else:
        console.say(f"MLflow: {path} no longer exists and was not uploaded; run its stage again if you want it")


def _status(client: MlflowClient, run_id: str, record: Record) -> None:
    status = record["status"]
    if status == "RUNNING":
        client.update_run(run_id, status=status)
    else:
        if status == "FINISHED" and ERROR in client.get_run(run_id).data.tags:  # from an earlier attempt
            client.delete_tag(run_id, ERROR)
        client.set_terminated(run_id, status, end_time=record["time"])


def _model(client: MlflowClient, run_id: str, record: Record) -> None:
    from pipeline.tracking import models  # here: it imports torch, and a stage with nothing to do should not wait

    models.deliver(client, run_id, record)


def _describe(client: MlflowClient, run_id: str, record: Record) -> None:
    from mlflow.exceptions import MlflowException

    try:
        descriptions.of_model(client, record["name"], record["text"])
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # a study may have results, but no models in this store
            raise


_KINDS: dict[str, Callable[[MlflowClient, str, Record], None]] = {
    "params": _params,
    "tags": _tags,
    "dataset": _dataset,
    "artifact": _artifact,
    "status": _status,
    "model": _model,
    "link": presentation.link,
    "describe": _describe,
}
