"""The state that stages resume from. If settings, code or data change, the state is set aside, never deleted.

A stage keeps its state in `work/<results>/<stage>/<cell>/progress`. A file there records the settings, code and data
that the state was made for. If they differ now, the state moves to `set-aside/<date>-<what differs>` beside it, and the
stage starts anew.

    python -m pipeline.state list                                  list the state set aside for all cells of the study
    python -m pipeline.state adopt CELL STAGE/NAME                 put state back; the stage continues from it as it is
    python -m pipeline.state set-aside CELL STAGE                  start a stage anew without changing anything
    python -m pipeline.state remove CELL STAGE/NAME                delete state; only this command does so
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import console, params, storage
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.params.cells import WORK
from pipeline.storage import Anywhere

PROGRESS, ASIDE, MARK = "progress", "set-aside", "made-for.json"
STAGES = ("tune", "train", "evaluate")
SHOWN = 5  # differences that a message names
OF_0_1 = re.compile(r"(chunks|finished)|(seed|trial)-.*")  # what version 0.1 kept beside what is `progress` now

MadeFor = dict[str, Any]  # settings, code, data: as JSON knows them


def progress(state: Anywhere, cell: Cell, stage: str, made_for: MadeFor) -> Anywhere:
    """The folder to resume from. State made for other settings, code or data is set aside first."""
    folder, made_for = state / PROGRESS, json.loads(json.dumps(made_for, default=str))
    mark = _read_mark(folder)
    if mark is None and not storage.names(folder):
        _tell_of_0_1(state, cell, stage)
        _write_mark(folder, made_for)
        return folder
    differs = ["unmarked"] if mark is None else differences(mark["made_for"], made_for)
    if not differs:
        if mark is not None and mark.get("adopt"):  # it fits by now: a later change is a change again
            _write_mark(folder, made_for, adopted=mark.get("adopted", []))
        return folder
    if mark is not None and mark.get("adopt"):
        say(f"{cell.name}: {stage} continues from adopted state, although these differ: {_listed(differs)}")
        _write_mark(folder, made_for, adopted=[*mark.get("adopted", []), differs])
        return folder
    name = _set_aside(state, _reason(differs[0]))
    say(
        f"{cell.name}: {stage} starts anew, because its state was made for something else: {_listed(differs)}.\n"
        f"The state is kept in {state / ASIDE / name}. To continue from it instead:\n"
        f"  python -m pipeline.state adopt {cell.name} {stage}/{name}\n"
        f"To delete it: python -m pipeline.state remove {cell.name} {stage}/{name}"
    )
    _write_mark(folder, made_for)
    return folder


def _tell_of_0_1(state: Anywhere, cell: Cell, stage: str) -> None:
    """Says that state of version 0.1 is there but cannot be read: its files have other contents."""
    if found := sorted({path.parts[0] for path in storage.names(state) if OF_0_1.fullmatch(path.parts[0])}):
        say(
            f"{cell.name}: {stage} starts anew. {state} has state of version 0.1 ({_listed(found)}), which this "
            "version cannot read: to continue from it, use the version that wrote it; otherwise delete it"
        )


def differences(before: MadeFor, now: MadeFor) -> list[str]:
    """The differences, as `settings.experiment.learning_rate: 0.1, now 0.2`; settings first, then data, then code."""
    flat_before, flat_now = _flat(before), _flat(now)
    keys = [key for key in {**flat_before, **flat_now} if flat_before.get(key) != flat_now.get(key)]
    keys.sort(key=lambda key: (not key.startswith("settings"), key.startswith("code")))
    return [_difference(key, flat_before.get(key), flat_now.get(key)) for key in keys]


def _difference(key: str, before: Any, now: Any) -> str:
    if key.startswith(("settings", "compiled")):
        return f"{key}: {json.dumps(before)}, now {json.dumps(now)}"
    return key


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {key: value}
    separator = "/" if key == "code" else "."
    return {
        name: one
        for inner, given in value.items()
        for name, one in _flat(given, f"{key}{separator}{inner}" if key else inner).items()
    }


def _listed(differs: list[str]) -> str:
    more = len(differs) - SHOWN
    return "; ".join(differs[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _reason(difference: str) -> str:
    """The reason as part of a file name: `settings-learning_rate`, `data`, `code-pipeline.images.loop`."""
    key = difference.partition(":")[0].replace("/", ".")
    kind, _, rest = key.partition(".")
    rest = rest.rpartition(".")[2] if kind == "settings" else rest
    return re.sub(r"[^\w.-]", "_", f"{kind}-{rest}" if rest else kind)[:80]


def _read_mark(folder: Anywhere) -> dict[str, Any] | None:
    path = folder / MARK
    return storage.read_json(path, "the stage that keeps its state here") if path.exists() else None


def _write_mark(folder: Anywhere, made_for: MadeFor, **more: Any) -> None:
    began = datetime.now().strftime("%Y-%m-%d_%H%M%S")
    storage.write_json(folder / MARK, {"began": began, "made_for": made_for, **more})


def _set_aside(state: Anywhere, reason: str) -> str:
    """Moves the state. Its name contains its start time, so that an interrupted move resumes to the same place."""
    mark = _read_mark(state / PROGRESS)
    name = f"{mark['began'] if mark else 'unknown-date'}-{reason}"
    known = {path.parts[0] for path in storage.names(state / ASIDE)}
    if isinstance(state, Path) and name in known:
        name = next(f"{name}-{i}" for i in range(2, len(known) + 3) if f"{name}-{i}" not in known)
    storage.move(state / PROGRESS, state / ASIDE / name)
    return name


def places(cell: Cell, stage: str) -> list[Anywhere]:
    """Where a stage's state may be: here, in the workers' folder in storage, or in the job drivers' folder there."""
    folder, root = cell.state(stage), storage.root()
    if root is None:
        return [folder]
    own = folder.relative_to(WORK)
    job = f"{cell.study.results}/{stage}/{cell.name}"
    return [folder, root / str(folder), root / "drivers" / job / str(own)]


