"""What the README and the page of results show is what is recorded."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.report import tables
from pipeline.report.results import found_scores
from pipeline.report.writing import fill_pages

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/choose.md"])
def test_tables_are_those_of_the_recorded_scores(page, tmp_path):
    copy = Path(shutil.copy(PROJECT / page, tmp_path))
    fill_pages([copy], sorted((PROJECT / "recorded").iterdir()))
    assert copy.read_text() == (PROJECT / page).read_text()


def test_the_results_tell_what_the_variations_of_wine_gave():
    told = " ".join((PROJECT / "docs/results.md").read_text().split())
    found = json.loads((PROJECT / "recorded/uci/variations/earlier/wine-mnvi.json").read_text())
    assert found["runs"] == 10
    for one in found["variations"]:
        assert f"{one['mean']:.3f} ± {one['std']:.3f}".replace("-", "−") in told, one["changed"]


def test_the_conclusions_rank_mnvi_as_its_scores_do():
    recorded = [json.loads(path.read_text()) for path in (PROJECT / "recorded/uci/evaluate").glob("*/scores.json")]
    names = {1: "1st", 2: "2nd", 3: "3rd", 6: "6th", 7: "7th"}
    told = " ".join((PROJECT / "docs/results.md").read_text().split())
    for data in ("boston", "concrete", "energy", "kin8", "power", "wine", "yacht"):
        found = {one["method"]: one["metrics"]["log_likelihood"]["mean"] for one in recorded if one["data"] == data}
        rank = sorted(found, key=found.__getitem__, reverse=True).index("mnvi") + 1
        assert len(found) == 8 and f"{names[rank]} on {data}" in told


def test_the_results_tell_how_long_mnvi_s_row_took():
    cells = sorted((PROJECT / "recorded/uci/evaluate").glob("*-mnvi/scores.json"))
    seconds = sum(json.loads(path.read_text())["seconds"] for path in cells)
    assert len(cells) == 7 and seconds <= 15 * 60
    told = f"MNVI's row, 1,400 networks, was trained in {seconds / 60:.1f} minutes"
    assert told in (PROJECT / "docs/results.md").read_text()


def test_the_readme_counts_the_log_likelihoods_that_mnvi_reproduces():
    records = tables.table_1(found_scores(PROJECT / "recorded/uci"))
    judged = [record.reproduced for record in records if record.method == "mnvi" and record.metric == "log_likelihood"]
    assert (sum(judged), len(judged)) == (6, 7)
    assert "MNVI reproduces six of its seven log-likelihoods" in (PROJECT / "README.md").read_text()
