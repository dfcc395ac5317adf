"""What DVC compares to tell whether a stage is out of date, where its templates cannot express it.

`settings.json` holds, for each cell and stage, exactly the settings that its result depends on and a digest of the code
of its kind; `ood.json` the digests of the data that a cell is tested on beside its own. Stages depend on their entry in
these files, not on the files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.params.cells import Cell
from pipeline.params.reading import Params

STAGES = ("tune", "train", "evaluate")
CODE = {
    "regression": [Path("pipeline/regression")],
    "classification": [Path("pipeline/images"), Path("pipeline/data/augmentation.py")],
}


def write_settings(params: Params) -> None:
    code = {kind: _digest(paths) for kind, paths in CODE.items()}
    cells = {
        cell.name: {stage: {**cell.settings(stage), "code": code[cell.kind]} for stage in STAGES}
        for cell in params.cells()
    }
    study = params.study
    report = {"name": study.name, "preset": study.preset, "cells": study.cells}
    files.write_json(study.results / "settings.json", {"cells": cells, "report": report})


def write_ood(params: Params) -> None:
    files.write_json(params.study.results / "ood.json", {cell.name: _ood(cell) for cell in params.cells()})


def _ood(cell: Cell) -> dict[str, Any]:
    digests = {}
    for name, folder in cell.ood.items():
        summary = files.read_json(folder / "summary.json", f"python -m pipeline.prepare {name}")
        digests[name] = summary.get("digest", "missing")
    return digests


def _digest(paths: list[Path]) -> str:
    """Of source files and folders of them, with their names."""
    names = sorted(name for path in paths for name in (path.rglob("*.py") if path.is_dir() else [path]))
    text = "".join(f"{name} {files.sha256(name)}\n" for name in names)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
