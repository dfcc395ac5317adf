"""What uncertainty costs, beside what it may cost."""

from __future__ import annotations

import json

import pytest

from benchmarks import targets
from benchmarks.subjects import FOLDED
from benchmarks.tables import PAGE


def test_targets_are_ratios_to_the_best_deterministic_network_and_misses_are_bold() -> None:
    figures = {("deterministic", "eager"): 8.0, ("deterministic", "compiled"): 2.0, ("mnvi_factored", "compiled"): 5.0}
    records = [
        {"model": "lenet", "quantity": "inference", "method": method, "mode": mode, "figure": figure, "batch": 100}
        for (method, mode), figure in figures.items()
    ]
    assert targets.ratio(records, "lenet", "inference", "mnvi_factored") == 2.5
    assert targets.ratio(records, "lenet", "inference", "mnvi") is None
    assert "| inference, MNVI, factored | **2.50** (≤ 1.8) |" in targets.markdown({"records": records})
    better = [{**record, "figure": 3.0} if record["method"] == "mnvi_factored" else record for record in records]
    assert "| 1.50 (≤ 1.8) | not run (≤ 1.2) |" in targets.markdown({"records": better})


def test_a_batch_that_is_not_the_usual_one_is_shown_beside_the_ratio() -> None:
    records = [
        {"model": "lenet", "quantity": quantity, "method": method, "figure": figure, "batch": batch}
        for method, figure in (("deterministic", 2.0), ("mnvi", 4.0), ("mfvi", 5.0))
        for quantity, batch in (("training", 25), ("single", 1))
    ]
    table = targets.markdown({"records": records})
    assert "| training step, MNVI, exact | 2.00 (≤ 2.3, batch 25) |" in table
    assert "| training step, MFVI to MNVI, both exact | 1.25 (≤ 1.45, batch 25) |" in table
    assert "| inference, one image, MNVI, exact | 2.00 |" in table


def test_a_new_measurement_replaces_that_of_the_same_model_and_quantity() -> None:
    old, other, new = (
        {"model": model, "quantity": "memory", "figure": figure}
        for model, figure in (("lenet", 1), ("all_cnn", 2), ("lenet", 3))
    )
    assert targets.merged([old, other], [new]) == [other, new]


def test_times_come_from_the_chosen_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setitem(targets.CLOCKS, "cpu", lambda: next(ticks))
    records = targets.measure("lenet", "eager", [], batch=2, rounds=1, clock="cpu")
    assert [(record["figure"], record["clock"]) for record in records] == [(1000.0, "cpu")] * len(FOLDED)


def test_without_the_compiler_all_networks_are_folded() -> None:
    records = targets.measure("lenet", "eager", ["mnvi"], batch=2, rounds=1)
    assert [(r["method"], r["mode"], r["batch"]) for r in records] == [
        (method, mode, 2) for method in ("deterministic", "mnvi") for mode in FOLDED
    ]


@pytest.mark.parametrize("quantity", ["single", "memory"])
def test_each_quantity_is_measured_for_all_modes_of_the_deterministic_network(
    quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MODES", ("eager", "channels_last"))
    records = targets.measure("lenet", quantity, [], batch=2, rounds=1)
    assert [(r["method"], r["mode"], r["quantity"]) for r in records] == [
        ("deterministic", "eager", quantity),
        ("deterministic", "channels_last", quantity),
    ]
    assert all(record["figure"] > 0 and record["batch"] == (1 if quantity == "single" else 2) for record in records)


def test_the_page_on_speed_shows_the_recorded_figures() -> None:
    assert targets.markdown(json.loads(targets.RESULTS.read_text())) in PAGE.read_text()
