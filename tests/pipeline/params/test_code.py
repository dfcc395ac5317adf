"""Which code a stage's result depends on, and which changes of it count."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import StudyError
from pipeline.params import code

ROOT = Path(__file__).parents[3]
TRAINING = [(kind, stage) for kind in ("regression", "classification") for stage in ("tune", "train")]
CELLS = {"regression": "boston-mnvi", "classification": "lenet-mnist-mnvi"}
EVERYTHING = [(kind, stage) for kind, stages in code.ENTRIES.items() for stage in stages]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for package in code.OWN:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def digests(project: Path) -> dict[tuple[str, str], str]:
    """What a process that starts there finds."""
    ask = (
        "from pipeline import params\n"
        "from pipeline.params import code\n"
        f"study, names = params.load({str(ROOT / 'params.yaml')!r}), {CELLS}\n"
        "stages = [(kind, stage) for kind in names for stage in code.ENTRIES[kind]]\n"
        "found = {(kind, stage): study.cell(names[kind]).code(stage) for kind, stage in stages}\n"
        "print({**found, ('data', 'prepare'): code.of('data', 'prepare')})"
    )
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=project, env=environment, capture_output=True, text=True, check=True
    )
    found: dict[tuple[str, str], str] = eval(done.stdout)
    return found


@pytest.fixture(scope="module")
def unchanged(project: Path) -> dict[tuple[str, str], str]:
    return digests(project)


@pytest.fixture
def changed(
    project: Path, unchanged: dict[tuple[str, str], str]
) -> Callable[[str, Callable[[str], str]], set[tuple[str, str]]]:
    """Which stages a change of one file concerns."""

    def which(name: str, change: Callable[[str], str]) -> set[tuple[str, str]]:
        path = project / name
        text = path.read_text()
        path.write_text(change(text))
        try:
            after = digests(project)
        finally:
            path.write_text(text)
        assert unchanged.keys() == after.keys() == set(EVERYTHING)
        return {stage for stage in unchanged if unchanged[stage] != after[stage]}

    return which


def with_code(text: str) -> str:
    return f"{text}\nADDED = 1\n"


@pytest.mark.parametrize(
    "name", ["pipeline/images/loop.py", "pipeline/regression/folds.py", "mnvi/likelihoods/gaussian_targets.py"]
)
def test_comments_docstrings_and_layout_count_for_nothing(changed, name):
    def reworded(text: str) -> str:
        _, docstring, rest = text.split('"""', 2)
        return f'"""{docstring} In other words."""\n\n# A comment.\n{rest}\n\n\n# At the end.\n'

    assert changed(name, reworded) == set()


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("pipeline/images/pictures.py", {("classification", "evaluate")}),
        ("pipeline/images/curves.py", {("classification", "evaluate")}),
        ("pipeline/images/seeds.py", {("classification", "predict"), ("classification", "evaluate")}),
        ("pipeline/images/loop.py", {("classification", "tune"), ("classification", "train")}),
        ("pipeline/regression/evaluation.py", {("regression", "evaluate")}),
        ("pipeline/regression/folds.py", {("regression", stage) for stage in ("tune", "train", "evaluate")}),
        ("pipeline/searching.py", {("regression", "tune"), ("classification", "tune")}),
        ("mnvi/metrics/calibration.py", {("classification", "evaluate")}),  # tables have no such metric
        ("mnvi/models/_lenet.py", {("classification", stage) for stage in ("tune", "train", "predict", "evaluate")}),
        ("mnvi/models/_resnet.py", set()),  # no cell here uses it
        ("mnvi/likelihoods/gaussian_targets.py", {("regression", stage) for stage in ("tune", "train", "evaluate")}),
        ("mnvi/likelihoods/poisson.py", set()),  # no cell here uses it
        ("mnvi/posteriors.py", set(EVERYTHING) - {("data", "prepare")}),
        ("pipeline/data/table_sources.py", {("data", "prepare")}),
        ("pipeline/report/drawing.py", set()),
        ("pipeline/tracking/runs.py", set()),
        ("pipeline/images/workers.py", set()),
        ("pipeline/params/settings.py", set()),
        ("pipeline/registry/methods.py", set()),  # their entries are compared,
    ],
)
def test_a_change_concerns_the_stages_whose_results_it_can_change(changed, name, stages):
    assert changed(name, with_code) == stages


@pytest.mark.parametrize(("kind", "stage"), TRAINING)
def test_training_depends_on_no_evaluation_report_or_tracking(kind, stage):
    found = code.of(kind, stage)
    others = {"pipeline.report", "pipeline.tracking", "pipeline.images.evaluation", "pipeline.regression.evaluation"}
    others |= {"mnvi.inference", "mnvi.export"} | ({"mnvi.metrics"} if stage == "train" else set())
    assert not [module for module in found if module.startswith(tuple(others))]
    likelihood = "gaussian_targets" if kind == "regression" else "categorical"
    assert {"mnvi.posteriors", f"mnvi.likelihoods.{likelihood}"} <= found.keys()


def test_rooms_that_count_by_name_count_for_those_who_name_them():
    assert any(module.startswith("mnvi.replicas") for module in code.of("regression", "train"))
    assert not any(module.startswith("mnvi.replicas") for module in code.of("classification", "train"))
    assert "mnvi.metrics" in code.of("classification", "evaluate")


def test_every_module_of_the_tables_exists():
    entries = [code.entry(kind, stage) for kind, stage in EVERYTHING]
    assert not [module for module in (*entries, *code.AROUND, *code.BY_NAME) if code._file(module) is None]


def test_modules_from_outside_count_with_what_they_import_of_their_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    own = tmp_path / "elsewhere"
    own.mkdir()
    (own / "__init__.py").write_text("")
    (own / "nets.py").write_text("from . import parts\nfrom torch import nn\n")
    (own / "parts.py").write_text("WIDTH = 3\n")
    found = code.of("regression", "train", ["elsewhere.nets"])
    assert found.keys() - code.of("regression", "train").keys() == {"elsewhere.nets", "elsewhere.parts"}
    with pytest.raises(StudyError, match=r"elsewhere\.net: no such module below .*elsewhere; check the spelling"):
        code.of("regression", "train", ["elsewhere.net"])
    with pytest.raises(StudyError, match="nowhere_at_all: no package of this name is installed"):
        code.of("regression", "train", ["nowhere_at_all.net"])
