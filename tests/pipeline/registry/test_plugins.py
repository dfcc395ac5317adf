"""A data set, a method, a network and a metric that another package adds: its own code and one entry for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from image_study import make_cell, make_job
from tiny_study import cell as tiny_cell
from tiny_study import enter

import mnvi
from pipeline import params, registry
from pipeline.data.imagesets import load_images
from pipeline.errors import StudyError
from pipeline.images import evaluation, objectives
from pipeline.images import job as jobs
from pipeline.images.predictions import Predictions
from pipeline.params import Cell, code
from pipeline.prepare import prepare
from pipeline.registry import images, methods, metrics
from pipeline.registry import networks as known_networks
from pipeline.regression import cell_networks, folds, predictions
from pipeline.regression import evaluation as table_evaluation
from pipeline.report import markdown, tables
from pipeline.report.results import Score, Scores
from pipeline.submission.package import packed

ENTRIES = """
from pipeline.registry.images import IMAGES, OwnImages
from pipeline.registry.methods import METHODS, Method
from pipeline.registry.metrics import METRICS, Metric
from pipeline.registry.networks import NETWORKS, Network
from pipeline.setting_types import Positive

METHODS.add(
    Method("noisy", {"scale": Positive}, "outside.code:noisy", has_kl=False, needs={"scale": "0.1"}, label="Noisy net",
           colour="#123456")
)
NETWORKS.add(Network("wide", ("classification",), "outside.code:wide", label="Wide net"))
IMAGES.add(
    OwnImages("blobs", "outside.code:blobs", channels=1, size=28, training=40, classes=("dark", "bright"),
              source="made up", normalisation=((0.5,), (0.2,)), label="Blobs")
)
METRICS.add(Metric("brier", "classification", "mnvi.metrics:brier", label="Brier score", better="lower"))
METRICS.add(Metric("worst", "regression", "outside.code:worst", label="Worst error", better="lower", decimals=2))
"""
CODE = """
import numpy as np
import torch
from torch import nn

import mnvi

class Noisy(nn.Module):
    def __init__(self, net, scale):
        super().__init__()
        self.net, self.scale = net, scale

    def forward(self, x):
        out = self.net(x)
        return mnvi.Gaussian(out, torch.full_like(out, self.scale**2))

def noisy(network, scale):
    return Noisy(network(), scale)

def wide(num_classes, in_channels, width=4):
    layers = nn.Linear(in_channels * 28 * 28, width), nn.ReLU(), nn.Linear(width, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)

def narrow(in_features, out_features, dropout, width):
    return nn.Sequential(nn.Linear(in_features, width), nn.Tanh(), nn.Linear(width, out_features))

def blobs():
    def part(count):
        labels = np.arange(count, dtype=np.int64) % 2
        return np.full((count, 1, 28, 28), 50, np.uint8) + (100 * labels).astype(np.uint8)[:, None, None, None], labels
    return {"train": part(40), "test": part(10)}

def worst(prediction, y):
    return (prediction.mean - y).abs().max()
"""
REGISTRIES: tuple[dict[str, Any], ...] = (
    *(images.IMAGES, methods.METHODS),
    *(metrics.METRICS, known_networks.NETWORKS),
)


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The other package, in the project's folder. What it adds is taken back."""
    kept = [dict(known) for known in REGISTRIES]
    package = tmp_path / "outside"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "study.py").write_text(ENTRIES)
    (package / "code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield package
    for known, entries in zip(REGISTRIES, kept, strict=True):
        known.clear()
        known.update(entries)
    for module in [name for name in sys.modules if name.partition(".")[0] == "outside"]:
        del sys.modules[module]


def with_plugin(path: Path = Path("params.yaml"), **changes: dict[str, Any]) -> None:
    """Names the package in params.yaml, and changes sections."""
    raw = yaml.safe_load(path.read_text())
    raw["plugins"] = ["outside.study"]
    for section, values in changes.items():
        raw[section] = {**raw[section], **values}
    path.write_text(yaml.safe_dump(raw, sort_keys=False))


def images_cell(
    method: str = "deterministic", hyperparameters: dict[str, Any] | None = None, **experiment: Any
) -> Cell:
    make_cell()
    raw = yaml.safe_load(Path("params.yaml").read_text())["experiments"]["lenet-mnist"]
    recipe = {**raw, **experiment, "methods": {method: {"hyperparameters": hyperparameters or {}}}}
    study = yaml.safe_load(Path("params.yaml").read_text())["study"]
    data = [recipe["data"], *recipe["ood"]]
    cells = {"mine": {"experiment": "mine", "data": recipe["data"], "method": method}}
    with_plugin(experiments={"mine": recipe}, study={**study, "cells": cells, "data": data})
    return params.load().cell("mine")


def table_cell(**recipe: Any) -> Cell:
    raw = yaml.safe_load(Path("params.yaml").read_text())
    tiny = {**raw["experiments"]["tiny"], **recipe}
    tiny["methods"] = {"noisy": {"hyperparameters": {"scale": 0.1}}}
    cells = {"tiny-noisy": {"experiment": "tiny", "data": "tiny", "method": "noisy"}}
    with_plugin(experiments={"tiny": tiny}, study={**raw["study"], "cells": cells})
    return tiny_cell("noisy")


def step(objective: mnvi.Objective, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """The loss before and after a step."""
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.01)
    before = objective(x, y).loss
    before.backward()
    optimizer.step()
    return float(before.detach()), float(objective(x, y).loss.detach())


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(8) % 2
    return torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(0)) + labels.view(-1, 1, 1, 1), labels


