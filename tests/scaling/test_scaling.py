"""The scaling benchmarks measure what they say, the model is the one it states, and the page shows both."""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ray.tune.execution.tune_controller import TuneController
from two_workers import together

from benchmarks.scaling import ddp, loading, million, model, steps, trials
from benchmarks.scaling.__main__ import PAGE, rendered
from pipeline import searching
from pipeline.data import shard_format, shards

PLAIN = model.Method("plain", ratio=1.0, backward=2 / 3, fixed=0.0, bytes=40_000_000)
IDEAL = model.Inputs(gpu_gbyte=1e9, gpu_latency=0.0, node_gbit=1e9, node_latency=0.0, jitter=0.0)


def test_the_page_shows_the_recorded_figures() -> None:
    page = PAGE.read_text()
    for mark, text in rendered().items():
        assert f"<!-- {mark} -->\n{text}\n<!-- /{mark} -->" in page, f"run `python -m benchmarks.scaling` ({mark})"


@pytest.mark.skipif(not ddp.RESULTS.exists(), reason="not measured yet: python -m benchmarks.scaling.ddp")
def test_two_workers_with_resnet18_are_recorded_to_lose_less_than_15_percent() -> None:
    rows = ddp.efficiencies(json.loads(ddp.RESULTS.read_text())["records"])
    found = {row["method"]: row["weak"] for row in rows if row["model"] == "resnet18"}
    assert set(found) == set(ddp.METHODS) and min(found.values()) >= 0.85, found


def test_the_bottleneck_of_many_trials_is_what_the_driver_itself_does_longest() -> None:
    parts = {trials.IDLE: 90.0, "MLflow": 20.0, "rest": 5.0}
    counts = {"trials": 1000, "nodes": 16, "cpus_per_node": 2, "trials_per_second": 9.0}
    times = {"seconds": 115.0, "seconds_to_first_end": 10.0, "driver_cpu_seconds": 50.0}
    text = trials.markdown({**counts, **times, "parts": parts})
    assert 'The bottleneck is "MLflow": 20 ms' in text and "50.0 could end per second" in text


def test_a_ring_sends_everything_twice_but_for_one_share() -> None:
    assert model.ring(4, 8e9, 1e9, 0.5) == pytest.approx(2 * 3 / 4 * 8 + 2 * 3 * 0.5)
    assert model.ring(1, 8e9, 1e9, 0.5) == 0.0


def test_without_loss_in_network_and_machines_efficiency_is_one() -> None:
    assert model.efficiency(1, PLAIN, model.Inputs()) == pytest.approx(1.0)
    assert model.efficiency(512, PLAIN, IDEAL) == pytest.approx(1.0)


def test_what_hides_behind_the_backward_pass_costs_nothing() -> None:
    slow = replace(IDEAL, node_gbit=8.0)  # 1 GB/s: 2 · 7/8 · 40 ms for 8 nodes
    assert model.all_reduce(64, PLAIN.bytes, slow) == pytest.approx(0.07, rel=1e-3)
    one = model.step(1, 128, PLAIN, slow)
    hidden = slow.overlap * PLAIN.backward * one
    assert model.step(64, 128, PLAIN, slow) - one == pytest.approx(0.07 - hidden, rel=1e-3)
    assert model.efficiency(64, PLAIN, replace(slow, images_per_second=500.0)) == pytest.approx(1.0)


def test_the_table_says_images_per_second_and_what_reading_them_needs() -> None:
    given = replace(IDEAL, images_per_second=1000.0, image_kbyte=20.0, images_per_core=500.0)
    one, eight = model.markdown([PLAIN], given, (1, 8)).splitlines()[2:]
    assert one.startswith("| 1 | plain | 1,000 | 128 | – | 1.00 | – |") and one.endswith("| 20 MB/s | 2.0 |")
    assert eight.startswith("| 8 | plain | 8,000 | 1,024 |") and eight.endswith("| 160 MB/s | 2.0 |")


def test_time_that_no_batch_makes_smaller_costs_efficiency_on_the_same_global_batch_only() -> None:
    method = replace(PLAIN, fixed=16.0)  # as long as sixteen images
    assert model.efficiency(8, method, IDEAL) == pytest.approx(1.0)
    assert model.efficiency(8, method, IDEAL, global_batch=128) == pytest.approx(16 / (16 + 16) * (128 + 16) / 128)


def test_methods_are_taken_from_the_measured_parts() -> None:
    def record(name: str, forward: float, backward: float, kl: float) -> dict:
        times = {"forward": forward, "backward": backward, "kl": kl, "update": 10.0, "all_reduce": 1.0}
        return {"method": name, "bytes": 4, "milliseconds": times}

    records = [record("deterministic", 100.0, 300.0, 0.0), record("mnvi", 300.0, 600.0, 100.0)]
    plain, mnvi = model.methods({"batch": 8, "records": records})
    assert (plain.ratio, plain.backward, plain.fixed) == (1.0, 0.75, 8 * 10 / 400)
    assert (mnvi.ratio, mnvi.fixed) == (2.0, 8 * 110 / 400)


