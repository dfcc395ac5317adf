"""Stages that are killed or interrupted: the same command resumes in the same MLflow run, with the same results.

Preparing is stopped in tests/pipeline/test_prepare.py, the search and the training of images in
test_stopped_images.py, the training of tables in test_resume_regression.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import report_study
from commands import WAYS, command, disturb, one_cpu, tracked, ways
from image_study import trained
from tiny_study import cell as tiny_cell
from tiny_study import make_study

from pipeline import files, searching
from pipeline.regression import folds, search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("folder")]

OF_THE_DRIVER = WAYS[:2]
WHILE_STOPPED = {"driver killed": "RUNNING", "driver interrupted": "KILLED"}  # nobody is left to say the former


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("way", ways("driver interrupted", OF_THE_DRIVER))
def test_an_evaluation_goes_on_from_the_seeds_it_had_done(way: str) -> None:
    cell = trained("mnvi", seeds=4)
    state = cell.state("evaluate")

    def predicted(seed: int) -> list[Path]:
        return [*state.glob(f"progress/seed-{seed}-*.pt")]

    disturb(way, lambda: predicted(0), "evaluate", cell.name)
    assert not cell.evaluate.exists() and not predicted(3)
    assert tracked() == {"evaluate mnvi": WHILE_STOPPED[way]}
    first = predicted(0)[0].stat().st_mtime_ns
    assert command("evaluate", cell.name)[0] == 0
    assert predicted(0)[0].stat().st_mtime_ns == first
    assert tracked() == {"evaluate mnvi": "FINISHED"}

    after = json.loads((cell.evaluate / "scores.json").read_text())["metrics"]
    for folder in (state, cell.evaluate):
        files.remove(folder)
    assert command("evaluate", cell.name)[0] == 0
    undisturbed = json.loads((cell.evaluate / "scores.json").read_text())["metrics"]
    for metrics in (after, undisturbed):
        del metrics["inference_ms"]
    assert after == undisturbed


@pytest.mark.parametrize("way", ways("driver killed", OF_THE_DRIVER))
def test_a_report_that_was_cut_off_leaves_the_one_before_and_is_made_anew(way: str) -> None:
    settings = report_study.write_params(["boston-mnvi", "lenet-mnist-mnvi"])
    report_study.write_results(settings)
    assert command("report")[0] == 0
    results = settings.study.results
    before = contents(results / "report")

    def a_figure_is_drawn() -> bool:
        return any(results.glob(".report.*.tmp/figures/*"))

    for scores in results.glob("evaluate/*/scores.json"):
        scores.touch()  # newer than the report
    disturb(way, a_figure_is_drawn, "report")
    assert contents(results / "report") == before
    files.remove(results / "report")  # as DVC does before it runs a stage
    assert command("report")[0] == 0
    assert contents(results / "report") == before
    assert not list(results.glob(".*.tmp"))


RATES = [0.05, 0.01, 0.001]


@pytest.mark.soak  # `make test` stops the search among images of test_stopped_images.py
@pytest.mark.parametrize("way", ways("driver killed"))
def test_a_search_among_tables_goes_on_from_the_trials_that_had_ended(ray_is_up: None, way: str) -> None:
    make_study(Path.cwd(), grid={"learning_rate": RATES})
    cell = tiny_cell("mnvi")

    def ended() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in cell.state("tune").glob("progress/trial-*.json")}

    with one_cpu():  # trials come one after the other
        disturb(way, ended, "tune", cell.name, worker="ImplicitFunc")
    if way != "worker killed":
        assert not cell.tune.exists()
        assert tracked()["tune mnvi"] == WHILE_STOPPED[way]
        kept = ended()
        assert 0 < len(kept) < len(RATES)
        assert command("tune", cell.name)[0] == 0
        assert kept.items() <= ended().items()
    assert set(tracked().values()) == {"FINISHED"} and len(tracked()) == 1 + len(RATES)
    table, tests = folds.load(cell)
    parts = folds.validation_folds(table, tests)
    trials = json.loads((cell.tune / "trials.json").read_text())
    assert sorted(trial["hyperparameters"]["learning_rate"] for trial in trials) == sorted(RATES)
    for trial in trials:
        undisturbed = search.objective(searching.short(cell.with_hyperparameters(trial["hyperparameters"])), parts)
        assert trial["objective"] == pytest.approx(undisturbed, rel=1e-6)
