"""Models in MLflow: what they answer, which of them is the best, and that they can be served."""

from __future__ import annotations

import importlib
import json
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from commands import PATIENCE
from mlflow.exceptions import MlflowException
from test_tracking_server import free_port, server
from torch import Tensor, nn
from tracking_cases import Cell, Experiment, best_model, client, runs

import mnvi
from mnvi._torchvision import torchvision
from pipeline import tracking

STATE = Path("work/results/train/toy")
pytestmark = pytest.mark.usefixtures("folder")
PAPER = {"relu_floor": mnvi.options.PAPER_RELU_FLOOR}


def network(cell: Cell, build: Callable[[], nn.Module]) -> nn.Module:
    net = mnvi.methods.build(cell.method, build, **cell.method_arguments)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net.eval()


def log(cell: Cell, net: nn.Module, example: Tensor, **settings: Any) -> None:
    with tracking.run(cell, "evaluate", state=STATE) as run:
        tracking.model(run, net, cell, example, **settings)


REGRESSION = {
    "deterministic": {},
    "mnvi": {"prior_variance": 1.0},
    "ensemble": {"num_members": 3},
    "mc_mfvi": {"num_samples": 5, "init_log_var": -2.0},
}


def test_rows_with_values_that_are_no_numbers_are_named() -> None:
    cell = Cell()
    log(cell, network(cell, lambda: mnvi.models.mlp(3, 5)), torch.randn(7, 3))
    rows = np.zeros((4, 3))
    rows[1, 2], rows[3, 0] = np.nan, np.inf
    with pytest.raises(MlflowException, match="rows 1, 3: values are missing, NaN or infinite; fill them in or leave"):
        best_model("toy-mnvi").predict(rows)


@pytest.mark.parametrize("method", REGRESSION)
def test_regression_answers_in_the_targets_unit_with_both_uncertainties(method: str) -> None:
    cell = Cell(method=method, method_arguments=REGRESSION[method])
    net = network(cell, lambda: mnvi.models.mlp(3, 5))
    x = torch.randn(7, 3)
    raw = x * 2 + 1
    log(cell, net, raw, inputs={"mean": [1.0] * 3, "std": [2.0] * 3}, targets={"mean": 10.0, "std": 4.0})
    loaded = best_model(f"toy-{method}")
    answer = loaded.predict(raw.double().numpy())
    with torch.no_grad(), mnvi.options(**PAPER), torch.random.fork_rng([]):
        torch.manual_seed(0)
        expected = mnvi.GaussianLikelihood().predictive(net(x))
    np.testing.assert_allclose(answer["mean"], 10 + 4 * expected.mean.numpy(), rtol=1e-4)
    np.testing.assert_allclose(answer["std"], 4 * expected.stddev.numpy(), rtol=1e-4)
    np.testing.assert_allclose(answer["std"] ** 2, answer["aleatoric"] ** 2 + answer["epistemic"] ** 2, rtol=1e-4)
    assert (answer["epistemic"] > 0).all() == (method != "deterministic")
    table = loaded.predict(pd.DataFrame(raw.double().numpy(), columns=["a", "b", "c"]))
    np.testing.assert_array_equal(table["mean"], answer["mean"])


