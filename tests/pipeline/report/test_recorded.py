"""What the README shows is what is recorded."""

import json
import shutil
from pathlib import Path

from pipeline.report.writing import fill_readme

PROJECT = Path(__file__).parents[3]


def test_the_readme_s_tables_are_those_of_the_recorded_scores(tmp_path):
    shutil.copy(PROJECT / "README.md", tmp_path)
    fill_readme(tmp_path / "README.md", sorted((PROJECT / "recorded").iterdir()))
    assert (tmp_path / "README.md").read_text() == (PROJECT / "README.md").read_text()


def test_the_readme_tells_what_the_variations_of_wine_gave():
    readme = " ".join((PROJECT / "README.md").read_text().split())
    found = json.loads((PROJECT / "recorded/uci/variations/wine-mnvi.json").read_text())
    assert found["runs"] == 10
    for one in found["variations"]:
        assert f"{one['mean']:.3f} ± {one['std']:.3f}".replace("-", "−") in readme, one["changed"]


def test_the_readme_tells_how_long_mnvi_s_row_took():
    cells = sorted((PROJECT / "recorded/uci/evaluate").glob("*-mnvi/scores.json"))
    seconds = sum(json.loads(path.read_text())["seconds"] for path in cells)
    assert len(cells) == 7 and seconds <= 15 * 60
    told = f"MNVI's row, 1,400 networks, was trained in {seconds / 60:.1f} minutes"
    assert told in (PROJECT / "README.md").read_text()


def test_the_loss_of_the_networks_that_were_not_trained_to_the_end_fell():
    cells = sorted((PROJECT / "recorded/bounded/evaluate").iterdir())
    assert len(cells) == 6
    for cell in cells:
        history = json.loads((PROJECT / "recorded/bounded/models" / cell.name / "seed-0/history.json").read_text())
        first, last = history[0]["loss"], history[-1]["loss"]
        assert last < first, cell.name
