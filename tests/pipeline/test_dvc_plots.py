"""`dvc plots show` draws without the internet."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_plots_load_nothing_and_hold_their_library(tmp_path):
    (tmp_path / "rejection.csv").write_text("cell,rate,misclassification\na,0,0.5\na,1,0.1\n")
    run("dvc", "init", "--quiet", "--no-scm", folder=tmp_path)
    shutil.copytree(ROOT / ".dvc" / "plots", tmp_path / ".dvc" / "plots", dirs_exist_ok=True)
    run("tools.offline_plots", folder=tmp_path)
    axes = ("-x", "rate", "-y", "misclassification", "-t", "line_per_cell")
    run("dvc", "plots", "show", "rejection.csv", *axes, folder=tmp_path)
    page = (tmp_path / "dvc_plots" / "index.html").read_text()
    assert "window.vegaEmbed=" in page and "vegaEmbed('#" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?https?:""", page)
    assert page.count("</script>") == 2  # the library's and the plot's: nothing inside ends them early


def test_outside_a_project_the_message_says_where_to_go(tmp_path):
    command = [sys.executable, "-m", "tools.offline_plots"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "error: there is no folder .dvc here; run this in the project's folder\n",
    )
