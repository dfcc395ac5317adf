"""What the README shows is what is recorded."""

import shutil
from pathlib import Path

from pipeline.report.writing import fill_readme

PROJECT = Path(__file__).parents[2]


def test_the_readme_s_tables_are_those_of_the_recorded_scores(tmp_path):
    shutil.copy(PROJECT / "README.md", tmp_path)
    fill_readme(tmp_path / "README.md", [PROJECT / "recorded/uci"])
    assert (tmp_path / "README.md").read_text() == (PROJECT / "README.md").read_text()
