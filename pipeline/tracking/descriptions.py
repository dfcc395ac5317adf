"""Descriptions of runs and models in MLflow. A description that somebody wrote or changed there stays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

NOTE = "mlflow.note.content"  # the tag that MLflow shows as the description of an experiment or a run
WRITTEN = "description.sha256"  # the tag that tells which description a stage wrote


def of_run(client: MlflowClient, run: Run, text: str) -> None:
    from mlflow.entities import RunTag

    if _ours(run.data.tags.get(NOTE), run.data.tags):
        client.log_batch(run.info.run_id, tags=[RunTag(WRITTEN, _digest(text)), RunTag(NOTE, text)])


def of_version(client: MlflowClient, version: ModelVersion, text: str) -> None:
    if _ours(version.description, version.tags):
        client.set_model_version_tag(version.name, version.version, WRITTEN, _digest(text))
        client.update_model_version(version.name, version.version, text)


def of_model(client: MlflowClient, name: str, text: str) -> None:
    model = client.get_registered_model(name)
    if _ours(model.description, model.tags):
        client.set_registered_model_tag(name, WRITTEN, _digest(text))
        client.update_registered_model(name, text)


def _ours(present: str | None, tags: Mapping[str, str]) -> bool:
    return not present or tags.get(WRITTEN) == _digest(present)


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()
