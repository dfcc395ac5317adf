"""Model cards: what they say, and that MLflow shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_study

from pipeline import tracking
from pipeline.report import cards, tables
from pipeline.report.results import read_result
from pipeline.tracking import store


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def written(cell: str, **results: list[str]) -> str:
    settings = report_study.write_params(sorted({cell, "lenet-mnist-mnvi"}))
    report_study.write_results(settings, runs=3, **results)
    result = read_result(settings.cell(cell))
    records = [*tables.table_1([result.scores]), *tables.table_2([result.scores])]
    data = {"source": "https://me:secret@host/x", "digest": "abc", "columns": [f"c{k}" for k in range(22)], "rows": 506}
    return cards.card(result, records, data)


def test_a_card_has_data_metrics_beside_the_papers_limits_and_commands() -> None:
    text = written("boston-mnvi")
    assert text.startswith("# boston-mnvi\n") and "secret" not in text
    assert "- features: c0, c1" in text and "c19 and 2 more" in text
    (row,) = [line for line in text.splitlines() if line.lower().startswith("| log-likelihood")]
    assert "| -2.43 ± 0.02 |" in row
    assert "python -m pipeline.serve boston-mnvi" in text and "models:/boston-mnvi@best" in text
    assert "this is the one of the first fold and run" in text and "shortened" not in text


def test_a_training_that_was_cut_short_says_so() -> None:
    text = written("lenet-mnist-mnvi", unfinished=["lenet-mnist-mnvi"])
    assert "The study's limits shortened the training" in text and "pixels from 0 to 255" in text


def test_mlflow_shows_the_card_of_a_registered_model_and_ignores_others() -> None:
    client = store.client(store.address())
    client.create_registered_model("boston-mnvi")
    with tracking.run("study", "report", state=Path("work/report")) as run:
        run.describe("nobody", "text")
        run.describe("boston-mnvi", "# A card")
    assert client.get_registered_model("boston-mnvi").description == "# A card"
