"""A trained network as an MLflow model: saved beside the journal first, then logged and registered.

The best version of a model gets the alias "best".
"""

from __future__ import annotations

import hashlib
import importlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import mnvi
from pipeline import propagation, registry
from pipeline.files import read_json, read_tensors, write_json, write_tensors
from pipeline.registry import networks
from pipeline.registry.methods import METHODS
from pipeline.tracking.registered import ALIAS, name_of
from pipeline.tracking.store import quiet_import

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.models import ModelSignature

    from pipeline.params import Cell
    from pipeline.tracking.runs import Run

_NEEDED = ("mlflow", "torch", "numpy", "pandas")
_EXAMPLE = 4  # rows
_SERVED = Path(__file__).with_name("served.py")


def model(
    run: Run,
    module: nn.Module,
    cell: Cell,
    example: Tensor,
    *,
    builder: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    targets: Mapping[str, float] | None = None,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    objective: float = math.nan,
    step: int = 0,
) -> None:
    """Logs a trained network and registers it as `<experiment>-<method>`.

    Args:
        module: the network, or the objective that contains it.
        example: some inputs in the form that `predict` is to take.
        builder: "module:function" that builds the deterministic network; default: the experiment's.
        arguments: arguments of the builder, as JSON values; default: derived from the experiment's network.
        inputs: "mean" and "std" of each feature or channel, if `predict` is to take inputs that are not standardised.
        targets: "mean" and "std" of the target, if `predict` is to answer in the target's unit.
        columns: names of the features, if the table has a heading.
        classes: names of the classes.
        objective: on validation data, smaller is better. The newest version with the best one gets the alias "best".
        step: the epoch of these weights.
    """
    with quiet_import():
        import mlflow.pyfunc  # noqa: F401  # here: warnings cannot be silenced in the sender's thread
    net = module.net if isinstance(module, mnvi.Objective) else module
    assert isinstance(net, nn.Module)
    weights = {key: value.detach().cpu() for key, value in net.state_dict().items()}
    digest = _digest(weights)
    folder = run.state / f"model-{digest[:12]}"
    write_tensors(folder / "weights.pt", weights)
    write_tensors(folder / "example.pt", example[:_EXAMPLE].detach().cpu().clone())
    settings = {
        "kind": cell.kind,
        "builder": builder or registry.spelled(networks.find(cell.experiment.network).build),
        "arguments": dict(arguments) if arguments is not None else _arguments(net, cell, example),
        "method": _method(cell.method),
        "method_arguments": _method_arguments(net, cell),
        "inputs": None if inputs is None else dict(inputs),
        "targets": None if targets is None else dict(targets),
        "columns": None if columns is None else list(columns),
        "classes": None if classes is None else list(classes),
        "shape": list(example.shape[1:]),
        "bytes": example.dtype == torch.uint8,
        "options": propagation.settings(METHODS[cell.method]),
    }
    write_json(folder / "settings.json", settings)
    run.tell(
        {
            "kind": "model",
            "folder": str(folder.absolute()),
            "name": name_of(cell),
            "digest": digest,
            "objective": float(objective),
            "step": step,
        }
    )


def deliver(client: MlflowClient, run_id: str, record: dict[str, Any]) -> None:
    """Logs and registers the model that :func:`model` saved."""
    from mlflow.exceptions import MlflowException

    name, digest = record["name"], record["digest"]
    versions = client.search_model_versions(f"name='{name}'")
    if any(version.run_id == run_id and version.tags.get("digest") == digest for version in versions):
        return
    logged = _logged(client, run_id, record)
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = {"digest": digest, "objective": repr(record["objective"])}
    # Not "models:/…", which MLflow would look up in its global store instead of this client's.
    place = logged.artifact_location
    version = client.create_model_version(name, place, run_id, tags, model_id=logged.model_id)
    if _is_best(client, name, record["objective"]):
        client.set_registered_model_alias(name, ALIAS, version.version)


def _logged(client: MlflowClient, run_id: str, record: dict[str, Any]) -> LoggedModel:
    """The logged model; completes one that an earlier attempt left unfinished."""
    from mlflow.entities import LoggedModelOutput

    run = client.get_run(run_id)
    experiment = run.info.experiment_id
    mine = f"source_run_id='{run_id}' AND tags.digest='{record['digest']}'"
    found = list(client.search_logged_models([experiment], mine))
    tags = {"digest": record["digest"]}
    logged = found[0] if found else client.create_logged_model(experiment, "model", run_id, tags, run.data.params)
    if logged.status != "READY":
        with tempfile.TemporaryDirectory() as folder:
            save(Path(record["folder"]), Path(folder) / "model", run_id, logged.model_id)
            client.log_model_artifacts(logged.model_id, str(Path(folder) / "model"))
        outputs = run.outputs.model_outputs if run.outputs else []
        if not any(output.model_id == logged.model_id for output in outputs):
            client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, record["step"])])
        client.finalize_logged_model(logged.model_id, "READY")
    return logged


