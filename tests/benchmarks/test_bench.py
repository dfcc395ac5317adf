"""`make bench`: what it measures, keeps, measures again, and says when something fails."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import growth, measuring, rivals, tables
from benchmarks.measuring import Task
from benchmarks.timing import Others, in_turn

CONDITIONS = {"batch": 2, "clock": "wall", "threads": torch.get_num_threads(), "versions": {"torch": torch.__version__}}
ARGUMENTS = argparse.Namespace(
    modes=["eager", "compiled"], batch=2, quantities=["inference"], rounds=3, seconds=1.0, clock="wall", again=None
)


def record(method: str = "deterministic", mode: str = "eager", quantity: str = "inference", **figures: object) -> dict:
    key = {"model": "lenet", "method": method, "mode": mode, "quantity": quantity}
    usual = {"figure": 2.0, "ratio": 1.0, "low": 0.9, "high": 1.1, "others": 0.0, "parameters": 1000}
    return {**key, **({} if "why" in figures else usual), **CONDITIONS, **figures}


DETERMINISTIC = [record(mode="eager"), record(mode="channels_last", figure=1.0), record(mode="compiled", figure=3.0)]


def test_a_step_has_three_rounds_at_least_and_no_more_than_asked() -> None:
    assert [len(times) for times in in_turn([lambda: None, lambda: None], rounds=5)] == [5, 5]
    assert [len(times) for times in in_turn([lambda: time.sleep(0.01)], rounds=5, seconds=0.0)] == [3]


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux tells what other processes do")
def test_the_share_of_other_processes_leaves_out_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both cores of a machine work for ten seconds, of which this process has eight."""
    monkeypatch.setattr("benchmarks.timing.os.cpu_count", lambda: 2)
    monkeypatch.setattr("benchmarks.timing.time.perf_counter", iter((0.0, 10.0)).__next__)
    monkeypatch.setattr("benchmarks.timing.time.process_time", iter((5.0, 13.0)).__next__)
    monkeypatch.setattr(Others, "_busy", staticmethod(iter((100.0, 120.0)).__next__))
    assert Others().share() == pytest.approx(0.6)


def test_what_is_measured_has_its_conditions_and_its_ratio_to_the_deterministic_network() -> None:
    (found,) = measuring.measure(Task("lenet", "ensemble", ["eager"], "inference", 2, 3, 1.0, "wall", "eager"))
    assert (found["method"], found["rounds"], found["batch"]) == ("ensemble", 3, 2)
    assert found["low"] <= found["ratio"] <= found["high"] and found["figure"] > 0
    assert found["parameters"] == 5 * 1_111_946
    assert found["versions"]["torch"] == torch.__version__ and found["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("method", ["smfvi", "ensemble", "mc_dropout"])
def test_memory_needs_no_rounds(method: str) -> None:
    (found,) = measuring.measure(Task("lenet", method, ["eager"], "memory", 2, 3, 1.0, "wall", None))
    assert found["figure"] > 0 and "ratio" not in found


def test_what_a_package_raises_is_the_finding_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: object) -> None:
        raise ValueError("Use a linear | last layer.\nThen much more.")

    monkeypatch.setitem(rivals.RIVALS, "laplace", stops)
    (found,) = measuring.measure(Task("lenet", "laplace", ["eager"], "inference", 2, 3, 1.0, "wall", "eager"))
    assert found["why"] == "ValueError: Use a linear / last layer" and "figure" not in found
    assert len(measuring.sentence(ValueError("x" * 1000))) == 140


def test_the_deterministic_network_comes_in_all_modes_and_others_in_turn_with_its_fastest() -> None:
    (task,) = bench.tasks(ARGUMENTS, "lenet", "deterministic", [])
    assert (task.modes, task.reference) == (["eager", "channels_last", "compiled"], None)
    (task,) = bench.tasks(ARGUMENTS, "lenet", "mnvi", DETERMINISTIC)
    assert (task.modes, task.reference) == (["eager", "compiled"], "channels_last")


@pytest.mark.parametrize(
    ("known", "again", "missing"),
    [
        (record("mnvi"), None, ["compiled"]),
        (record("mnvi", batch=3), None, ["eager", "compiled"]),
        (record("mnvi", threads=99), None, ["eager", "compiled"]),
        (record("mnvi", clock="cpu"), None, ["eager", "compiled"]),
        (record("mnvi", versions={"torch": "1.0"}), None, ["eager", "compiled"]),
        (record("mnvi", others=0.5), None, ["compiled"]),
        (record("mnvi", others=0.5), "busy", ["eager", "compiled"]),
        (record("mnvi", why="it fails"), None, ["compiled"]),
        (record("mnvi", why="it fails"), "failed", ["eager", "compiled"]),
        (record("mnvi"), "all", ["eager", "compiled"]),
    ],
)
def test_a_run_measures_what_is_missing_or_was_measured_otherwise(
    known: dict, again: str | None, missing: list[str]
) -> None:
    arguments = argparse.Namespace(**{**vars(ARGUMENTS), "again": again})
    (task,) = bench.tasks(arguments, "lenet", "mnvi", [*DETERMINISTIC, known])
    assert task.modes == missing


