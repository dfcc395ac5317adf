"""The stage `prepare`: finds one data set, checks and splits it, and writes it to data/<dataset>/.

python -m pipeline.prepare boston
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from pipeline import console, files, params
from pipeline.data.folders import FoundFolder, find_folder
from pipeline.data.image_arrays import find_images
from pipeline.data.sources import MissingData, mirror
from pipeline.data.table_arrays import find_table
from pipeline.done import Account
from pipeline.names import unknown
from pipeline.params import Dataset, Params, tracked
from pipeline.registry.images import IMAGES, OwnImages

NOTES = Path("work/prepared")


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


def account(settings: Params, name: str) -> Account | None:
    """What a data set depends on; None if that is unknown, as for a plugin's function or a data set that is missing."""
    dataset = settings.datasets[name]
    if isinstance(IMAGES.get(name), OwnImages) or _is_missing(dataset):
        return None
    depends_on = tracked.of_prepare(settings, name)
    return Account(f"prepare {name}", NOTES / f"{name}.json", depends_on, _read(dataset), [dataset.folder_out])


def _is_missing(dataset: Dataset) -> bool:
    summary = dataset.folder_out / "summary.json"
    return summary.exists() and "missing" in files.read_json(summary, f"python -m pipeline.prepare {dataset.name}")


def _read(dataset: Dataset) -> list[Path]:
    """The user's own files and folders that a data set is made from; others are known by their checksums."""
    given = [Path(path).expanduser() for path in (dataset.file, dataset.folder, dataset.train, dataset.test) if path]
    folders = [Path(), *((place, place / "uci") if (place := mirror()) is not None else ())]
    return [folder / path for folder in folders for path in given]


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
    parser = console.parser("pipeline.prepare", __doc__)
    parser.add_argument("dataset", help="a name under `datasets` in the parameters")
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    arguments = parser.parse_args()
    settings = params.load(arguments.params)
    if arguments.dataset not in settings.datasets:
        raise unknown(arguments.params, arguments.dataset, settings.datasets, "in datasets")
    name = arguments.dataset
    before = account(settings, name)
    if before is not None and before.is_settled():
        return
    prepare(settings.datasets[name], settings.study.missing_data)
    after = account(settings, name)
    if after is not None:
        after.settle()


if __name__ == "__main__":
    console.run(main)
