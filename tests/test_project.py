"""What the project promises about itself: its dependencies, its lock file and its documentation."""

import importlib.metadata
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import mnvi

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LIBRARY_EXTRAS = ("vision", "sklearn", "export")
LOCK_LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
LOCKED = dict(line.split("==") for line in LOCK_LINES)
OPTIONAL_IMPORTS = {"dvc", "matplotlib", "mlflow", "onnx", "onnxruntime", "onnxscript", "ray", "scipy"}
OPTIONAL_IMPORTS |= {"sklearn", "torchvision", "yaml"}


def test_importing_mnvi_pulls_in_no_optional_package():
    code = "import sys, mnvi; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(result.stdout.split())
    assert "torch" in imported
    assert not imported & OPTIONAL_IMPORTS


def test_torch_is_the_only_required_dependency():
    assert [Requirement(line).name for line in PROJECT["dependencies"]] == ["torch"]


def test_library_can_be_installed_beside_any_newer_torch():
    lines = PROJECT["dependencies"] + [line for extra in LIBRARY_EXTRAS for line in EXTRAS[extra]]
    operators = {specifier.operator for line in lines for specifier in Requirement(line).specifier}
    assert operators == {">="}, "an upper bound of the library keeps its users from newer releases"


@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_locked_version_satisfies_every_requirement(extra):
    requirements = map(Requirement, PROJECT["dependencies"] if extra is None else EXTRAS[extra])
    for requirement in requirements:
        if requirement.name == PROJECT["name"]:  # one extra naming others
            assert requirement.extras <= set(EXTRAS)
            continue
        version = LOCKED.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in requirements.lock: run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement} excludes the locked {version}: run `make lock`"


def test_lock_holds_names_and_public_versions_only():
    # No address, host, hash, local label (+cpu) or option: the lock serves every machine.
    wrong = [line for line in LOCK_LINES if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)]
    assert not wrong


def test_lock_leaves_cuda_to_the_machine():
    assert not [name for name in LOCKED if name.startswith(("nvidia-", "cuda-", "triton"))]


def test_tests_run_on_the_locked_versions():
    installed = {name: Version(importlib.metadata.version(name)).public for name in LOCKED}
    different = {name: version for name, version in installed.items() if version != LOCKED[name]}
    assert not different, f"installed but not as locked (run `make setup`): {different}"


def test_package_states_the_version_that_is_installed():
    assert mnvi.__version__ == PROJECT["version"]


HOOKS = {
    "ruff": ("tools.py", "import os\n", "F401"),
    "ruff-format": ("tools.py", "x = ( 1 )\n", "1 file reformatted"),
    "mypy": ("mnvi/__init__.py", "x: int = ''\n", "[assignment]"),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_commit_is_stopped_by(hook, tmp_path):
    """By the tools of this environment: a hook with a repository of its own would need the network."""
    name, source, complaint = HOOKS[hook]
    for package in ("mnvi", "pipeline"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / name).write_text(source)
    for file in (".pre-commit-config.yaml", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "mnvi", "pipeline", name, ".pre-commit-config.yaml"], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", hook],
        cwd=tmp_path,
        env={**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "pre-commit")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and complaint in done.stdout, done.stdout + done.stderr


def public_objects() -> dict[str, object]:
    """Every public name with its object; a public module stands for the names it lists, or defines, itself."""
    objects: dict[str, object] = {}
    for name in mnvi.__all__:
        value = getattr(mnvi, name)
        objects[name] = value
        if isinstance(value, ModuleType):
            objects |= {f"{name}.{inner}": getattr(value, inner) for inner in names_of(value)}
    return objects


def names_of(module: ModuleType) -> list[str]:
    defined = [
        name
        for name, value in vars(module).items()
        if inspect.isroutine(value) or inspect.isclass(value)
        if not name.startswith("_") and value.__module__ == module.__name__
    ]
    return list(getattr(module, "__all__", defined))


@pytest.mark.parametrize("name", public_objects())
def test_public_name_has_a_docstring_with_an_example(name):
    assert ">>>" in (public_objects()[name].__doc__ or ""), f"mnvi.{name} has no runnable example in its docstring"


def takes_arguments(value):
    if isinstance(value, ModuleType) or not callable(value):
        return False
    if inspect.isclass(value) and (inspect.isabstract(value) or issubclass(value, Exception)):
        return False  # nobody makes these
    return bool(inspect.signature(value).parameters)


@pytest.mark.parametrize("name", [name for name, value in public_objects().items() if takes_arguments(value)])
def test_public_name_has_its_arguments_explained(name):
    value = public_objects()[name]
    assert re.search(r"^ *(Args|Attributes):$", value.__doc__ or "", re.MULTILINE), f"mnvi.{name} has no Args"


LIKELIHOODS = (
    mnvi.Likelihood,
    mnvi.BernoulliLikelihood,
    mnvi.CategoricalLikelihood,
    mnvi.GaussianLikelihood,
    mnvi.PoissonLikelihood,
    mnvi.StudentTLikelihood,
)


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("method", ["expected_log_prob", "predictive", "uncertainty", "standard_deviations"])
def test_methods_of_a_likelihood_have_their_arguments_explained(likelihood, method):
    assert "Args:" in (vars(likelihood)[method].__doc__ or "")


def test_the_places_where_changes_go_exist():
    text = "".join((ROOT / page).read_text() for page in ("CONTRIBUTING.md", "docs/development.md", "docs/by_hand.md"))
    named = re.findall(r"`((?:mnvi|pipeline|tests|tools|examples)/[\w./]*)`", text)
    assert len(named) > 30
    assert [place for place in named if not (ROOT / place).exists()] == []


def test_the_rooms_that_the_map_shows_exist_and_none_is_missing():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tree = text[text.index("    mnvi/  ") : text.index("    pipeline/  ")]
    shown = {name for line in tree.splitlines()[1:] for name in re.findall(r"\S+?(?:/|\.py)(?=\s)", line[:25])}
    found = {path.name + "/" * path.is_dir() for path in (ROOT / "mnvi").iterdir() if path.suffix in ("", ".py")}
    assert shown == {name for name in found if not name.startswith("_")}


def test_the_changelog_has_one_section_for_each_version_and_tells_nothing_twice():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    versions = [line.partition("]")[0] for line in lines if line.startswith("## ")]
    assert len(versions) == len(set(versions)) and all(line.startswith("## [") for line in versions)
    items = [line for line in lines if line.startswith("- ")]
    assert len(items) == len(set(items))
