"""Scores against values computed by hand from the same weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from image_study import probabilities, trained
from PIL import Image
from sklearn.metrics import log_loss, roc_auc_score  # type: ignore[import-untyped]
from torch import Tensor
from tracking_cases import runs

import mnvi
from pipeline import files, params
from pipeline.data import damage
from pipeline.images import evaluation, objectives, predictions, seeds
from pipeline.images.predictions import sampled_probabilities
from pipeline.params import Cell
from pipeline.prepare import prepare


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    monkeypatch.setattr(predictions, "REPEATS", 1)  # twenty timings of a hundred passes each take seconds


def read(cell: Cell, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((cell.evaluate / name).read_text())
    return content


def test_scores_are_those_of_a_direct_computation() -> None:
    cell = trained("deterministic")
    evaluation.run(cell)
    scores = read(cell, "scores.json")
    found = scores["metrics"]
    labels = np.load(cell.data / "test_labels.npy")
    for seed in range(2):
        probs, foreign = probabilities(cell, seed, "mnist"), probabilities(cell, seed, "fashion_mnist")

        def value(name: str, seed: int = seed) -> float:
            return float(found[name]["values"][seed])

        wrong = (probs.argmax(1).numpy() != labels).mean()
        entropy, other = (-(p * p.log()).sum(1).numpy() for p in (probs, foreign))
        certain = entropy.argsort(kind="stable")
        assert value("misclassification") == pytest.approx(wrong)
        assert value("nll") == pytest.approx(log_loss(labels, probs.numpy()), rel=1e-5)
        kept = certain[:12]
        assert value("mr50") == pytest.approx((probs.argmax(1).numpy() != labels)[kept].mean())
        assert value("ece") == pytest.approx(float(mnvi.metrics.ece(probs, torch.from_numpy(labels))))
        assert value("aumrc") == pytest.approx(float(mnvi.metrics.aumrc(probs, torch.from_numpy(labels))))
        expected = roc_auc_score(np.repeat([0, 1], [len(entropy), len(other)]), np.concatenate([entropy, other]))
        assert value("auroc_fashion_mnist") == pytest.approx(expected)
        assert value("parameters") == objectives.num_parameters(mnvi.models.lenet(num_classes=2))
        assert value("inference_ms") > 0
    values = found["nll"]["values"]
    assert found["nll"]["mean"] == pytest.approx(np.mean(values))
    assert found["nll"]["std"] == pytest.approx(np.std(values, ddof=1))
    assert scores["complete"] and scores["runs"] == 2 and scores["missing"] is None
    assert read(cell, "metrics.json") == {name: found[name]["mean"] for name in ("misclassification", "nll", "ece")}
    (run,) = runs("lenet-mnist")
    assert run.data.metrics["nll_std"] == found["nll"]["std"] and run.data.metrics["mr50"] == found["mr50"]["mean"]


def save_pictures(folder: Path, images: Iterable[np.ndarray]) -> None:
    (folder / "some").mkdir(parents=True)
    for row, image in enumerate(images):
        Image.fromarray(image).save(folder / "some" / f"{row:03}.png")


def test_any_folder_of_pictures_serves_as_images_from_elsewhere() -> None:
    names = ["fashion_mnist", "drawings", "photographs"]
    cell = trained(
        "deterministic",
        seeds=1,
        experiment={"ood": names},
        study={"data": ["mnist", *names]},
        datasets={name: {"kind": "folder", "test": f"raw/{name}", "size": 28} for name in names[1:]},
    )
    save_pictures(Path("raw/drawings"), np.load("data/fashion_mnist/test_images.npy")[:, 0])
    sizes = ((40, 30), (28, 70), (90, 28))
    numbers = np.random.default_rng(0)
    save_pictures(Path("raw/photographs"), [numbers.integers(0, 256, (*size, 3), np.uint8) for size in sizes])
    for name in names[1:]:
        prepare(params.load().datasets[name], "stop")
    evaluation.run(cell)
    found = {name: value["mean"] for name, value in read(cell, "scores.json")["metrics"].items()}
    assert found["auroc_drawings"] == found["auroc_fashion_mnist"]  # the same images, which `prepare` stores in colour
    assert 0 <= found["auroc_photographs"] <= 1


def test_a_network_without_uncertainty_about_itself_has_no_epistemic_auroc() -> None:
    cell = trained("deterministic")
    evaluation.run(cell)
    assert "auroc_epistemic_fashion_mnist" not in read(cell, "scores.json")["metrics"]


def test_curves_count_every_image_of_every_seed_and_a_picture_is_drawn() -> None:
    cell = trained("mnvi")
    evaluation.run(cell)
    curves = read(cell, "plots/curves.json")
    assert sum(curves["reliability"]["count"]) == 2 * 24
    histograms = curves["uncertainty"]
    for kind in ("total", "aleatoric", "epistemic"):
        assert sum(histograms[kind]["correct"]) + sum(histograms[kind]["wrong"]) == 2 * 24
        assert sum(histograms[kind]["ood"]) == 2 * 24
        assert len(histograms[kind]["edges"]) == 1 + len(histograms[kind]["ood"])
    assert curves["rejection"]["rate"][0] == 0
    assert curves["rejection"]["misclassification"][0] == pytest.approx(read(cell, "metrics.json")["misclassification"])
    assert "auroc_epistemic_fashion_mnist" in read(cell, "scores.json")["metrics"]
    assert (cell.plots / "extremes.png").read_bytes().startswith(b"\x89PNG")


def test_damaged_images_are_scored_for_each_kind_and_severity() -> None:
    cell = trained("deterministic", experiment={"damaged": 10})
    evaluation.run(cell)
    severity = read(cell, "plots/curves.json")["severity"]
    labels = torch.from_numpy(np.load(cell.data / "test_labels.npy")[:10])
    assert set(severity["nll"]) == set(damage.KINDS)
    clean = [probabilities(cell, seed, "mnist")[:10] for seed in range(2)]
    expected = np.mean([log_loss(labels, probs.numpy()) for probs in clean])
    assert all(values[0] == pytest.approx(expected, rel=1e-5) for values in severity["nll"].values())
    assert all(len(values) == 6 and len(set(values)) > 1 for values in severity["nll"].values())


def test_evaluation_goes_on_from_the_seeds_it_has_done() -> None:
    cell = trained("mc_dropout")
    evaluation.run(cell)
    first = read(cell, "scores.json")
    files.remove(cell.evaluate)
    next(cell.state("evaluate").glob("progress/seed-1-*.pt")).write_bytes(b"cut off")
    evaluation.run(cell)
    second = read(cell, "scores.json")
    times = [scores["metrics"].pop("inference_ms")["values"] for scores in (first, second)]
    assert times[0][0] == times[1][0] and times[0][1] != times[1][1]
    assert first["metrics"] == second["metrics"]


def test_other_weights_get_a_run_of_their_own_though_dvc_has_noted_nothing() -> None:
    Path("dvc.lock").write_text("train")
    cell = trained("deterministic", seeds=1)
    path, found = cell.model / "seed-0" / "model.pt", []
    for scale in (1.0, 0.5):
        weights = torch.load(path, weights_only=True)
        files.write_tensors(path, {name: scale * value for name, value in weights.items()})
        for _ in range(2):  # the second time as if DVC had been stopped
            evaluation.run(cell)
        found.append(read(cell, "metrics.json")["nll"])
    assert found[0] != found[1]
    assert [run.data.metrics["nll"] for run in runs("lenet-mnist")] == found


def test_a_run_shows_the_settings_of_what_it_tests() -> None:
    evaluation.run(trained("mc_dropout", seeds=1))
    (run,) = runs("lenet-mnist")
    assert run.data.params.items() >= {"seeds": "1", "dropout": "0.1", "optimizer": "amsgrad"}.items()


def test_a_run_names_all_images_it_was_tested_on() -> None:
    evaluation.run(trained("deterministic", seeds=1))
    (run,) = runs("lenet-mnist")
    contexts = {one.dataset.name: one.tags[0].value for one in run.inputs.dataset_inputs}
    assert contexts == {"mnist": "test", "fashion_mnist": "ood"}


def test_fewer_test_images_are_marked_as_incomplete() -> None:
    cell = trained("deterministic", limits={"test_examples": 10})
    evaluation.run(cell)
    assert not read(cell, "scores.json")["complete"]
    assert sum(read(cell, "plots/curves.json")["reliability"]["count"]) == 2 * 10


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_what_a_gpu_trained_is_evaluated_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    cell = trained("deterministic", seeds=1, resources={"gpu": True})
    evaluation.run(cell)
    assert read(cell, "scores.json")["runs"] == 1
    assert "no GPU here" in capsys.readouterr().err


def test_sampled_probabilities_of_every_kind_of_output() -> None:
    logits = torch.randn(5, 3)
    exact = logits.double().softmax(-1)
    assert torch.equal(sampled_probabilities(logits), exact.unsqueeze(0))
    assert torch.equal(sampled_probabilities(mnvi.Samples(logits.unsqueeze(0))), exact.unsqueeze(0))
    sure = sampled_probabilities(mnvi.Gaussian(logits, torch.full_like(logits, 1e-12)))
    torch.testing.assert_close(sure, exact.expand(64, 5, 3), atol=1e-5, rtol=0)


class SlowNetwork(torch.nn.Module):
    """Each call takes three seconds of a clock that nothing else moves."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.zeros(len(x), 2)


def test_the_timing_of_a_slow_network_ends_after_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images = SlowNetwork(), MagicMock()
    images.__len__.return_value = 100
    images.take = lambda rows: torch.zeros(len(rows), 1)
    monkeypatch.setattr(predictions, "REPEATS", 20)
    monkeypatch.setattr(predictions.time, "perf_counter", lambda: 3.0 * net.calls)
    found = predictions.milliseconds(net, images, lambda pixels, _: pixels, torch.device("cpu"))
    assert net.calls == 3  # two to warm up; 20 more would have taken a minute
    assert found == pytest.approx(3000.0)


@pytest.mark.slow
def test_seeds_that_a_cluster_evaluates_have_the_scores_of_this_process(
    ray_is_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = trained("mnvi")
    evaluation.run(cell)
    here = read(cell, "scores.json")
    files.remove(cell.state("evaluate"))
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # the one that is up
    monkeypatch.setattr(seeds.Seed, "evaluate", lambda *_: pytest.fail("evaluated in this process"))
    evaluation.run(cell)
    there = read(cell, "scores.json")
    for scores in (here, there):
        del scores["seconds"], scores["metrics"]["inference_ms"]
    assert here == there