def adopt(cell: Cell, stage: str, name: str) -> None:
    state = _place_of(cell, stage, name)
    mark = _read_mark(state / ASIDE / name)
    if storage.names(state / PROGRESS):
        say(f"{cell.name}: the present state of {stage} is set aside as {stage}/{_set_aside(state, 'replaced')}")
    storage.move(state / ASIDE / name, state / PROGRESS)
    known = mark or {"began": "unknown-date", "made_for": {}}
    storage.write_json(state / PROGRESS / MARK, {**known, "adopt": True})
    say(f"{cell.name}: {stage} will continue from {name}; start it with `dvc repro {stage}@{cell.name}`")


def set_aside(cell: Cell, stage: str) -> None:
    found = [state for state in places(cell, stage) if storage.names(state / PROGRESS)]
    if not found:
        raise StudyError(f"{cell.name}: {stage} has no state to set aside")
    for state in found:
        say(f"{cell.name}: the state of {stage} is set aside as {stage}/{_set_aside(state, 'by-command')}")


def remove(cell: Cell, stage: str, name: str) -> None:
    state = _place_of(cell, stage, name)
    storage.remove(state / ASIDE / name)
    say(f"{cell.name}: {state / ASIDE / name} is deleted")


def aside(cell: Cell, stage: str) -> Iterator[tuple[Anywhere, str, int]]:
    """Every state that is set aside: its folder, its name and its number of files."""
    for state in places(cell, stage):
        names = [path.parts[0] for path in storage.names(state / ASIDE)]
        for name in sorted(set(names)):
            yield state, name, names.count(name)


def _place_of(cell: Cell, stage: str, name: str) -> Anywhere:
    known = {found: state for state, found, _ in aside(cell, stage)}
    if name not in known:
        listed = ", ".join(f"{stage}/{found}" for found in known) or "nothing"
        raise StudyError(f"{stage}/{name}: {cell.name} has no such state set aside; there is {listed}")
    return known[name]


def show(cells: list[Cell]) -> None:
    found = [(cell, stage, *one) for cell in cells for stage in STAGES for one in aside(cell, stage)]
    for cell, stage, state, name, number in found:
        print(f"{cell.name} {stage}/{name}: {number} files in {state / ASIDE / name}")
    if not found:
        print("nothing is set aside")


def main() -> None:
    arguments = _arguments()
    study = params.load(arguments.params)
    if arguments.command == "list":
        show(study.cells() if arguments.cell is None else [study.cell(arguments.cell)])
        return
    cell = study.cell(arguments.cell)
    stage, _, name = arguments.state.partition("/")
    if stage not in STAGES or bool(name) == (arguments.command == "set-aside"):
        expected = "STAGE" if arguments.command == "set-aside" else "STAGE/NAME, as `list` prints it"
        raise StudyError(f"{arguments.state}: expected {expected}, with one of the stages {', '.join(STAGES)}")
    if arguments.command == "adopt":
        adopt(cell, stage, name)
    elif arguments.command == "remove":
        remove(cell, stage, name)
    else:
        set_aside(cell, stage)


def _arguments() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    parser = console.parser("pipeline.state", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", parents=[common], help="list the state that is set aside")
    listing.add_argument("cell", nargs="?", help="list this cell only")
    for name, help in (
        ("adopt", "put state back and continue from it, whatever it was made for"),
        ("set-aside", "set a stage's state aside, so that it starts anew"),
        ("remove", "delete state that is set aside"),
    ):
        command = commands.add_parser(name, parents=[common], help=help)
        command.add_argument("cell")
        command.add_argument("state", metavar="STAGE" if name == "set-aside" else "STAGE/NAME")
    return parser.parse_args()


if __name__ == "__main__":
    console.run(main)
