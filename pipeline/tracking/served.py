"""The script that a logged model runs: it needs the settings and weights beside it, but no code of the study."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from torch import Tensor, nn

import mnvi

Prediction = dict[str, npt.NDArray[Any]]
_BATCH = 256
_TOO_FAR = "the answer is not finite; these inputs are too far from the training data"
_SEED = 0  # the same input gets the same answer, even from methods that sample
_MOST_VALUES = 1 << 23  # of one request: 55 photographs of 224 x 224; as Python's lists they take 270 MB


class Refused(MlflowException):
    """One sentence about a request that cannot be answered.

    MLflow's server puts all data of the request before the message of an error; this one keeps its sentence.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        super().__init__(sentence, error_code=INVALID_PARAMETER_VALUE)

    @property
    def message(self) -> str:
        return self._sentence

    @message.setter
    def message(self, _: str) -> None:
        pass


class Served(PythonModel):
    """Answers with a prediction and its uncertainty."""

    def load_context(self, context: PythonModelContext) -> None:
        self.settings = json.loads(Path(context.artifacts["settings"]).read_text(encoding="utf-8"))
        self.net = _network(self.settings)
        self.net.load_state_dict(torch.load(context.artifacts["weights"], map_location="cpu", weights_only=True))
        self.net.eval()

    # The input may also be a data frame or a dictionary of columns, but MLflow understands a single type here only.
    def predict(
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> Prediction:
        x = _standardised(_checked(_rows(model_input, self.settings), self.settings), self.settings["inputs"])
        with torch.inference_mode(), mnvi.options(**self.settings["options"]):
            parts = [self._answer(part, _BATCH * index) for index, part in enumerate(x.split(_BATCH))]
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}

    def _answer(self, x: Tensor, start: int) -> dict[str, Tensor]:
        with torch.random.fork_rng([]):
            torch.manual_seed(_SEED)
            out = self.net(x)
        for values in [out] if isinstance(out, Tensor) else [out.mean, out.var]:
            _check_finite(values, _TOO_FAR, start)
        if self.settings["kind"] == "classification":
            return _classification(out)
        answer = _regression(out, self.settings["targets"])
        for values in answer.values():  # a variance can be too large even where the network's output is finite
            _check_finite(values[:, None], _TOO_FAR, start)
        return answer


def _network(settings: dict[str, Any]) -> nn.Module:
    build, arguments, method = _function(settings["builder"]), settings["arguments"], settings["method"]
    if ":" in method:
        net: nn.Module = _function(method)(lambda: build(**arguments), **settings["method_arguments"])
        return net
    return mnvi.methods.build(method, lambda: build(**arguments), **settings["method_arguments"])


def _function(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    if module.startswith("torchvision"):
        importlib.import_module("mnvi._torchvision")  # beside a torch without CUDA it must come before torchvision
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _rows(given: Any, settings: dict[str, Any]) -> npt.NDArray[Any]:
    """The values of a request as an array. Named columns are matched by name, whatever their order."""
    names = list(given) if hasattr(given, "keys") else []  # a data frame, or a dictionary of columns
    wanted = settings.get("columns")
    if names and wanted and not all(isinstance(name, int) for name in names):
        missing = [name for name in wanted if name not in names]
        if missing:
            raise Refused(f"the column {missing[0]} is missing; the model needs {', '.join(wanted)}")
        names = wanted
    try:
        columns = [np.asarray(given[name]) for name in names]
        values = np.stack(columns, 1) if names else np.asarray(given)
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise Refused(f"the values are not an array of numbers ({error})") from error


def _checked(values: npt.NDArray[Any], settings: dict[str, Any]) -> Tensor:
    """Refuses what the network would answer with nonsense or with an obscure error."""
    shape = settings["shape"]
    said = "rows of " + " x ".join(map(str, shape)) + (" values" if settings["kind"] == "regression" else " pixels")
    if values.size == 0:
        raise Refused(f"the request is empty; send {said}")
    if list(values.shape[1:]) != shape:
        raise Refused(f"the shape is {list(values.shape)}; expected {said}, e.g. {[1, *shape]}")
    if values.size > _MOST_VALUES:
        raise Refused(f"{len(values)} rows are too many; send at most {_MOST_VALUES // math.prod(shape)} at a time")
    x = torch.from_numpy(values)
    _check_finite(x, "values are missing, NaN or infinite; fill them in or leave these rows out")
    if settings.get("bytes") and ((x < 0) | (x > 255) | (x != x.round())).any():
        raise Refused("pixels must be whole numbers from 0 to 255; multiply colours in [0, 1] by 255 and round them")
    return x.float()


def _check_finite(x: Tensor, problem: str, start: int = 0) -> None:
    if found := ((~x.flatten(1).isfinite()).any(1).nonzero().flatten() + start).tolist():
        raise Refused(f"rows {', '.join(map(str, found[:5]))}{', …' if len(found) > 5 else ''}: {problem}")


def _standardised(x: Tensor, inputs: dict[str, Any] | None) -> Tensor:
    """Standardises features or channels (dimension 1) with the training data's mean and standard deviation."""
    if inputs is None:
        return x
    shape = (-1,) + (1,) * (x.dim() - 2)
    mean, std = (torch.tensor(inputs[name], dtype=x.dtype).reshape(shape) for name in ("mean", "std"))
    return (x - mean) / std


def _classification(out: Any) -> dict[str, Tensor]:
    def likelihood() -> mnvi.CategoricalLikelihood:
        return mnvi.CategoricalLikelihood(generator=torch.Generator().manual_seed(_SEED))

    # Two likelihoods with one seed: probabilities and uncertainties come from the same samples.
    probs = likelihood().predictive(out).probs
    uncertainty = likelihood().uncertainty(out)
    return {
        "probs": probs,
        "label": probs.argmax(-1),
        "entropy": uncertainty.total,
        "aleatoric": uncertainty.aleatoric,
        "epistemic": uncertainty.epistemic,
    }


def _regression(out: Any, targets: dict[str, float] | None) -> dict[str, Tensor]:
    mean_of, scale = (targets["mean"], targets["std"]) if targets else (0.0, 1.0)
    predictive = mnvi.GaussianLikelihood().predictive(out)
    spread = getattr(out, "var", None)  # variance of the mean head; a plain tensor has none
    epistemic = torch.zeros_like(predictive.mean) if not isinstance(spread, Tensor) else spread[..., 0]
    aleatoric = (predictive.variance - epistemic).clamp_min(0)
    return {
        "mean": predictive.mean * scale + mean_of,
        "std": predictive.stddev * scale,
        "aleatoric": aleatoric.sqrt() * scale,
        "epistemic": epistemic.sqrt() * scale,
    }


set_model(Served())
