"""The report of a campaign: the faults that hit, the time to recover from them, and the results of the checks."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from pipeline import files
from tools.faults.injections import FAULTS

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks/results/faults.json", ROOT / "docs/faults.md"
CHECKS = {
    "ended": "The study ended; no command failed without a fault.",
    "told": "Each damaged shard is named, and so is each lack of memory, after which no training is repeated.",
    "numbers": "Chosen hyperparameters, trials, histories, metrics and scores equal the undisturbed ones.",
    "weights": "All weights equal the undisturbed ones, to the last bit.",
    "runs": "MLflow has the same runs, each once.",
    "params": "Every run has the same parameters.",
    "metrics": "Every metric of every run has the same steps and values, each once.",
    "states": "Every run is FINISHED.",
    "models": "MLflow has the same models, logged and registered once.",
    "files": "No temporary file is left; every .json, .yaml and .pt can be read.",
    "cache": "Every object of DVC's cache has the checksum that its name states.",
    "status": "`dvc status` reports nothing.",
    "processes": "No orphaned process is left, and no stage, worker or trial on any node.",
    "cluster": "No job runs; no actor of ours and no placement group is left on the cluster.",
}


def write(document: dict[str, Any], folder: Path | None) -> None:
    """Writes the report to a folder, or in place of the recorded one."""
    results, page = (RESULTS, PAGE) if folder is None else (folder / RESULTS.name, folder / PAGE.name)
    files.write_json(results, document)
    files.write_text(page, markdown(document))


def markdown(document: dict[str, Any]) -> str:
    studies = document["studies"]
    hits = [hit for study in studies for hit in study["hits"]]
    unsound = sum(not study["sound"] for study in studies)
    lines = [
        "# Faults",
        "",
        f"Made by `{document['command']}`. It runs the same small study again and again on a Ray cluster of two nodes,",
        "injects faults at random moments, and repeats the same command, `dvc repro`, whenever it fails. The study and",
        "the faults are in `tools/faults`.",
        "",
        f"{len(hits)} of {document['faults']} faults hit, in {_count(studies)}, within {document['minutes']:.0f} "
        f"minutes on {document['machine']}. "
        f"The undisturbed study took {document['undisturbed_seconds']:.0f} s. "
        + (f"**Studies that failed a check: {unsound}.**" if unsound else "Every study passed every check."),
        "",
        "The second node is a network namespace at the end of a virtual cable; pulling the cable cuts it off.",
        "The study is on a small disk in memory, which one fault fills up. Studies alternate: in one, the stages",
        "connect to the cluster (`RAY_ADDRESS=host:port`), in the next they are jobs (`RAY_ADDRESS=http://host:port`).",
        "A node without memory is one that reads so in `/proc/meminfo`: Ray's memory monitor then kills a worker.",
        *_without_hits(hits),
        "",
        "| fault | hits | command survived | command repeated | recovery (median, longest) | in stages |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(kind, [hit for hit in hits if hit["kind"] == kind]) for kind in FAULTS),
        "",
        "A study has recovered when it finishes an epoch, a trial, a chunk of networks or a stage after the fault.",
        "Further faults may hit before that.",
        "",
        "| check, after every study | studies that passed |",
        "| --- | --- |",
        *(f"| {text} | {_passed(studies, check)} |" for check, text in CHECKS.items()),
    ]
    for number, study in enumerate(studies, 1):
        for check, problems in study["problems"].items():
            if not problems:
                continue
            lines += [f"\nStudy {number} ({study['mode']}), {check}:\n", *(f"    {line}" for line in _lines(problems))]
    return "\n".join(lines) + "\n"


def _without_hits(hits: list[dict[str, Any]]) -> list[str]:
    missing = [kind for kind in FAULTS if kind not in {hit["kind"] for hit in hits}]
    return ["", f"This campaign has no hit of: {', '.join(missing)}."] if missing else []


def _row(kind: str, hits: list[dict[str, Any]]) -> str:
    times = [hit["recovered"] for hit in hits if hit["recovered"] is not None]
    spans = f"{statistics.median(times):.0f} s, {max(times):.0f} s" if times else "–"
    stages = Counter(hit["stage"].split(" ")[0] for hit in hits)
    ended = sum(hit["ended_command"] for hit in hits)
    where = _counted(stages)
    victims = Counter(hit["victim"] for hit in hits)
    what = f"{kind} ({_counted(victims)})" if len(victims) > 1 else kind
    return f"| {what} | {len(hits)} | {len(hits) - ended} | {ended} | {spans} | {where or '–'} |"


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def _count(studies: list[dict[str, Any]]) -> str:
    return "one study" if len(studies) == 1 else f"{len(studies)} studies"


def _passed(studies: list[dict[str, Any]], check: str) -> str:
    if not any(check in study["problems"] for study in studies):
        return "not checked"
    return f"{sum(study['problems'].get(check) == [] for study in studies)} of {len(studies)}"


def _lines(problems: list[str]) -> list[str]:
    return [line for problem in problems for line in problem.splitlines()]


def main() -> None:
    """Writes the page again from the recorded figures."""
    files.write_text(PAGE, markdown(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
