"""The page about photographs: its table comes from records, and the records from a measurement that is tried here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mnvi
from tools import photos
from tools.photo_data import Photos
from tools.photo_page import RECORDS, TABLE, page
from tools.photo_remarks import remarks, start_remarks

PARTS = ("test", "train", "textures", "digits")
LABELS = {name: method.label for name, method in photos.METHODS.items()}


def test_the_page_is_what_the_records_say() -> None:
    assert TABLE.read_text() == page(json.loads(RECORDS.read_text()), LABELS)


def made_up(temperature: float, **scores: float) -> dict[str, Any]:
    auroc = {f"auroc_{kind}{name}": 0.9 for kind in ("", "epistemic_") for name in ("textures", "digits")}
    fold = {"temperature": temperature, "rho": -9.0, **auroc}
    known = {"accuracy": 0.7, "nll": 1.0, "ece": 0.1, "aumrc": 0.1, "kept": 1.0, "log_probs": [-1.0, -0.9, -1.1]}
    return {**known, "folds": [fold, fold], **scores}


@pytest.mark.parametrize(("temperature", "said"), [(0.8, "too unsure"), (1.5, "too sure of itself"), (1.0, None)])
def test_the_page_says_what_the_figures_say(temperature: float, said: str | None) -> None:
    text = str(remarks({"plain": made_up(1.0), "temperature": made_up(temperature)}, LABELS))
    assert said in text if said else "too" not in text


def test_noise_in_all_layers_is_praised_only_where_it_is_better() -> None:
    known = {"plain": made_up(1.0), "temperature": made_up(0.8), "noise": made_up(0.7)}
    worse = str(remarks({**known, "noise_all": made_up(0.8, ece=0.2)}, LABELS))
    better = str(remarks({**known, "noise_all": made_up(0.8, ece=0.05, aumrc=0.05)}, LABELS))
    assert "ECE and AUMRC better" in better
    assert "ECE" in worse.partition("worse")[0] and "stays the recipe" in worse


def test_times_have_a_column_once_they_are_measured() -> None:
    records = {"methods": {"plain": made_up(1.0), "temperature": made_up(0.8)}, "photos": dict.fromkeys(PARTS, 1)}
    assert "ms a photo" not in page(records, LABELS) and "Milliseconds" not in page(records, LABELS)
    timed = page({**records, "milliseconds": {"plain": 12.34}}, LABELS)
    assert "| 12.3 |" in timed and "Milliseconds" in timed


def head(rho: float | None, nll: float, epistemic: float) -> dict[str, Any]:
    known = {"rho": rho, "error": 0.1, "nll": nll, "ece": 0.1, "epistemic": 0.2}
    alone = {} if rho is None else {f"auroc_epistemic_{name}": epistemic for name in ("textures", "digits")}
    return {**known, **{f"auroc_{name}": 0.9 for name in ("textures", "digits")}, **alone}


def test_a_start_of_the_noise_is_praised_only_if_it_costs_nothing() -> None:
    said = " ".join(start_remarks([head(None, 0.5, 0), head(-1, 0.5, 0.8), head(1, 0.6, 0.8)]))
    assert "up to ρ = -1" in said and "the entropy tells foreign pictures better" in said
    assert start_remarks([head(None, 0.5, 0), head(1, 0.6, 0.95)]) == []


def test_tuned_noise_is_at_least_as_good_as_a_temperature_on_photographs_it_was_not_tuned_on() -> None:
    found = json.loads(RECORDS.read_text())["methods"]
    assert found["noise"]["nll"] <= found["temperature"]["nll"] and found["noise"]["ece"] <= found["temperature"]["ece"]
    assert all(found["noise"][score] < found["plain"][score] for score in ("nll", "ece", "aumrc"))


@pytest.fixture(scope="module")
def subject() -> photos.Subject:
    """A small network that is as sure as its random weights, and pictures with its own classes."""
    torch.manual_seed(0)
    small = photos.Subject.__new__(photos.Subject)
    small.net = nn.Sequential()
    small.net.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 30), nn.ReLU())
    small.net.fc = small.last = nn.Linear(30, 7)
    x = torch.randn(60, 3, 2, 2)
    y = torch.distributions.Categorical(logits=small.net(x).detach()).sample()
    small.pictures = {"test": Photos(x, y), "train": Photos(x, y)}
    small.pictures |= {name: Photos(5 * x, torch.zeros_like(y)) for name in ("textures", "digits")}
    small._features = {}
    return small


@pytest.mark.parametrize("name", ["plain", "temperature", "laplace", "noise", "noise_factored", "noise_shared"])
def test_a_method_is_measured_on_the_half_that_it_has_not_seen(name: str, subject: photos.Subject) -> None:
    found = photos.measure(subject, photos.METHODS[name])
    assert len(found["log_probs"]) == 60 and found["nll"] == pytest.approx(-sum(found["log_probs"]) / 60, abs=1e-3)
    assert len(found["folds"]) == 2 and all(0 <= fold["auroc_digits"] <= 1 for fold in found["folds"])
    if name == "plain":
        probs = subject.net(subject.pictures["test"].x).softmax(-1).detach()
        assert found["nll"] == pytest.approx(float(mnvi.metrics.nll(probs, subject.pictures["test"].y)), rel=1e-4)


def test_runs_take_turns_and_the_first_one_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, order = [0.0], list[str]()

    def run(name: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            clock[0] += 100 * seconds if name not in order else seconds
            order.append(name)

        return work

    monkeypatch.setattr(photos.time, "process_time", lambda: clock[0])
    found = photos.medians({"plain": run("plain", 0.5), "noise": run("noise", 2.0)})
    assert found == {"plain": 500.0, "noise": 2000.0}
    assert order == ["plain", "noise"] * (1 + photos.TIMED)
