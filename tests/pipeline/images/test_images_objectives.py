"""From a cell to a network and its loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from image_study import make_cell
from torch import nn

import mnvi
from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import objectives
from pipeline.params import Cell


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def built(cell: Cell, seed: int = 0) -> mnvi.Objective:
    return objectives.build(cell, seed, classes=10, channels=1, examples=55_000)


def with_network(cell: Cell, network: str, stem: str | None = None) -> Cell:
    return replace(cell, experiment=replace(cell.experiment, network=network, stem=stem))


@pytest.mark.parametrize("method, parameters", (("deterministic", 1_111_946), ("mnvi", 1_114_027)))
def test_lenet_has_the_parameters_of_the_paper(method: str, parameters: int) -> None:
    assert objectives.num_parameters(built(make_cell(method))) == parameters


@pytest.mark.parametrize("stem, kernel", (("cifar", (3, 3)), ("imagenet", (7, 7))))
def test_resnet18_gets_its_stem(stem: str, kernel: tuple[int, int]) -> None:
    net = built(with_network(make_cell("deterministic"), "resnet18", stem)).net
    first = next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d))
    assert first.kernel_size == kernel


def test_the_weight_of_the_kl_is_kappa_over_n() -> None:
    objective = built(make_cell())
    with torch.no_grad():
        terms = objective(torch.zeros(2, 1, 28, 28), torch.tensor([0, 1]))
    assert float(terms.loss - terms.nll) == pytest.approx(1e-6 * float(terms.kl), rel=1e-4)


def test_methods_without_posterior_have_no_kl() -> None:
    assert objectives.kappa_over_n(make_cell("mc_dropout")) == 0.0
    assert float(built(make_cell("mc_dropout"))(torch.zeros(2, 1, 28, 28), torch.tensor([0, 1])).kl) == 0.0


def test_dropout_is_the_networks() -> None:
    rates = [layer.p for layer in built(make_cell("mc_dropout")).modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.1, 0.1, 0.1]


def test_a_seed_gives_the_same_weights_and_disturbs_nothing() -> None:
    before = torch.get_rng_state()
    one, two, other = (built(make_cell(), seed).state_dict()["net.fc2.weight"] for seed in (3, 3, 4))
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_state_goes_to_the_storage_that_all_machines_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = make_cell()
    assert jobs.state_folder(cell, "train") == cell.state("train").absolute()
    monkeypatch.setenv("MNVI_STORAGE", str(tmp_path / "shared"))
    assert jobs.state_folder(cell, "train") == tmp_path / "shared" / cell.state("train")
    monkeypatch.setenv("MNVI_STORAGE", "s3://bucket/prefix/")
    assert str(jobs.state_folder(cell, "train")) == f"s3://bucket/prefix/{cell.state('train')}"
    monkeypatch.setenv("MNVI_STORAGE", "ftp://host/folder")
    with pytest.raises(StudyError, match="MNVI_STORAGE=ftp://host/folder: expected a folder that all machines mount"):
        jobs.state_folder(cell, "train")