def test_columns_are_matched_by_name() -> None:
    cell = Cell()
    log(cell, network(cell, lambda: mnvi.models.mlp(3, 5)), torch.randn(7, 3), columns=["a", "b", "c"])
    loaded, rows = best_model("toy-mnvi"), np.random.default_rng(0).normal(size=(4, 3))
    expected = loaded.predict(rows)["mean"]
    shuffled = pd.DataFrame({"c": rows[:, 2], "price": 0.0, "a": rows[:, 0], "b": rows[:, 1]})
    np.testing.assert_array_equal(loaded.predict(shuffled)["mean"], expected)
    np.testing.assert_array_equal(loaded.predict(shuffled.to_dict("list"))["mean"], expected)
    with pytest.raises(MlflowException, match="the column b is missing; the model needs a, b, c"):
        loaded.predict(shuffled.drop(columns="b"))


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.full((1, 1, 28, 28), 0.5), "pixels must be whole numbers from 0 to 255; multiply colours in "),
        (np.full((1, 1, 28, 28), 256), "pixels must be whole numbers from 0 to 255"),
        (np.full((1, 1, 28, 28), -1), "pixels must be whole numbers from 0 to 255"),
        (np.zeros((1, 28, 28)), r"the shape is \[1, 28, 28\]; expected rows of 1 x 28 x 28 pixels"),
        (np.zeros((0, 1, 28, 28)), "the request is empty; send rows of 1 x 28 x 28 pixels"),
        (np.array([["a"]]), "the values are not an array of numbers"),
        (np.broadcast_to(np.zeros(1), (11_000, 1, 28, 28)), "11000 rows are too many; send at most 10699 at a time"),
    ],
)
def test_images_that_a_network_would_misread_are_refused(pixels: Any, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's, since nobody logs this script here
        served = importlib.import_module("pipeline.tracking.served")
    settings = {"kind": "classification", "shape": [1, 28, 28], "bytes": True}
    with pytest.raises(MlflowException, match=message):
        served._checked(pixels if len(pixels) > 1000 else served._rows(pixels, settings), settings)


def test_an_answer_that_is_no_number_is_refused() -> None:
    cell = Cell()
    net = network(cell, lambda: mnvi.models.mlp(3, 5))
    log(cell, net, torch.randn(7, 3))
    with pytest.raises(MlflowException, match=r"rows 1: the answer is not finite; these inputs are too far from"):
        best_model("toy-mnvi").predict(np.array([[0.0, 0.0, 0.0], [1e30, 1e30, 1e30]]))


@pytest.mark.parametrize("method", ["mnvi", "mc_dropout"])
def test_classification_answers_with_probabilities_and_both_uncertainties(method: str) -> None:
    hyperparameters = {"dropout": 0.5} if method == "mc_dropout" else {}
    cell = Cell(Experiment(network="lenet"), method, "classification", hyperparameters)
    net = network(cell, lambda: mnvi.models.lenet(10, 1, hyperparameters.get("dropout", 0.0)))
    images = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
    log(cell, net, images, inputs={"mean": [33.3], "std": [78.6]})
    loaded = best_model(f"toy-{method}")
    answer = loaded.predict(images.numpy())
    assert answer["probs"].shape == (3, 10)
    np.testing.assert_allclose(answer["probs"].sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(answer["label"], answer["probs"].argmax(-1))
    entropy = mnvi.metrics.predictive_entropy(torch.from_numpy(answer["probs"]))
    np.testing.assert_allclose(answer["entropy"], entropy, rtol=1e-4)
    np.testing.assert_allclose(answer["entropy"], answer["aleatoric"] + answer["epistemic"], rtol=1e-4)
    assert (answer["epistemic"] > 0).all()
    again = loaded.predict(images.numpy())
    np.testing.assert_array_equal(again["probs"], answer["probs"])


def test_a_network_of_torchvision_is_served_with_torchvision_installed() -> None:
    name = "torchvision.models:squeezenet1_1"
    cell = Cell(Experiment(network=name), "mnvi", "classification", {"prior_variance": 1.0})
    net = mnvi.methods.build("mnvi", lambda: torchvision.models.squeezenet1_1(num_classes=3)).eval()
    images = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    log(cell, net, images, inputs={"mean": [120.0] * 3, "std": [60.0] * 3})
    assert best_model("toy-mnvi").predict(images.numpy())["probs"].shape == (2, 3)
    place = Path(client().get_model_version_by_alias("toy-mnvi", "best").source.removeprefix("file://"))
    assert "torchvision==" in (place / "requirements.txt").read_text()
    assert sorted(path.name for path in (place / "code").iterdir()) == ["mnvi"]


def test_a_model_has_signature_example_and_pinned_requirements() -> None:
    cell = Cell(method_arguments={"prior_variance": 1.0})
    log(cell, network(cell, lambda: mnvi.models.mlp(3, 5)), torch.randn(7, 3))
    metadata = best_model("toy-mnvi").metadata
    assert metadata.signature.outputs.input_names() == ["mean", "std", "aleatoric", "epistemic"]
    assert metadata.saved_input_example_info is not None
    place = Path(client().get_model_version_by_alias("toy-mnvi", "best").source.removeprefix("file://"))
    lines = (place / "requirements.txt").read_text().split()
    assert any(line == f"torch=={torch.__version__.partition('+')[0]}" for line in lines)
    assert all("==" in line for line in lines)


def test_best_is_the_newest_of_the_best_and_the_same_weights_are_logged_once() -> None:
    cell = Cell(method_arguments={"prior_variance": 1.0})
    expected = {1: (2.0, 1), 2: (3.0, 1), 3: (2.0, 3), 4: (1.0, 4)}
    for count, (objective, best) in expected.items():
        net = network(cell, lambda: mnvi.models.mlp(3, 5))
        with tracking.run(cell, "evaluate", state=STATE) as run:
            for _ in range(2):
                tracking.model(run, net, cell, torch.randn(7, 3), objective=objective)
        assert len(client().search_model_versions("name='toy-mnvi'")) == count
        assert client().get_model_version_by_alias("toy-mnvi", "best").version == best
    assert len(runs()[-1].outputs.model_outputs) == 1


@pytest.mark.slow
def test_a_model_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(Experiment(network="lenet"), "mnvi", "classification")
    net = network(cell, lambda: mnvi.models.lenet(10, 1))
    images = torch.randn(2, 1, 28, 28)
    log(cell, net, images)
    answer = best_model("toy-mnvi").predict(images.numpy())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    port = free_port()
    with server(port, "models", "serve", "--model-uri=models:/toy-mnvi@best", "--env-manager=local", path="/ping"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            json.dumps({"inputs": images.tolist()}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            served = json.load(response)["predictions"]
    assert set(served) == {"probs", "label", "entropy", "aleatoric", "epistemic"}
    np.testing.assert_allclose(served["probs"], answer["probs"], rtol=1e-5)
