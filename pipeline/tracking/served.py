"""The script that a logged model runs: it needs the settings and weights beside it, but no code of the study."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from torch import Tensor, nn

import mnvi

Prediction = dict[str, npt.NDArray[Any]]
_BATCH = 256
_SEED = 0  # the same input gets the same answer, even from methods that sample


class Served(PythonModel):
    """Answers with a prediction and its uncertainty."""

    def load_context(self, context: PythonModelContext) -> None:
        self.settings = json.loads(Path(context.artifacts["settings"]).read_text(encoding="utf-8"))
        self.net = _network(self.settings)
        self.net.load_state_dict(torch.load(context.artifacts["weights"], map_location="cpu", weights_only=True))
        self.net.eval()

    # The input may also be a data frame, but MLflow understands a single type in the signature only.
    def predict(
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> Prediction:
        values = model_input.to_numpy() if hasattr(model_input, "to_numpy") else model_input
        given = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        _check(given)
        x = _standardised(given, self.settings["inputs"])
        with torch.inference_mode(), mnvi.options(**self.settings["options"]):
            parts = [self._answer(part) for part in x.split(_BATCH)]
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}

    def _answer(self, x: Tensor) -> dict[str, Tensor]:
        with torch.random.fork_rng([]):
            torch.manual_seed(_SEED)
            out = self.net(x)
        if self.settings["kind"] == "classification":
            return _classification(out)
        return _regression(out, self.settings["targets"])


def _network(settings: dict[str, Any]) -> nn.Module:
    build, arguments, method = _function(settings["builder"]), settings["arguments"], settings["method"]
    if ":" in method:
        net: nn.Module = _function(method)(lambda: build(**arguments), **settings["method_arguments"])
        return net
    return mnvi.methods.build(method, lambda: build(**arguments), **settings["method_arguments"])


def _function(reference: str) -> Callable[..., Any]:
    module, _, name = reference.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _check(x: Tensor) -> None:
    """Rejects missing and non-finite values: they would give NaN answers, or an obscure error from a distribution."""
    rows = (~x.flatten(1).isfinite()).any(1).nonzero().flatten().tolist()
    if rows:
        named = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
        raise MlflowException.invalid_parameter_value(
            f"rows {named}: values are missing, NaN or infinite; fill them in or leave these rows out"
        )


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
