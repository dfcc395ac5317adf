"""The page "How far to trust it": its table comes from records, which a command measures."""

from __future__ import annotations

import json

import pytest

from tools.trust_table import CASES, PAGE, RECORDS, RHOS, measure, page


def test_the_page_is_what_the_records_say() -> None:
    assert PAGE.read_text() == page(PAGE.read_text(), json.loads(RECORDS.read_text()))


def test_every_case_was_measured() -> None:
    records = json.loads(RECORDS.read_text())
    assert list(records) == list(CASES)
    assert all(list(found) == [f"{rho:g}" for rho in RHOS] for found in records.values())


@pytest.mark.parametrize(
    "name", ["one linear layer", "2 hidden layers, ReLU", "convolutions, averaged", "convolutions, averaged, shared"]
)
def test_a_measurement_comes_out_as_recorded(name: str) -> None:
    recorded = json.loads(RECORDS.read_text())[name]["-5"]["std_ratio_median"]
    found = measure(CASES[name], -5.0, num_samples=100)["std_ratio_median"]
    # one entry's ratio has a standard error of 1/√200 here and 1/√600 there; a median over 80 entries has less
    assert abs(found / recorded - 1) < 3 * (1 / 200 + 1 / 600) ** 0.5
