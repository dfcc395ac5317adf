"""The order of the house: which room may import which, and which names it offers."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType

import pytest
from torch import nn
from torch.distributions import Distribution

import mnvi
from mnvi.moments._torch import PRIVATE_ATTRIBUTES

ROOT = Path(mnvi.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# From the bottom up: a room may import those before it, and itself.
ORDER = (
    "moments",
    "_torchvision",
    "values",
    "rules",
    "posteriors",
    "layers",
    "likelihoods",
    "elbo",
    "conversion",
    "metrics",
    "models",
    "methods",
    "inference",
    "training",
    "comparison",
    "covariance",
    "replicas",
    "sklearn",
    "_moved",
    "__init__",
)
NAMES_OF_0_1_0 = """
    DVI ELBO CategoricalLikelihood EmpiricalBayes Ensemble Gaussian GaussianLikelihood JointGaussian Likelihood
    MeanField
    MonteCarlo MultiplicativeNoise NoRuleError Objective Posterior Sampled Samples SharedMeanField StepSchedule Terms
    Uncertainty bayesian_layers convert covariance elementwise export kl_divergence layers mc_dropout methods metrics
    models moment_matched optimize_for_inference options replicas rule rules
"""
PRIVATE = re.compile(
    r"torch(\.\w+)*\._[a-zA-Z]|\b_(call_impl|compiled_call_impl|current_level|pytree|ConvNd|DropoutNd)\b"
)


def imports(source: str) -> set[str]:
    """The modules that code imports when it runs, without those under TYPE_CHECKING."""
    found = set()
    skipped = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(ast.walk(node))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} if node not in skipped else set()
        if isinstance(node, ast.ImportFrom) and node not in skipped:
            found |= {f"mnvi.{alias.name}" for alias in node.names} if node.module == "mnvi" else {str(node.module)}
    return found


def room(path: Path) -> str:
    inside = path.relative_to(ROOT)
    return inside.parts[0].removesuffix(".py")


def later_rooms(source: str, own: str) -> set[str]:
    """The rooms that code of a room imports although they come after it; ``import mnvi`` imports all of them."""
    names = [name.split(".") for name in imports(source) if name.partition(".")[0] == "mnvi"]
    used = {name[1] if len(name) > 1 and name[1] in ORDER else "__init__" for name in names}
    return {name for name in used if ORDER.index(name) > ORDER.index(own)}


@pytest.mark.parametrize("path", sorted((ROOT / "moments").rglob("*.py")), ids=lambda path: path.stem)
def test_moments_import_nothing_but_torch_and_themselves(path: Path) -> None:
    standard = {
        "__future__",
        "collections",
        "dataclasses",
        "contextlib",
        "functools",
        "itertools",
        "math",
        "numbers",
        "sys",
        "threading",
        "typing",
    }
    foreign = {name for name in imports(path.read_text()) if name.partition(".")[0] not in {"torch"} | standard}
    assert all(name == "mnvi.moments" or name.startswith("mnvi.moments.") for name in foreign), foreign


def test_every_room_has_its_place() -> None:
    assert {room(path) for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_between_rooms_point_one_way(path: Path) -> None:
    assert not later_rooms(path.read_text(), room(path))


@pytest.mark.parametrize("own", ORDER[:-1])
@pytest.mark.parametrize(
    "statement",
    ["import mnvi.{0}", "from mnvi import {0}", "from mnvi.{0} import name", "from mnvi.{0}.file import name"],
)
def test_an_arrow_to_a_later_room_is_found(own: str, statement: str) -> None:
    for place, other in enumerate(ORDER[:-1]):
        is_later = place > ORDER.index(own)
        assert later_rooms(f"def f():\n    {statement.format(other)}", own) == ({other} if is_later else set())


@pytest.mark.parametrize("own", ORDER[:-1])
@pytest.mark.parametrize("statement", ["import mnvi", "from mnvi import convert"])
def test_the_whole_library_is_later_than_its_rooms(own: str, statement: str) -> None:
    assert later_rooms(statement, own) == {"__init__"}


def test_imports_for_type_checkers_alone_do_not_count() -> None:
    assert not later_rooms("if TYPE_CHECKING:\n    from mnvi.elbo import ELBO", "values")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_library_knows_no_part_of_the_study(path: Path) -> None:
    assert not {name.partition(".")[0] for name in imports(path.read_text())} & {
        "ray",
        "mlflow",
        "dvc",
        "yaml",
        "pipeline",
    }


def test_private_names_of_torch_are_used_in_one_module() -> None:
    users = {str(path.relative_to(ROOT)) for path in FILES if PRIVATE.search(path.read_text())}
    assert users == {"moments/_torch.py"}


def private_attributes(sources: list[str], of_torch: set[str]) -> set[str]:
    """Attributes with an underscore that code uses without defining them, or overrides although torch has them."""
    used, defined = set[str](), set[str]()
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (defined if of_self and isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            used |= {str(given.value) for given in node.args[1:2] if isinstance(given, ast.Constant)}
    return {name for name in used - (defined - of_torch) if re.match("_[a-zA-Z]", name)}


def test_private_attributes_of_torch_are_listed_with_their_reasons() -> None:
    classes = (nn.Module, nn.LSTM, nn.MultiheadAttention, nn.Conv2d, nn.ConvTranspose2d, Distribution)
    sources = [path.read_text() for path in FILES if path.name != "_torch.py"]
    found = private_attributes(sources, {name for one in classes for name in dir(one)})
    assert found == PRIVATE_ATTRIBUTES.keys()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("module._parameters", {"_parameters"}),
        ("getattr(module, '_orig_mod', module)", {"_orig_mod"}),
        ("self._own = 1\nother._own", set()),
        ("class A:\n    def _apply(self, f):\n        super()._apply(f)", {"_apply"}),
        ("module.__dict__", set()),
    ],
)
def test_a_private_attribute_of_torch_is_found(source: str, found: set[str]) -> None:
    assert private_attributes([source], set(dir(nn.Module))) == found


def test_one_module_asks_torch_whether_it_compiles() -> None:
    users = {str(path.relative_to(ROOT)) for path in FILES if "torch.compiler." in path.read_text()}
    assert users == {"moments/_torch.py"}


def test_no_function_shadows_its_module() -> None:
    for found in walk_packages([str(ROOT)], "mnvi."):
        if found.name == "mnvi.layers.shifted_windows":
            continue
        package, _, name = found.name.rpartition(".")
        module = import_module(found.name)
        assert getattr(import_module(package), name, module) is module, found.name


@pytest.mark.parametrize("name", NAMES_OF_0_1_0.split())
def test_what_users_imported_stays_importable(name: str) -> None:
    assert name in mnvi.__all__ and getattr(mnvi, name) is not None


def test_modules_that_are_not_for_users_are_not_exported() -> None:
    modules = {name for name in mnvi.__all__ if isinstance(getattr(mnvi, name), ModuleType)}
    assert modules == {"comparison", "covariance", "layers", "methods", "metrics", "models", "replicas", "rules"}


def test_sklearn_is_listed_though_it_is_imported_only_when_it_is_used() -> None:
    assert "sklearn" in dir(mnvi) and "fit" in dir(mnvi)
