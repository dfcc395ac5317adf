"""Tries networks of third-party collections, and writes a table of what works.

    python -m tools.collections_table                       # all that are not in the table yet
    python -m tools.collections_table timm/resnet t5        # some of them, by collection, name or both
    python -m tools.collections_table --failed              # also those that failed
    python -m tools.collections_table --again               # all of them once more
    python -m tools.collections_table --warnings            # of those that work, only look for dependent values anew

The collections are no dependencies of mnvi: ``pip install timm transformers torchvision`` first. A collection that is
not installed is left out. Every network gets random weights and is converted unmodified. It counts as working when

- forward and backward pass in training and evaluation mode give finite means, variances >= 0 and finite gradients, and
  every parameter gets a gradient that gets one in the network itself;
- in the limit of no noise the mean equals the network's output, and the variance vanishes.

Lines at which values count as independent although they are not (`mnvi.DependenceWarning`) are listed beside it.

Each network runs in a process of its own, so that its memory is released. Figures go to docs/collections.json, the
table to docs/collections.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.collected import timm_families, torchvision_families, transformers_families
from tools.collected.checks import Failed, dependent, examine
from tools.writing import write

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, TABLE = DOCS / "collections.json", DOCS / "collections.md"
COLLECTIONS: dict[str, ModuleType] = {
    "timm": timm_families,
    "transformers": transformers_families,
    "torchvision": torchvision_families,
}
PATIENCE = 600  # seconds for one network
LONGEST = 240  # characters of a reason

_COLUMNS = (
    "network",
    "works",
    "layers with posterior",
    "parameters",
    "share",
    "added by MNVI",
    "input",
    "mean off without noise",
    "dependent values",
)

Records = dict[str, Any]


def names(collection: str) -> list[str]:
    return list(COLLECTIONS[collection].FAMILIES)


def try_one(collection: str, name: str) -> dict[str, Any]:
    """The record of one network, which runs in a process of its own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(collection, name, sender))
    process.start()
    sender.close()
    try:
        record = receiver.recv() if receiver.poll(PATIENCE) else _failure("time", f"takes over {PATIENCE} seconds")
    except EOFError:
        process.join()
        record = _failure("process", f"ended with exit code {process.exitcode}")
    process.kill()
    process.join()
    return record


def _report(collection: str, name: str, sender: Connection) -> None:
    try:
        sender.send(examine(COLLECTIONS[collection].builder(name)))
    except Failed as failed:
        sender.send(_failure(failed.stage, failed.reason))


def _failure(stage: str, reason: str) -> dict[str, Any]:
    short = reason if len(reason) <= LONGEST else reason[: LONGEST - 2] + " …"
    return {"works": False, "stage": stage, "reason": short}


def table(records: Records) -> str:
    lines = [
        "# Networks of third-party collections",
        "",
        "Written by `python -m tools.collections_table`; the top of that file lists the checks. Weights are random and",
        "inputs small. The share is that of weights with a posterior among all parameters; norms, biases, position",
        "tables and what `mnvi.convert` does not know stay deterministic. The last column names lines at which values",
        "count as independent although they are not (`mnvi.DependenceWarning`).",
        "",
        "torchvision's R-CNNs and SSDs need its operators in C++, which the wheel tried here lacks beside a torch",
        "without CUDA: they do not run without mnvi either.",
        "",
        "| collection | version | tried | work | the network itself does not run here |",
        "| --- | --- | --- | --- | --- |",
    ]
    for collection, found in records.items():
        tried = found["networks"].values()
        working = sum(record["works"] for record in tried)
        own = sum(record.get("stage") == "the network itself" for record in tried)
        lines.append(f"| {collection} | {found['version']} | {len(tried)} | {working} | {own} |")
    for collection, found in records.items():
        lines += [
            "",
            f"## {collection}",
            "",
            "| " + " | ".join(_COLUMNS) + " |",
            "| --- " * len(_COLUMNS) + "|",
        ]
        lines += [_line(collection, name, record) for name, record in sorted(found["networks"].items())]
    return "\n".join(lines) + "\n"


def _line(collection: str, name: str, r: dict[str, Any]) -> str:
    label = f"{name}: {timm_families.FAMILIES[name]}" if collection == "timm" else name
    if not r["works"]:
        reason = r["reason"].replace("|", "\\|")
        return f"| {label} | no, {r['stage']}: {reason} |" + " |" * (len(_COLUMNS) - 2)
    off = f"{r['error_without_noise']:.0e}" + ("" if r["precision"] == "float64" else f" ({r['precision']})")
    cells = ["yes", r["layers"], f"{r['parameters']:,}", f"{100 * r['share']:.1f} %", f"{r['added']:,}", r["size"], off]
    cells.append("; ".join(r.get("dependent", ["not looked for"])) or "none")
    return f"| {label} | " + " | ".join(map(str, cells)) + " |"


def _is_asked_for(wanted: list[str], collection: str, name: str) -> bool:
    return bool({collection, name, f"{collection}/{name}"} & set(wanted))


def _recorded() -> Records:
    found: Records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    return found


def _record(collection: str, name: str, record: dict[str, Any]) -> None:
    """Add to what the file holds now: several of these commands may run at a time."""
    records = _recorded()
    found = records.setdefault(collection, {"networks": {}})
    found["version"] = importlib.metadata.version(COLLECTIONS[collection].PACKAGE)
    found["networks"][name] = record
    write(RECORDS, json.dumps(records, indent=1, sort_keys=True) + "\n")
    write(TABLE, table(records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="default: all that are not yet in docs/collections.json")
    parser.add_argument("--again", action="store_true", help="also try networks that docs/collections.json already has")
    parser.add_argument("--failed", action="store_true", help="also try networks that failed before")
    parser.add_argument("--warnings", action="store_true", help="only look for warnings of dependent values anew")
    arguments = parser.parse_args()
    for collection, families in COLLECTIONS.items():
        if importlib.util.find_spec(families.PACKAGE) is None:
            print(f"{collection} is not installed: pip install {families.PACKAGE}", flush=True)
            continue
        known = _recorded().get(collection, {"networks": {}})["networks"]
        for name in names(collection):
            if arguments.warnings:
                if known.get(name, {}).get("works") and _is_asked_for(
                    arguments.networks or [collection], collection, name
                ):
                    found = dependent(COLLECTIONS[collection].builder(name))
                    print(f"{collection}/{name:32} {found}", flush=True)
                    _record(collection, name, {**known[name], "dependent": found})
                continue
            due = arguments.again or name not in known or (arguments.failed and not known[name]["works"])
            if arguments.networks:
                due = _is_asked_for(arguments.networks, collection, name) and (due or not arguments.failed)
            if not due:
                continue
            record = try_one(collection, name)
            said = record["seconds"] if record["works"] else f"{record['stage']}: {record['reason']}"
            print(f"{collection}/{name:32} {said}", flush=True)
            _record(collection, name, record)


if __name__ == "__main__":
    main()
