"""Measures what a search of a thousand trials costs besides training: the study's own search on many Ray nodes.

The nodes are Ray's own (each with its raylet and its agents), all on this machine, with CPUs that are only declared. A
trial reports one epoch at once and ends, so that all time goes into scheduling and bookkeeping. The benchmark profiles
the driver and attributes its time to the functions in `PARTS`.

    python -m benchmarks.scaling.trials               # five minutes; writes benchmarks/results/scaling_trials.json
    python -m benchmarks.scaling.trials --nodes 2 --trials 50
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.scaling import setting
from benchmarks.timing import write
from pipeline import cluster, files, private_ray

RESULTS = setting.RESULTS / "scaling_trials.json"
CELL = "lenet-mnist-mnvi"
OBJECT_STORE = 100_000_000

IDLE = "waiting for trials"
# Functions of the driver, by file and name; none of them calls another.
PARTS = {
    "MLflow: a run for each trial": ("searching.py", "track"),
    "Tune: its own notes on disk": ("tune_controller.py", "checkpoint"),
    "Tune: starting actors": ("tune_controller.py", "_maybe_add_actors"),
    "Tune: new trials": ("tune_controller.py", "_maybe_update_trial_queue"),
    IDLE: ("worker.py", "wait"),
}


def trial(point: dict[str, Any], state: Path, **unused: Any) -> None:
    """Stands in for `search.train_trial`: reports an epoch that takes no time, and writes its record."""
    from ray import tune

    from pipeline.images import search

    epoch = {"epoch": 1, "validation_nll": point["prior_variance"], "seconds": 0.0}
    tune.report(epoch)
    record = {"hyperparameters": point, "objective": epoch["validation_nll"], "epochs": 1, "status": "finished"}
    path = state / search.trial_folder(point) / search.RECORD
    files.write_json(path, {**record, "seconds": 0.0, "history": [epoch]})


@contextmanager
def nodes(number: int, cpus: int) -> Iterator[None]:
    """Starts a cluster of ``number`` nodes and connects this process to it."""
    from ray.cluster_utils import Cluster

    os.environ |= {private_ray.MODE: "token", private_ray.TOKEN: secrets.token_hex(32)}
    private_ray.reread_environment()
    with tempfile.TemporaryDirectory(prefix="many-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        settings = {"num_cpus": cpus, "object_store_memory": OBJECT_STORE, "temp_dir": f"{folder}/ray"}
        made = Cluster()
        try:
            for _ in range(number):
                made.add_node(node_ip_address="127.0.0.1", include_dashboard=False, **settings)
            os.environ["RAY_ADDRESS"] = made.address
            with cluster.connected():
                yield
        finally:
            made.shutdown()


def measure(number: int, cpus: int, trials: int) -> dict[str, Any]:
    from pipeline.images import search

    search.train_trial = trial
    study = setting.images_study()
    axis = [float(value) for value in range(1, trials + 1)]
    cell = replace(study.cell(CELL), grid={"prior_variance": axis}, searched=True)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        setting.write_images(cell.data, (1, 28, 28), 2)
        with nodes(number, cpus):
            profile = cProfile.Profile()
            began, used = time.time(), time.process_time()
            profile.runcall(search.run, cell)
            wall, used = time.time() - began, time.process_time() - used
        ends = sorted(path.stat().st_mtime for path in cell.state("tune").glob(f"progress/*/{search.RECORD}"))
    assert len(ends) == trials
    stats = pstats.Stats(profile)
    found = parts(stats, wall)
    if gone := [part for part, seconds in found.items() if seconds == 0]:
        raise RuntimeError(
            f"the driver was never in {', '.join(gone)}: update PARTS, whose functions have been renamed"
        )
    return {
        "nodes": number,
        "cpus_per_node": cpus,
        "trials": trials,
        "seconds": wall,
        "seconds_to_first_end": ends[0] - began,
        "trials_per_second": (trials - 1) / (ends[-1] - ends[0]),
        "driver_cpu_seconds": used,
        "parts": found,
        "longest": longest(stats),
    }


def parts(stats: pstats.Stats, wall: float) -> dict[str, float]:
    """Seconds that the driver's main thread spends in each part; `rest` is the remaining time."""
    found = dict.fromkeys(PARTS, 0.0)
    for (file, _, name), (_, _, _, cumulative, _) in stats.stats.items():  # type: ignore[attr-defined]
        for part, (of_file, function) in PARTS.items():
            if name == function and Path(file).name == of_file:
                found[part] += cumulative
    return {**found, "rest": wall - sum(found.values())}


def longest(stats: pstats.Stats, number: int = 15) -> list[dict[str, Any]]:
    """The functions with the longest own time in the driver, without their callees."""
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    return [
        {"function": f"{Path(file).name}:{name}", "calls": calls, "seconds": own}
        for (file, _, name), (_, calls, own, _, _) in rows[:number]
    ]


def markdown(document: dict) -> str:
    seconds, trials = document["seconds"], document["trials"]
    lines = [
        f"{trials:,} trials on {document['nodes']} nodes of {document['cpus_per_node']} declared CPUs: "
        f"{seconds:.0f} s in all. Processes started for {document['seconds_to_first_end']:.0f} s until the first one "
        f"ended; from then on {document['trials_per_second']:.1f} ended per second. The driver computed for "
        f"{document['driver_cpu_seconds'] / seconds:.0%} of the time.",
        "",
        "| the driver's main thread | seconds | share | per trial |",
        "| --- | --- | --- | --- |",
    ]
    for part, taken in sorted(document["parts"].items(), key=lambda item: -item[1]):
        lines.append(f"| {part} | {taken:.1f} | {taken / seconds:.0%} | {taken / trials * 1e3:.0f} ms |")
    part, taken = bottleneck(document)
    lines += [
        "",
        f'The bottleneck is "{part}": {taken / trials * 1e3:.0f} ms of '
        "the driver's time for every trial, so that no more "
        f"than {trials / taken:.1f} could end per second, however large the cluster.",
    ]
    return "\n".join(lines)


def bottleneck(document: dict) -> tuple[str, float]:
    """The part on which the driver itself spends the most time, and its seconds."""
    return max(((part, taken) for part, taken in document["parts"].items() if part != IDLE), key=lambda item: item[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--cpus", type=int, default=2, help="declared CPUs per node, one process each (default: 2)")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--output", type=Path, default=RESULTS, help="JSON file for the figures")
    arguments = parser.parse_args()
    cluster.configure()
    document = measure(arguments.nodes, arguments.cpus, arguments.trials)
    write(arguments.output, document)
    print(markdown(document))


if __name__ == "__main__":
    main()
