"""Which code a stage's result depends on, and which changes of it count."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import params
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


@pytest.fixture(scope="module")
def known() -> dict[Any, Any]:
    """What was found in files that have not changed since."""
    return {}


@pytest.fixture
def changed(
    project: Path, known: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, Callable[[str], str]], set[tuple[str, str]]]]:
    """Which stages a change of one file of a copy of the code concerns."""
    folder_of = code._folder
    monkeypatch.setattr(
        code, "_folder", lambda package: project / package if package in code.OWN else folder_of(package)
    )
    monkeypatch.setattr(code, "_file", code._file.__wrapped__)

    def by_content(name: str) -> None:
        """Remembers as long as a file stays the same, where the code itself remembers as long as it runs."""
        function = getattr(code, name).__wrapped__

        def asked(module: str, *further: Any) -> Any:
            file = code._file(module)
            key = name, module, file and file.read_bytes(), *further
            if key not in known:
                known[key] = function(module, *further)
            return known[key]

        monkeypatch.setattr(code, name, asked)

    for name in ("_tree", "_digest", "_used"):
        by_content(name)
    study = params.load(ROOT / "params.yaml")

    def digests() -> dict[tuple[str, str], dict[str, str]]:
        code._of.cache_clear()
        stages = [(kind, stage) for kind in CELLS for stage in code.ENTRIES[kind]]
        found = {(kind, stage): study.cell(CELLS[kind]).code(stage) for kind, stage in stages}
        return {**found, ("data", "prepare"): code.of("data", "prepare")}

    def which(name: str, change: Callable[[str], str]) -> set[tuple[str, str]]:
        path = project / name
        before, text = digests(), path.read_text()
        path.write_text(change(text))
        try:
            after = digests()
        finally:
            path.write_text(text)
        assert before.keys() == after.keys() == set(EVERYTHING)
        return {stage for stage in before if before[stage] != after[stage]}

    yield which
    code._of.cache_clear()


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


def plain(text: str) -> Any:
    return code._plain(ast.parse(text))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('raise ValueError(f"{n} is too small")', 'raise ValueError(f"expected more than {least}, got {n}")'),
        ('raise ValueError("too small")', 'raise ValueError(f"{n} is too small")'),
        ('warnings.warn("slow", stacklevel=2)', 'warnings.warn("this is slow", stacklevel=2)'),
        ('logger.warning("%d are left", n)', 'logger.warning("left over: %d", n)'),
    ],
)
def test_texts_of_errors_and_warnings_count_for_nothing(before, after):
    assert plain(before) == plain(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('mode = "nearest"', 'mode = "linear"'),
        ('if mode == "a":\n    raise ValueError("no")', 'if mode == "b":\n    raise ValueError("no")'),
        ('raise ValueError("no")', 'raise KeyError("no")'),
        ('raise TooSmall("no", 3)', 'raise TooSmall("no", 4)'),
        ('warn("slow", stacklevel=2)', 'warn("slow", stacklevel=3)'),
        ('run("slow")', 'run("fast")'),
        ('run("slow")\nraise ValueError', 'run("fast")\nraise ValueError'),
    ],
)
def test_other_texts_and_the_rest_of_a_raise_statement_count(before, after):
    assert plain(before) != plain(after)


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
