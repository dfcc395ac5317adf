"""Finds a table in a folder of the literature's layout, in a CSV file, in a package or on its home page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np

from pipeline import files
from pipeline.data import archives, downloads, package_downloads, parsing, splits, workbook
from pipeline.data.known_tables import TABLES, KnownTable, Member, digest
from pipeline.data.sources import MIRROR, MissingData, Source, Unavailable, first, in_mirror
from pipeline.errors import StudyError
from pipeline.params import Dataset

LAYOUT = "data.txt, index_features.txt and index_target.txt (and n_splits.txt and index_*_k.txt for standard splits)"
LARGEST = 64 << 20  # bytes; the largest known table has 1.2 MB


@dataclass(frozen=True)
class RawTable:
    """A file's matrix, the roles of its columns, and the file's own splits if it has any."""

    file: str
    values: np.ndarray  # float64 [rows, columns]
    features: list[int]
    target: int
    tests: list[list[int]] | None = None
    heading: list[str] | None = None


def find(dataset: Dataset, cache: Path) -> tuple[RawTable, str]:
    """The table that an entry of params.yaml describes, and where it came from."""
    if dataset.file is not None:
        return _csv(dataset, _existing(dataset, "file", dataset.file)), dataset.file
    folder = dataset.folder
    assert folder is not None  # reading params.yaml requires one of the two
    if any(mark in folder for mark in "/\\~"):
        return _layout(dataset, _existing(dataset, "folder", folder)), folder
    sources = [Source(f"the mirror ({MIRROR})", lambda: _layout(dataset, in_mirror(f"uci/{folder}")))]
    remedy = f"set {MIRROR} to a folder that has uci/{folder} with {LAYOUT}"
    if folder in TABLES:
        sources += _elsewhere(TABLES[folder], cache)
    else:
        remedy += f", or datasets.{dataset.name}.folder to the path of that folder"
    return first(dataset.name, sources, remedy)


def _existing(dataset: Dataset, key: str, value: str) -> Path:
    path = Path(value).expanduser()
    if not path.exists():
        raise MissingData(f"datasets.{dataset.name}.{key}: there is no {path}; correct the path or put the data there")
    return path


def _layout(dataset: Dataset, folder: Path) -> RawTable:
    """Reads data.txt, index_features.txt, index_target.txt; for standard splits also n_splits.txt and index_*_k.txt."""
    file = folder / "data.txt"
    data = _checked_content(dataset, file)
    known = TABLES.get(folder.name) if dataset.folder == folder.name else None
    values = parsing.whitespace(data, str(file))
    if known and digest(values) != known.digest:
        raise StudyError(
            f"{file}: its numbers have the checksum {digest(values)}, expected {known.digest}; the file is altered or "
            "cut off: replace it, or remove it and the next source is tried"
        )
    target = parsing.integers(folder / "index_target.txt")
    if len(target) != 1:
        raise StudyError(f"{folder / 'index_target.txt'}: expected one column, got {target}")
    features = parsing.integers(folder / "index_features.txt")
    _check_columns(features, values.shape[1], folder / "index_features.txt")
    _check_columns(target, values.shape[1], folder / "index_target.txt")
    if target[0] in features:
        raise StudyError(f"{folder / 'index_features.txt'}: column {target[0]} is the target; remove it")
    tests = _index_files(folder, len(values)) if dataset.splits == "standard" else None
    if known:
        _check_indices(folder, known, features, target[0], tests, len(values))
    return RawTable(str(file), values, features, target[0], tests)


def _check_indices(
    folder: Path, known: KnownTable, features: list[int], target: int, tests: list[list[int]] | None, rows: int
) -> None:
    """Checks that a known table has the same features, target and splits whatever source it comes from."""
    last = known.columns - 1
    if target != last or features != list(range(last)):
        raise StudyError(
            f"{folder}: index_target.txt and index_features.txt name column {target} as target and {features} as "
            f"features; in this data set column {last} is the target and all columns before it are features. Replace "
            "these files, or give the folder as a path to use it as a separate data set"
        )
    if tests is not None and tests != splits.standard(rows):
        raise StudyError(
            f"{folder}: its index_test_*.txt are not the literature's splits of this data set; replace them, or give "
            "the folder as a path to use it as a separate data set"
        )


def _checked_content(dataset: Dataset, file: Path) -> bytes:
    data = parsing.content(file)
    if dataset.sha256 is not None and files.sha256(file) != dataset.sha256:
        raise StudyError(
            f"{file}: its SHA-256 is {files.sha256(file)}, datasets.{dataset.name}.sha256 says {dataset.sha256}; "
            "replace the file or correct the entry"
        )
    return data


def _check_columns(columns: Sequence[int], width: int, where: Path) -> None:
    wrong = [column for column in columns if not 0 <= column < width]
    if wrong:
        raise StudyError(f"{where}: column {wrong[0]} is out of range; data.txt has columns 0 to {width - 1}")
    if len(set(columns)) != len(columns):
        raise StudyError(f"{where}: names a column twice")


def _index_files(folder: Path, rows: int) -> list[list[int]]:
    number = parsing.integers(folder / "n_splits.txt")
    if len(number) != 1 or number[0] < 1:
        raise StudyError(f"{folder / 'n_splits.txt'}: expected one number above 0, got {number}")
    return [_split(folder, k, rows) for k in range(number[0])]


def _split(folder: Path, k: int, rows: int) -> list[int]:
    test = parsing.integers(folder / f"index_test_{k}.txt")
    train = parsing.integers(folder / f"index_train_{k}.txt")
    if sorted(test + train) != list(range(rows)):
        raise StudyError(
            f"{folder}: index_train_{k}.txt and index_test_{k}.txt are not a partition of the rows 0 to {rows - 1} "
            "of data.txt; expected each row in exactly one of them"
        )
    return sorted(test)


def _csv(dataset: Dataset, file: Path) -> RawTable:
    heading, values = parsing.separated(_checked_content(dataset, file), str(file))
    target = _target(dataset, file, heading, values.shape[1])
    features = [column for column in range(values.shape[1]) if column != target]
    return RawTable(str(file), values, features, target, heading=heading)


def _target(dataset: Dataset, file: Path, heading: list[str] | None, width: int) -> int:
    target = dataset.target
    if isinstance(target, int):
        if not 0 <= target < width:
            raise StudyError(
                f"datasets.{dataset.name}.target: column {target} is out of range; {file} has columns 0 to {width - 1}"
            )
        return target
    if heading is None or target not in heading:
        columns = ", ".join(heading) if heading else "no heading; name the target by its number, counted from 0"
        raise StudyError(f"datasets.{dataset.name}.target: {target!r} is not a column of {file}, which has {columns}")
    return heading.index(target)


def _elsewhere(known: KnownTable, cache: Path) -> list[Source[RawTable]]:
    def home(url: str) -> Source[RawTable]:
        return Source(url, lambda: _at_home(known, url, cache))

    return [_package_source(known, cache), *map(home, known.homes)]


def _package_source(known: KnownTable, cache: Path) -> Source[RawTable]:
    member = known.member
    if member is None:
        return Source("package registries", lambda: _not_packaged(known))
    return Source(str(member.package), lambda: _packaged(known, member, cache))


def _not_packaged(known: KnownTable) -> RawTable:
    raise Unavailable(f"no package is known to hold {known.folder}")


def _packaged(known: KnownTable, member: Member, cache: Path) -> RawTable:
    archive = package_downloads.fetch(member.package, cache)
    try:
        data = archives.members(archive, {member.path: LARGEST})[member.path]
        return _canonical(known, data, member.path, member.sheet)
    except archives.BROKEN as error:
        raise Unavailable(f"{member.path} of {archive} cannot be read: {error}") from error


def _at_home(known: KnownTable, url: str, cache: Path) -> RawTable:
    fetched = downloads.fetch(url, cache, LARGEST)
    try:
        return _canonical(known, fetched.read_bytes(), url, sheet=None)
    except Unavailable:
        files.remove(fetched)
        raise


def _canonical(known: KnownTable, data: bytes, file: str, sheet: int | None) -> RawTable:
    """The table in its canonical form, whichever file it comes from."""
    try:
        if sheet is not None:
            lines = list(enumerate(workbook.sheet(data, sheet), start=2))
            values = parsing.numbers(lines, file)
        elif file.endswith(".csv"):
            values = parsing.separated(data, file)[1]
        else:
            values = parsing.whitespace(data, file)
    except StudyError as error:
        raise Unavailable(str(error)) from error
    values = values[:, : known.columns]
    if known.decimals is not None:
        values = _rounded(values, known.decimals)
    if digest(values) != known.digest:
        raise Unavailable(f"{file}: its numbers have the checksum {digest(values)}, expected {known.digest}")
    target = known.columns - 1
    # The literature draws its index files from a seed; the same draw splits sources that lack them.
    return RawTable(file, values, list(range(target)), target, splits.standard(len(values)))


def _rounded(values: np.ndarray, decimals: Sequence[int]) -> np.ndarray:
    """Rounds halves up, in decimal: 98.05 becomes 98.1, although its float lies below."""
    units = [Decimal(1).scaleb(-places) for places in decimals]
    rows = [
        [
            float(Decimal(repr(float(value))).quantize(unit, ROUND_HALF_UP))
            for value, unit in zip(row, units, strict=True)
        ]
        for row in values
    ]
    return np.array(rows)
