"""The stage `prepare`: one data set, found, checked, split and written to data/<dataset>/.

python -m pipeline.prepare boston
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline import console, files, params
from pipeline.data.sources import CACHE, MissingData
from pipeline.data.tables import find_table, write_table
from pipeline.errors import StudyError
from pipeline.params import Dataset


def prepare(dataset: Dataset, missing_data: str, cache: Path = CACHE) -> None:
    """Writes the data set's folder, whole or not at all."""
    about = {"name": dataset.name, "kind": dataset.kind}
    try:
        found = find_table(dataset, cache)
    except MissingData as error:
        if missing_data != "skip":
            raise
        console.say(f"{error}\n{dataset.name}: skipped, as study.missing_data says")
        with files.replacing(dataset.folder_out) as folder:
            folder.mkdir()
            files.write_json(folder / "summary.json", {**about, "missing": str(error)})
        return
    with files.replacing(dataset.folder_out) as folder:
        folder.mkdir()
        write_table(found, folder)
        files.write_json(folder / "summary.json", {**about, **found.summary})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.prepare", description=__doc__)
    parser.add_argument("dataset", help="a name under `datasets` of the parameters")
    parser.add_argument("--params", default="params.yaml", help="the study's parameters")
    arguments = parser.parse_args()
    settings = params.load(arguments.params)
    if arguments.dataset not in settings.datasets:
        raise StudyError(f"datasets: {arguments.dataset!r} is not there; it has {', '.join(settings.datasets)}")
    prepare(settings.datasets[arguments.dataset], settings.study.missing_data)


if __name__ == "__main__":
    console.run(main)
