"""The guide's table of methods for trained networks comes from records, which a command measures."""

from __future__ import annotations

import json

import pytest

from tools import digit_peers
from tools.digit_peers import METHODS, PAGE, RECORDS, page


def test_the_page_is_what_the_records_say() -> None:
    runs = json.loads(RECORDS.read_text())
    assert PAGE.read_text() == page(PAGE.read_text(), runs)
    assert len(runs) == digit_peers.RUNS and all(list(one) == list(METHODS) for one in runs)


def test_a_temperature_comes_out_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("the network itself", "`scale_temperature`", "`tune_noise`")
    monkeypatch.setattr(digit_peers, "METHODS", {name: METHODS[name] for name in names})
    recorded, found = json.loads(RECORDS.read_text())[0], digit_peers.run(0)
    for name in names:  # training on another machine rounds differently, so the networks differ a little
        assert found[name]["nll"] == pytest.approx(recorded[name]["nll"], rel=0.05), name
