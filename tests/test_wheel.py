"""What people install: built as `python -m build` does, tried in an environment that has torch and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from build import ProjectBuilder
from packaging.utils import canonicalize_name

import mnvi
from tools.lock import requirements

ROOT = Path(__file__).parent.parent
SOURCES = ("mnvi", "pipeline", "tests", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project: setuptools writes into the folder that it builds."""
    folder = tmp_path_factory.mktemp("project")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and with the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, project]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The interpreter of a new environment that sees torch and what torch requires."""
    torch_alone = tmp_path / "torch-alone"
    torch_alone.mkdir()
    for name in with_requirements("torch"):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (torch_alone / top).exists():
                (torch_alone / top).symlink_to(Path(str(found.locate_file(top))))
    venv.create(tmp_path / "environment", symlinks=True)
    (site_packages,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    (site_packages / "torch.pth").write_text(f"{torch_alone}\n")
    return tmp_path / "environment" / "bin" / "python"


def with_requirements(name: str) -> set[str]:
    found, queue = set(), [name]
    while queue:
        current = canonicalize_name(queue.pop())
        if current not in found:
            found.add(current)
            queue += [requirement.name for requirement in requirements(current, extra="")]
    return found


def install(wheel: Path, environment: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", environment, "install", "--no-index", "--no-deps", "--quiet"]
    done = subprocess.run([*pip, wheel], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run(environment: Path, code: str) -> str:
    """What `code` prints there. Neither this folder nor PYTHONPATH is on the path; warnings are errors."""
    warnings = ["-W", "error", "-W", "ignore:Failed to initialize NumPy:UserWarning"]  # torch's own, without NumPy
    done = subprocess.run([environment, "-I", *warnings, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_holds_the_library_alone(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"mnvi", f"mnvi-{mnvi.__version__}.dist-info"}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "mnvi").rglob("*.py")}
    assert modules | {"mnvi/py.typed"} == {name for name in names if name.startswith("mnvi/")}


def test_source_distribution_holds_the_library_and_its_papers(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    papers = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
    assert tops == {"mnvi", *papers, "PKG-INFO", "mnvi.egg-info", "setup.cfg"}


def test_installed_wheel_converts_a_network_and_runs_it_where_only_torch_is(wheel: Path, environment: Path) -> None:
    install(wheel, environment)
    code = """
import importlib.util, torch, mnvi
net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3))
out = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-4))(torch.randn(2, 1, 8, 8))
assert out.mean.shape == out.var.shape == (2, 3) and (out.var > 0).all()
print(mnvi.__file__)
print(*[name for name in ("numpy", "pipeline", "ray", "scipy", "tests") if importlib.util.find_spec(name)])
"""
    place, others = run(environment, code).splitlines()
    assert Path(place).is_relative_to(environment.parents[1])
    assert others == ""


def test_editable_install_finds_the_study_from_any_folder(project: Path, environment: Path, tmp_path: Path) -> None:
    install(Path(ProjectBuilder(project).build("editable", tmp_path)), environment)
    places = run(environment, "import mnvi, pipeline; print(mnvi.__file__); print(pipeline.__file__)").split()
    assert places == [str(project / name / "__init__.py") for name in ("mnvi", "pipeline")]
