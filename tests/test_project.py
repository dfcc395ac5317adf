"""What the project promises about itself: its dependencies, its lock file and its documentation."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK_LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
LOCKED = dict(line.split("==") for line in LOCK_LINES)


def test_torch_is_the_only_required_dependency():
    assert [Requirement(line).name for line in PROJECT["dependencies"]] == ["torch"]


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