PROGRAMS = {
    "import sys; print('hello'); sys.exit('no memory')": "its process ended with 1: no memory",
    "import time; time.sleep(60)": "not done in 1 s",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_process_that_dies_or_takes_too_long_leaves_a_reason_and_nothing_half_compiled(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = bench.subprocess.Popen
    monkeypatch.setattr(bench, "COMPILED", tmp_path)
    (tmp_path / "half.so").touch()
    (tmp_path / "whole.so").write_text("code")
    monkeypatch.setattr(
        bench.subprocess, "Popen", lambda command, **settings: start([sys.executable, "-c", program], **settings)
    )
    task = Task("lenet", "mnvi", ["eager", "compiled"], "inference", 2, 3, 1.0, "wall", "eager")
    limit = 1.0 if "sleep" in program else 60.0
    assert [(r["mode"], r["why"]) for r in bench.run([task], limit)] == [
        ("eager", PROGRAMS[program]),
        ("compiled", PROGRAMS[program]),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["whole.so"]


def test_a_run_keeps_each_record_shows_the_table_and_says_what_a_busy_machine_spoilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(tasks: list[Task], limit: float) -> list[dict]:
        return [record(task.method, mode, others=0.4) for task in tasks for mode in task.modes]

    monkeypatch.setattr(bench, "run", run)
    path = tmp_path / "bench.json"
    few = ["--models", "lenet", "--methods", "mnvi", "--quantities", "inference", "--batch", "2"]
    monkeypatch.setattr("sys.argv", ["benchmarks", *few, "--output", str(path)])
    bench.main()
    kept = json.loads(path.read_text())["records"]
    assert [(r["method"], r["mode"]) for r in kept] == [
        *(("deterministic", mode) for mode in ("eager", "channels_last", "compiled")),
        *(("mnvi", mode) for mode in ("eager", "compiled")),
    ]
    shown = capsys.readouterr()
    assert "| MNVI, exact | eager | ~1.00 (0.90–1.10; 2 ms) | not run | not run | 1,000 |" in shown.out
    assert "### resnet18\n\nNot run." in shown.out
    assert "too busy to trust 5 of 5 figures" in shown.err and "--again busy" in shown.err
    monkeypatch.setattr(bench, "run", lambda *_: pytest.fail("it measures what it has"))
    bench.main()


def test_a_row_that_failed_says_why_below_the_table() -> None:
    records = [
        *DETERMINISTIC,
        record("laplace", why="no linear layer"),
        record("laplace", "compiled", why="no linear layer"),
    ]
    table = tables.markdown("lenet", records)
    assert "| laplace-torch | eager | failed: 1 | not run | not run | – |" in table
    assert table.endswith("\n\n1. no linear layer")


def test_memory_is_compared_with_the_deterministic_network_that_keeps_least() -> None:
    memory = [("deterministic", "eager", 8), ("deterministic", "compiled", 4), ("mnvi", "eager", 16)]
    records = [record(method, mode, "memory", figure=mib * 2**20) for method, mode, mib in memory]
    assert "| MNVI, exact | eager | not run | not run | 4.00 (16 MiB) | 1,000 |" in tables.markdown("lenet", records)


def test_the_environment_of_other_packages_is_made_once_for_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(rivals, "FOLDER", tmp_path / "rivals")
    monkeypatch.setattr(rivals.venv, "create", lambda folder, **_: folder.mkdir(exist_ok=True))
    monkeypatch.setattr(rivals.subprocess, "run", lambda command, check: calls.append(command))
    for _ in range(2):
        assert rivals.interpreter() == str(tmp_path / "rivals" / "bin" / "python")
    (tmp_path / "rivals" / "rivals.txt").write_text("torch==1.0\n")
    rivals.interpreter()
    assert [command[-2:] for command in calls] == [["--requirement", str(rivals.PINNED)]] * 2


def test_all_other_packages_are_pinned_with_the_torch_of_this_project() -> None:
    pinned = dict(line.split("==") for line in rivals.PINNED.read_text().splitlines() if not line.startswith("#"))
    locked = (rivals.PINNED.parent.parent / "requirements.lock").read_text()
    assert f"torch=={pinned['torch']}\n" in locked
    assert {name.removesuffix("[cpu]") for name in pinned} >= set(rivals.PACKAGES.values())
    assert rivals.PACKAGES.keys() == rivals.RIVALS.keys() < tables.LABELS.keys()


def test_the_page_shows_the_recorded_figures() -> None:
    page = tables.PAGE.read_text()
    assert tables.rendered(json.loads(tables.RESULTS.read_text())) in page
    assert growth.markdown(json.loads(growth.RESULTS.read_text())["records"]) in page


def test_growth_is_the_slope_of_the_logarithms() -> None:
    assert growth.power([1, 2, 4, 8], [3 * value**1.5 for value in (1, 2, 4, 8)]) == pytest.approx(1.5)


def test_growth_is_measured_for_all_methods_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "USUAL", {"width": 4, "depth": 2, "batch": 2, "size": 4})
    monkeypatch.setattr(growth, "VARIED", {"width": (4, 8)})
    records = [
        one for value in (4, 8) for quantity in growth.QUANTITIES for one in growth.measure("width", value, quantity, 1)
    ]
    assert len(records) == 2 * 2 * 3 and all(r["low"] <= r["milliseconds"] <= r["high"] for r in records)
    assert "not run" not in growth.markdown(records) and "| width | 4 – 8 |" in growth.markdown(records)
    growth.draw(records, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


# Ratios to the eager deterministic network of the implementation that the paper's authors published.
RELEASED = {"lenet": {"inference": 5.4, "training": 3.7}}


@pytest.mark.parametrize("model", RELEASED)
def test_the_recorded_figures_are_better_than_the_released_implementations(model: str) -> None:
    records = json.loads(tables.RESULTS.read_text())["records"]
    for quantity, bar in RELEASED[model].items():
        (eager,) = tables.same(records, model=model, method="deterministic", mode="eager", quantity=quantity)
        ours = tables.same(records, model=model, method="mnvi", quantity=quantity)
        assert min(one["figure"] for one in ours) / eager["figure"] < bar, quantity
