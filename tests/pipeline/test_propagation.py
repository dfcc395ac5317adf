"""The options under which the study's networks propagate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tracking_cases import Cell, Experiment, best_model

import mnvi
from pipeline import propagation, tracking
from pipeline.registry.methods import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_methods_of_the_paper_use_the_papers_options(method):
    given = propagation.settings(METHODS[method])
    assert given["relu_floor"] == mnvi.options.PAPER_RELU_FLOOR and given["kl"] == "by_layer"
    assert given["spatial"] == ("shared_weights" if method == "mnvi_shared" else "independent")


def test_a_variant_of_the_library_s_method_has_its_own_arguments():
    exact, fast = (METHODS[name].network(lambda: mnvi.models.resnet20(10)) for name in ("mnvi", "mnvi_factored"))
    variances = [{layer.posterior.variance for layer in mnvi.bayesian_layers(net)} for net in (exact, fast)]
    assert variances == [{"exact"}, {"factored", "exact"}]  # the last layer stays exact


def test_a_logged_model_predicts_under_the_options_it_was_trained_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = {}
    for method in ("mnvi", "mnvi_shared"):
        cell = Cell(Experiment(network="resnet20"), method, "classification", {}, {"prior_variance": 1.0})
        torch.manual_seed(1)
        net = METHODS[method].network(lambda: mnvi.models.resnet20(10), **cell.method_arguments).eval()
        with tracking.run(cell, "train", state=Path("work") / method) as run:
            tracking.model(run, net, cell, images, inputs={"mean": [128.0] * 3, "std": [64.0] * 3})
        found[method] = best_model(f"toy-{method}").predict(images.numpy())["epistemic"]
    assert np.all(found["mnvi_shared"] > 1.05 * found["mnvi"])  # errors of positions go together
