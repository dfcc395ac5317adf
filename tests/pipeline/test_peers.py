"""Methods for a study's trained networks, scored like cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import command
from image_study import make_cell, probabilities, trained

import mnvi
from pipeline import peers
from pipeline.images import predictions
from pipeline.report.results import found_scores
from pipeline.report.tables import table_2


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setattr(predictions, "REPEATS", 1)
    return tmp_path


def scores(method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"results/evaluate/lenet-mnist-{method}/scores.json").read_text())
    return found


def test_every_method_is_scored_on_every_seed_and_shown_in_the_table() -> None:
    cell = trained("deterministic")
    peers.run(cell, list(peers.AFTERWARDS))
    for method in ("temperature", "laplace", "tuned_noise"):
        assert scores(method)["runs"] == 2 and scores(method)["method"] == method
    assert "auroc_epistemic_fashion_mnist" in scores("tuned_noise")["metrics"]
    assert "auroc_epistemic_fashion_mnist" not in scores("temperature")["metrics"]
    shown = {record.method for record in table_2(found_scores(Path("results"))) if record.cell is not None}
    assert shown == set(peers.AFTERWARDS)


def test_the_ensemble_of_the_seeds_averages_their_probabilities() -> None:
    cell = trained("deterministic")
    peers.run(cell, ["seed_ensemble"])
    probs = torch.stack([probabilities(cell, seed, "mnist") for seed in range(2)]).mean(0)
    labels = torch.arange(24) % 2
    assert scores("seed_ensemble")["metrics"]["nll"]["mean"] == pytest.approx(
        float(mnvi.metrics.nll(probs, labels)), rel=1e-5
    )


def test_one_seed_is_no_ensemble(capsys: pytest.CaptureFixture[str]) -> None:
    peers.run(trained("deterministic", seeds=1), ["seed_ensemble"])
    assert "one seed is no ensemble" in capsys.readouterr().err and not Path("results/evaluate").exists()


def test_only_deterministic_networks_and_known_methods_are_taken() -> None:
    make_cell("mnvi")
    status, said = command("peers", "lenet")
    assert status == 1 and "these methods start from deterministic networks for images" in said
    status, said = command("peers", "lenet", "--methods", "temprature")
    assert status == 1 and "did you mean temperature?" in said