def test_efficiency_is_the_median_of_the_ratios_within_rounds() -> None:
    rounds = [(10.0, 18.0), (20.0, 20.0), (10.0, 16.0)]  # alone, together
    records = [
        {"model": "m", "method": "x", "images_per_second": {"alone": a, "apart": b, "weak": b, "strong": b}}
        for a, b in rounds
    ]
    (row,) = ddp.efficiencies(records)
    assert (row["weak"], row["alone"]) == (0.8, 10.0)


def test_the_clock_leaves_the_first_steps_out_and_ends_after_the_last() -> None:
    clock = ddp.Clock(steps=2)
    answers = [clock() for _ in range(ddp.WARM_UP + 3)]
    assert answers == [False] * (ddp.WARM_UP + 2) + [True]
    clock.times = [0.0, *(100.0 + 3 * step for step in range(3))]
    assert clock.seconds_per_step() == 3.0


TINY = ddp.Model("lenet-mnist", (1, 28, 28), batch=4, steps=2)


def measure_together(rank: int, folder: str) -> None:
    ddp.work({"models": {"tiny": TINY}, "rounds": 1, "folder": folder})


@pytest.mark.slow
def test_two_workers_measure_every_arrangement_with_the_loop_of_the_study(tmp_path: Path) -> None:
    ddp.write_images(tmp_path / "tiny", TINY)
    together(measure_together, tmp_path / "meeting", str(tmp_path))
    records = [json.loads(line) for line in (tmp_path / ddp.RECORDS).read_text().splitlines()]
    assert [record["method"] for record in records] == list(ddp.METHODS)
    for record in records:
        assert list(record["images_per_second"]) == list(ddp.ARRANGEMENTS)
        assert min(record["images_per_second"].values()) > 0
    assert not list(tmp_path.glob("state-*/checkpoint-*"))


def test_the_driver_s_time_is_told_apart_by_function() -> None:
    scope: dict = {"pause": lambda: time.sleep(0.02)}
    exec(compile("def track():\n    pause()\n", "somewhere/searching.py", "exec"), scope)
    profile = cProfile.Profile()
    profile.runcall(scope["track"])
    found = trials.parts(pstats.Stats(profile), wall=1.0)
    tracked = found["MLflow: a run for each trial"]
    assert 0.02 <= tracked < 1.0 and found["rest"] == pytest.approx(1.0 - tracked)


def test_functions_that_the_driver_s_time_is_told_apart_by_are_there() -> None:
    ours = {("searching.py", name) for name in vars(searching)}
    tunes = {("tune_controller.py", name) for name in vars(TuneController)}
    assert set(trials.PARTS.values()) <= ours | tunes | {("worker.py", "wait")}


def test_the_table_of_steps_says_what_a_method_sends_more() -> None:
    times = dict.fromkeys(steps.PARTS, 1.0)
    records = [
        {"method": name, "parameters": size // 4, "bytes": size, "milliseconds": times}
        for name, size in (("deterministic", 4000), ("mnvi", 4004))
    ]
    assert "| mnvi | 1,001 | 4,004 bytes (+0.10%) |" in steps.markdown({"records": records})


@pytest.mark.slow
def test_photographs_go_through_every_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "BATCH", 2)
    document = loading.measure(None, count=24, rounds=1, steps=1, batch=1, litdata=False)
    assert set(document["one_core"]) == set(document["loader_per_core"]) == {"ours", "ImageFolder", loading.PLAIN_256}
    assert 50e3 < document["bytes"]["whole"] < 150e3 and 15e3 < document["bytes"]["stored"] < 40e3
    assert all(0 <= found["waiting"] < 1 for found in document["waiting"].values())


def test_the_loader_is_recorded_to_be_half_as_fast_again_as_imagefolder_and_steps_not_to_wait() -> None:
    document = json.loads(loading.RESULTS.read_text())
    for kind in ("one_core", "loader_per_core"):
        assert document[kind]["ours"] >= 1.5 * document[kind]["ImageFolder"]
    assert max(found["waiting"] for found in document["waiting"].values()) < 0.05


@pytest.mark.slow
def test_many_photographs_are_prepared_uploaded_and_read_with_bounded_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark of a million, with 3,000: each is read once, in 120 shards of which a node keeps 40."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "")  # the benchmark sets them; this puts them back
    monkeypatch.setenv("MNVI_NODE_CACHE", "")
    monkeypatch.setenv("MNVI_NODE_CACHE_GB", "")
    monkeypatch.setattr(shard_format, "PER_SHARD", 17)
    monkeypatch.setattr(shards, "WINDOW", 20)
    found = million.measure(3000, kept=40)
    assert found["shards"] == 118 + 59 + 6  # of training, validation and test images
    assert 0 < found["read"]["cache"] <= found["read"]["cache_limit"] < 0.3 * found["bytes"]
    assert found["read"]["peak"] > 0