def test_a_method_trains_images() -> None:
    torch.manual_seed(0)
    cell = images_cell("noisy", {"scale": 0.1})
    objective = objectives.build(cell, 0, classes=2, channels=1, examples=8)
    assert type(objective.net).__name__ == "Noisy" and objectives.kappa_over_n(cell) == 0.0
    before, after = step(objective, *digits())
    assert after < before


def test_a_method_trains_and_predicts_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    cell = table_cell()
    table, tests = folds.load(cell)
    parts = folds.test_folds(table, tests)
    plan = cell_networks.plan(cell, len(parts), runs=1)
    trained = cell_networks.train(cell, plan, parts)
    judged = list(predictions.judge(cell, plan, parts, trained, table_evaluation.all_scores))
    assert [sorted(one.scores or ()) for one in judged] == [
        ["coverage_50", "coverage_80", "coverage_95", "log_likelihood", "rmse", "worst"]
    ] * 2
    assert all(one.scores["worst"] >= one.scores["rmse"] for one in judged if one.scores)


def test_its_hyperparameters_are_checked() -> None:
    with pytest.raises(StudyError, match=r"mine\.methods\.noisy\.hyperparameters\.scale: -1 is not a number above 0;"):
        images_cell("noisy", {"scale": -1})
    with pytest.raises(
        StudyError, match=r"noisy\.hyperparameters\.scale: is missing, but noisy needs it; add e\.g\. sc"
    ):
        images_cell("noisy")


@pytest.mark.parametrize(("network", "arguments", "width"), [("wide", {}, 4), ("outside.code:wide", {"width": 3}, 3)])
def test_a_network_is_built_with_what_its_signature_takes(network: str, arguments: dict[str, int], width: int) -> None:
    torch.manual_seed(0)
    cell = images_cell("mnvi", {"kappa_over_n": 1e-6}, network=network, arguments=arguments)
    objective = objectives.build(cell, 0, classes=2, channels=1, examples=8)
    assert [tuple(layer.weight.shape) for layer in objective.modules() if isinstance(layer, torch.nn.Linear)] == [
        (width, 784),
        (2, width),
    ]
    before, after = step(objective, *digits())
    assert after < before


def test_a_network_for_tables_needs_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    cell = table_cell(network="outside.code:narrow", arguments={"width": 3})
    table, tests = folds.load(cell)
    parts = folds.test_folds(table, tests)
    plan = cell_networks.plan(cell, len(parts), runs=1)
    assert not cell_networks.train(cell, plan, parts).failures
    assert cell_networks.num_parameters(cell, parts) == 4 * 3 + 3 + 3 * 2 + 2


def test_a_network_that_is_not_there_is_named() -> None:
    cell = images_cell(network="outside.code:weit")
    with pytest.raises(
        StudyError, match=r"outside\.code:weit: there is no such function \(.*write package\.module:fun"
    ):
        objectives.build(cell, 0, classes=2, channels=1, examples=8)


def blobs_cell(validation: int = 8) -> Cell:
    make_cell()
    with_plugin(datasets={"blobs": {"kind": "images", "validation": validation}})
    raw = yaml.safe_load(Path("params.yaml").read_text())
    blobs = {**raw["experiments"]["lenet-mnist"], "data": "blobs", "ood": [], "normalisation": "blobs"}
    cells = {"blobs": {"experiment": "blobs", "data": "blobs", "method": "mnvi"}}
    with_plugin(experiments={"blobs": blobs}, study={**raw["study"], "data": ["blobs"], "cells": cells})
    return params.load().cell("blobs")


