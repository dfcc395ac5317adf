"""What uncertainty costs, beside what it may cost."""

from __future__ import annotations

import json

import pytest

from benchmarks import targets
from benchmarks.tables import PAGE


def test_targets_are_ratios_to_the_best_deterministic_network_and_misses_are_bold() -> None:
    figures = {("deterministic", "eager"): 8.0, ("deterministic", "compiled"): 2.0, ("mnvi_factored", "compiled"): 5.0}
    records = [
        {"model": "lenet", "quantity": "inference", "method": method, "mode": mode, "figure": figure}
        for (method, mode), figure in figures.items()
    ]
    assert targets.ratio(records, "lenet", "inference", "mnvi_factored") == 2.5
    assert targets.ratio(records, "lenet", "inference", "mnvi") is None
    assert "| inference, MNVI, factored | **2.50** (≤ 1.8) |" in targets.markdown({"records": records})
    better = [{**record, "figure": 3.0} if record["method"] == "mnvi_factored" else record for record in records]
    assert "| 1.50 (≤ 1.8) | not run (≤ 1.2) |" in targets.markdown({"records": better})


def test_a_new_measurement_replaces_that_of_the_same_model_and_quantity() -> None:
    old, other, new = (
        {"model": model, "quantity": "memory", "figure": figure}
        for model, figure in (("lenet", 1), ("all_cnn", 2), ("lenet", 3))
    )
    assert targets.merged([old, other], [new]) == [other, new]


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
    assert all(record["figure"] > 0 for record in records)


def test_the_page_on_speed_shows_the_recorded_figures() -> None:
    assert targets.markdown(json.loads(targets.RESULTS.read_text())) in PAGE.read_text()