def save(saved: Path, target: Path, run_id: str, model_id: str) -> None:
    """Writes MLflow's model folder from the files that :func:`model` saved."""
    import mlflow
    from mlflow.models import Model

    settings = read_json(saved / "settings.json", "pipeline.train")
    example = read_tensors(saved / "example.pt", "pipeline.train").numpy()
    named = [settings["builder"], *([settings["method"]] if ":" in settings["method"] else [])]
    packages = {"mnvi", *(reference.partition(":")[0].partition(".")[0] for reference in named)}
    needed = [*_NEEDED, *sorted(packages & networks.INSTALLED)]
    mlflow.pyfunc.save_model(
        target,
        mlflow_model=Model(run_id=run_id, model_id=model_id, model_uuid=model_id),
        python_model=str(_SERVED),
        artifacts={"weights": str(saved / "weights.pt"), "settings": str(saved / "settings.json")},
        code_paths=[str(_code(package)) for package in sorted(packages - networks.INSTALLED)],
        signature=_signature(settings["kind"]),
        input_example=example,
        pip_requirements=[f"{name}=={metadata.version(name).partition('+')[0]}" for name in needed],
    )


def _signature(kind: str) -> ModelSignature:
    """The answer's parts. There is no schema of inputs: MLflow passes them on as they are, and the model checks them.

    With one, MLflow would silently drop the names of columns and turn pixels that are no bytes into bytes.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    single, double, whole = (np.dtype(name) for name in ("float32", "float64", "int64"))
    if kind == "classification":
        outputs: list[Any] = [TensorSpec(single, (-1, -1), "probs"), TensorSpec(whole, (-1,), "label")]
        outputs += [TensorSpec(double, (-1,), name) for name in ("entropy", "aleatoric", "epistemic")]
    else:
        outputs = [TensorSpec(single, (-1,), name) for name in ("mean", "std", "aleatoric", "epistemic")]
    return ModelSignature(outputs=Schema(outputs))


def _is_best(client: MlflowClient, name: str, objective: float) -> bool:
    current = client.get_registered_model(name).aliases.get(ALIAS)
    if current is None:
        return True
    best = float(client.get_model_version(name, current).tags["objective"])
    return math.isnan(best) or objective <= best


def _digest(weights: Mapping[str, Tensor]) -> str:
    """Digest of the numbers; a digest of torch's file would vary, as the file contains its own name."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _code(package: str) -> Path:
    """The folder of a package, or the file of a top-level module."""
    file = importlib.import_module(package).__file__
    assert file is not None
    return Path(file).parent if Path(file).stem == "__init__" else Path(file)


def _arguments(net: nn.Module, cell: Cell, example: Tensor) -> dict[str, Any]:
    """Arguments of the experiment's network, derived from its settings, an input and an output."""
    dropout = float(cell.hyperparameters.get("dropout", 0.0))
    if cell.kind == "regression":
        return networks.arguments(cell.experiment, dropout, in_features=example.shape[1])
    was_training = net.training
    with torch.no_grad(), torch.random.fork_rng([]):
        out = net.eval()(example[:1].float())
    net.train(was_training)
    return networks.arguments(cell.experiment, dropout, num_classes=out.shape[-1], in_channels=example.shape[1])


def _method(name: str) -> str:
    """The method in the form that a served model needs: a name that the library knows, or "module:function"."""
    method = METHODS[name]
    return method.library or name if method.build is None else registry.spelled(method.build)


def _method_arguments(net: nn.Module, cell: Cell) -> dict[str, Any]:
    """Arguments of `mnvi.methods.build`; the network's own values take precedence over the hyperparameters."""
    arguments = {**METHODS[cell.method].arguments, **cell.method_arguments}
    if isinstance(net, mnvi.MonteCarlo):
        arguments |= {"num_samples": net.num_samples, "chunk": net.chunk}
    if isinstance(net, mnvi.Ensemble):
        arguments["num_members"] = len(net.members)
    return arguments