def test_a_data_set_is_prepared_normalised_and_trained_on() -> None:
    cell = blobs_cell()
    prepare(cell.dataset, "stop")
    images = load_images(cell.data, "train")
    assert (len(images), images.classes) == (32, ["dark", "bright"])
    rows = torch.arange(8)
    pixels = jobs.transform(cell, training=True)(images.take(rows), torch.Generator())
    assert pixels.min() == pytest.approx((50 / 255 - 0.5) / 0.2)
    torch.manual_seed(0)
    before, after = step(jobs.objective(make_job(cell)), pixels, images.labels[rows])
    assert after < before


def test_what_its_entry_says_is_checked(outside: Path) -> None:
    with pytest.raises(StudyError, match=r"datasets\.blobs\.validation: 40 is not fewer than the 40 training images"):
        blobs_cell(validation=40)
    (outside / "code.py").write_text(CODE.replace("part(40)", "part(39)"))
    with pytest.raises(StudyError, match=r"outside\.code:blobs returns 39 training images, but its entry says 40"):
        prepare(blobs_cell().dataset, "stop")


def test_a_metric_is_measured() -> None:
    images_cell()
    probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    test = Predictions(probs, torch.tensor([0, 0]), *torch.zeros(3, 2, dtype=torch.float64))
    found = evaluation.metrics(test, {"fashion_mnist": test})
    assert found["brier"] == pytest.approx(float(mnvi.metrics.brier(probs, test.labels)))
    assert "auroc_fashion_mnist" in found and "auroc_epistemic_fashion_mnist" not in found


def test_tables_show_them_under_their_labels() -> None:
    images_cell()
    scores = Scores(
        cell="mine",
        kind="classification",
        data="blobs",
        experiment="mine",
        network="wide",
        method="noisy",
        complete=True,
        runs=2,
        metrics={"brier": Score(0.25, 0.01), "misclassification": Score(0.1, 0.01)},
    )
    text = markdown.table_2(tables.table_2([scores]))
    assert "Wide net on Blobs" in text and "Noisy net" in text
    assert [line for line in text.splitlines() if "Brier score" in line and "0.2500 ± 0.0100" in line]
    assert methods.colour("noisy") == "#123456"


def test_its_code_counts_for_the_stages_that_use_it(outside: Path) -> None:
    stages = ("train", "evaluate")

    def fingerprints(cell: Cell) -> list[str]:
        return [cell.fingerprint(stage) for stage in stages]

    own, plain = images_cell("noisy", {"scale": 0.1}), images_cell()
    before, plain_before = fingerprints(own), fingerprints(plain)
    assert own.foreign_code("train") == ["outside.code", "outside.study"]
    assert [plain.foreign_code(stage) for stage in stages] == [[], ["outside.study"]]  # of its metrics
    assert plain.named_code("train") == ["mnvi.methods.by_name", "mnvi.models._lenet"]
    assert "mnvi.metrics.calibration" in plain.named_code("evaluate")
    flags = dict.fromkeys(("has_kl", "samples", "members"), False)
    same = {"library": "", "arguments": {}, "options": {}}
    noisy = {"name": "noisy", "build": "outside.code:noisy", **flags, **same}
    assert registry.essence(own.entries("train")[0]) == noisy
    (outside / "code.py").write_text(CODE + "\nX = 1\n")
    for kept in (code._of, code._digest, code._tree, code._used):  # a process reads a file once
        kept.cache_clear()
    assert all(old != new for old, new in zip(before, fingerprints(own), strict=True))
    assert [old != new for old, new in zip(plain_before, fingerprints(plain), strict=True)] == [False, False]


def test_its_code_is_uploaded_to_a_cluster(outside: Path) -> None:
    images_cell("noisy", {"scale": 0.1})
    with packed("params.yaml") as package:
        assert (package.folder / "outside/code.py").read_text() == CODE


def test_a_name_that_is_taken_is_refused(outside: Path) -> None:
    (outside / "study.py").write_text(ENTRIES.replace('Method("noisy"', 'Method("mnvi"'))
    make_cell()
    with_plugin()
    message = r"outside\.study: 'mnvi' is already a method of the study itself; choose a different name"
    with pytest.raises(StudyError, match=message):
        params.load()


def test_settings_are_read_without_torch() -> None:
    images_cell()
    ask = "import sys; from pipeline import params; params.load().cells(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
def test_workers_know_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)
    table_cell(network="outside.code:narrow", arguments={"width": 3})
    for stage in ("tune", "train", "evaluate"):
        command = [sys.executable, "-m", f"pipeline.{stage}", "tiny-noisy"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    scores = json.loads(Path("results/evaluate/tiny-noisy/scores.json").read_text())
    assert scores["metrics"]["worst"]["mean"] > 0 and scores["failed"] == []
