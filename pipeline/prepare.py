"""The stage `prepare`: finds one data set, checks and splits it, and writes it to data/<dataset>/.

python -m pipeline.prepare boston
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Protocol

from pipeline import console, files, params
from pipeline.data.folders import FoundFolder, find_folder
from pipeline.data.images import find_images
from pipeline.data.sources import MissingData
from pipeline.data.tables import find_table
from pipeline.names import unknown
from pipeline.params import Dataset


class Found(Protocol):
    """A data set that a source has found and that is not yet written."""

    @property
    def summary(self) -> dict[str, Any]: ...

    def write(self, folder: Path) -> None: ...


class Nothing:
    """Stands in for a missing data set that the study skips."""

    def __init__(self, reason: MissingData) -> None:
        self.summary = {"missing": str(reason)}

    def write(self, folder: Path) -> None:
        pass


def prepare(dataset: Dataset, missing_data: str) -> None:
    """Writes the data set's folder, completely or not at all."""
    found = _find(dataset, missing_data)
    with files.replacing(dataset.folder_out) as folder:
        folder.mkdir()
        found.write(folder)
        files.write_json(folder / "summary.json", {"name": dataset.name, "kind": dataset.kind, **found.summary})
    if isinstance(found, FoundFolder):
        files.remove(found.work)


def _find(dataset: Dataset, missing_data: str) -> Found:
    try:
        if dataset.kind == "table":
            return find_table(dataset)
        if dataset.kind == "images":
            return find_images(dataset)
        return find_folder(dataset)
    except MissingData as error:
        if missing_data != "skip":
            raise
        console.say(
            f"{error}\n{dataset.name}: skipped, because study.missing_data is skip. DVC does not look for it again by "
            f"itself: once you have it, run `dvc repro --force --single-item prepare@{dataset.name}`, "
            "then the same command"
        )
        return Nothing(error)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.prepare", description="Prepares one data set.")
    parser.add_argument("dataset", help="a name under `datasets` in the parameters")
    parser.add_argument("--params", default="params.yaml", help="the study's parameters")
    arguments = parser.parse_args()
    settings = params.load(arguments.params)
    if arguments.dataset not in settings.datasets:
        raise unknown(arguments.params, arguments.dataset, settings.datasets, "in datasets")
    prepare(settings.datasets[arguments.dataset], settings.study.missing_data)


if __name__ == "__main__":
    console.run(main)
