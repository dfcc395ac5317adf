"""Loads a registered model for prediction on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import StudyError
from pipeline.tracking import store

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
        (expected,) = self.inner.metadata.signature.inputs.inputs
        return tuple(expected.shape[1:])

    def predict(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        answer: dict[str, np.ndarray] = self.inner.predict(inputs)
        return answer


def load(name: str, made_by: str) -> Model:
    """The best version of a registered model.

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
    folder = Path(mlflow.artifacts.download_artifacts(version.source))
    loaded = mlflow.pyfunc.load_model(str(folder))
    (settings,) = folder.glob("artifacts/settings.json")
    return Model(loaded, json.loads(settings.read_text(encoding="utf-8")))
