"""Loads a registered model for prediction on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import StudyError
from pipeline.tracking import store
from pipeline.tracking.runs import Row

ALIAS = "best"


@dataclass(frozen=True)
class Model:
    """A registered model.

    Args:
        inner: the model as MLflow loads it.
        settings: how it was built: kind, network, method, standardisation, names of columns and classes.
    """

    inner: Any
    settings: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        if "shape" in self.settings:
            return tuple(self.settings["shape"])
        (expected,) = self.inner.metadata.signature.inputs.inputs  # a model from before 0.3
        return tuple(expected.shape[1:])

    def predict(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        answer: dict[str, np.ndarray] = self.inner.predict(inputs)
        return answer


def name_of(cell: Row) -> str:
    """The name of a cell's model in the registry."""
    return f"{cell.experiment.name}-{cell.method}"


def folder(name: str, made_by: str) -> Path:
    """A local folder with the best version of a registered model.

    Args:
        made_by: the command that registers it, for the message if it is missing.
    """
    client = store.client(store.address())
    with store.quiet_import():
        import mlflow.pyfunc
        from mlflow.exceptions import MlflowException
    try:
        version = client.get_model_version_by_alias(name, ALIAS)
    except MlflowException as error:
        raise StudyError(f"no model {name} is registered in {store.address()}; run `{made_by}` first") from error
    return Path(mlflow.artifacts.download_artifacts(version.source))


def load(name: str, made_by: str) -> Model:
    """The best version of a registered model; see :func:`folder`."""
    place = folder(name, made_by)
    with store.quiet_import():
        import mlflow.pyfunc
    loaded = mlflow.pyfunc.load_model(str(place))
    (settings,) = place.glob("artifacts/settings.json")
    return Model(loaded, json.loads(settings.read_text(encoding="utf-8")))
