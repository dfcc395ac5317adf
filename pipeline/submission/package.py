"""The package uploaded to the cluster with a job: the code, plugins included, and the settings; nothing else."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipeline import files
from pipeline import params as settings
from pipeline.blobs import readable_size
from pipeline.errors import StudyError
from pipeline.registry.networks import INSTALLED

CODE = ("mnvi", "pipeline")
LOCK = "requirements.lock"
_SOURCE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Package:
    folder: Path

    def __str__(self) -> str:
        parts = []
        for path in sorted(self.folder.iterdir()):
            inside = [file for file in path.rglob("*") if file.is_file()]
            parts.append(f"{path.name}/ ({len(inside)} files)" if path.is_dir() else path.name)
        return f"{', '.join(parts)}: {readable_size(self.folder)}"


@contextmanager
def packed(params: str | Path) -> Iterator[Package]:
    """A folder to upload, which exists while the block runs."""
    with tempfile.TemporaryDirectory(prefix="mnvi-upload-") as name:
        folder = Path(name)
        for part in CODE:
            shutil.copytree(_SOURCE / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        for package in _foreign(params):
            if package.is_dir():
                shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copyfile(package, folder / package.name)
        shutil.copyfile(params, folder / "params.yaml")
        for extra in (_SOURCE / LOCK, Path("dvc.lock")):
            if extra.exists():
                shutil.copyfile(extra, folder / extra.name)
        yield Package(folder)


def _foreign(path: str | Path) -> list[Path]:
    """Packages outside this project that the settings name: folders, or single files."""
    read = settings.load(path)
    modules = [*read.plugins, *(module for cell in read.cells() for module in cell.foreign_code("evaluate"))]
    found = []
    for name in sorted({module.partition(".")[0] for module in modules} - INSTALLED):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise StudyError(f"{name}: no package of this name is installed; check the spelling or install it")
        found.append(Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin))
    return found


def requirements() -> list[str]:
    """The pinned requirements, for a cluster that does not have them installed."""
    text = files.read_text(_SOURCE / LOCK, made_by="make lock")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    pinned = [line for line in lines if "==" in line]
    if not pinned:
        raise StudyError(f"{LOCK}: pins nothing; expected lines such as torch==2.13.0")
    return pinned
