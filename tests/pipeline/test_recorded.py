"""What the README shows is what is recorded."""

import json
import shutil
from pathlib import Path

from pipeline.report.writing import fill_readme

PROJECT = Path(__file__).parents[2]


def test_the_readme_s_tables_are_those_of_the_recorded_scores(tmp_path):
    shutil.copy(PROJECT / "README.md", tmp_path)
    fill_readme(tmp_path / "README.md", sorted((PROJECT / "recorded").iterdir()))
    assert (tmp_path / "README.md").read_text() == (PROJECT / "README.md").read_text()


def test_the_readme_tells_what_other_folds_gave():
    found = json.loads((PROJECT / "recorded/uci/fold_assignments/wine-mnvi.json").read_text())
    told = f"{found['mean']:.3f} ± {found['std']:.3f}".replace("-", "−")
    best = f"{max(one['mean'] for one in found['assignments']):.3f}".replace("-", "−")
    readme = (PROJECT / "README.md").read_text()
    assert len(found["assignments"]) == 10 and told in readme and f"the best has {best}" in readme
