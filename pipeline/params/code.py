"""Finds the code that a result depends on, so that a change reruns only the stages whose result it can change.

We follow imports from a stage's entry module, in the source alone: importing the modules would take seconds. A module
counts by its syntax tree: comments, docstrings, layout and the texts of errors and warnings do not matter.

Three tables add what the imports alone do not say:

ENTRIES  the entry module of each stage, by kind of experiment
AROUND   modules that move, keep or show what others compute: no result depends on them
BY_NAME  parts of the library that count only for modules that name them. `import mnvi` stands for all other parts,
         because their rules and layers act without being named. Which of them a network calls shows only while it runs.
         A wrong guess would pass off an old result as current, so all count: at worst a training repeats
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.errors import StudyError

ENTRIES = {
    "regression": {
        "tune": "pipeline.regression.search",
        "train": "pipeline.regression.training",
        "evaluate": "pipeline.regression.evaluation",
    },
    "classification": {
        "tune": "pipeline.images.search",
        "train": "pipeline.images.training",
        "predict": "pipeline.images.seeds",  # the slow part of evaluate, whose results are kept
        "evaluate": "pipeline.images.evaluation",
    },
    "data": {"prepare": "pipeline.prepare"},
}
AROUND = (
    "pipeline.abandoned",
    "pipeline.background",
    "pipeline.blobs",
    "pipeline.cluster",
    "pipeline.console",
    "pipeline.done",
    "pipeline.errors",
    "pipeline.files",
    "pipeline.git",
    "pipeline.images.checkpoints",
    "pipeline.images.memory",
    "pipeline.images.pace",
    "pipeline.images.workers",
    "pipeline.large_files",
    "pipeline.masking",
    "pipeline.missing",
    "pipeline.names",
    "pipeline.params",  # the comparison covers the settings themselves
    "pipeline.private_ray",
    "pipeline.registry.images",  # the comparison covers the registry entries that a cell uses
    "pipeline.registry.methods",
    "pipeline.registry.metrics",
    "pipeline.registry.networks",
    "pipeline.registry.packages",
    "pipeline.state",
    "pipeline.storage",
    "pipeline.submission",
    "pipeline.tracking",
    "pipeline.setting_types",
)
BY_NAME = (
    "mnvi._moved",
    "mnvi.comparison",
    "mnvi.covariance",
    "mnvi.inference",
    "mnvi.likelihoods",
    "mnvi.methods",
    "mnvi.metrics",
    "mnvi.models",
    "mnvi.replicas",
    "mnvi.sklearn",
    "mnvi.training",
)
LIBRARY = "mnvi"
OWN = ("pipeline", LIBRARY)

WARNING_CALLS = ("warn", "warning")  # warnings.warn, logger.warning

Digests = dict[str, str]  # module to digest


def entry(kind: str, stage: str) -> str:
    """The module whose `run` function is the stage."""
    return ENTRIES[kind][stage]


def home(reference: str) -> str:
    """The module that defines what "package.module:function" names."""
    module, _, name = reference.partition(":")
    return _home(module, name) if name and _is_in(module, OWN) else module


def of(kind: str, stage: str, plugins: Iterable[str] = ()) -> Digests:
    """The modules that the result of a stage depends on, with their digests.

    Args:
        plugins: further modules that take part: modules that registries name, and modules of other packages. Their
            imports from their own package count, too.
    """
    return dict(_of(entry(kind, stage), tuple(sorted(set(plugins)))))


@cache
def _of(start: str, plugins: tuple[str, ...]) -> Digests:
    packages = frozenset([*OWN, *(plugin.partition(".")[0] for plugin in plugins)])
    found: Digests = {}
    waiting, seen = [start, *plugins], set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen or _is_in(module, AROUND):
            continue
        seen.add(module)
        if module == LIBRARY:  # its __init__ only re-exports names
            waiting += _rooms()
            continue
        found[module] = _digest(module)
        waiting += _used(module, packages)
        if _is_in(module, [LIBRARY]):
            waiting.append(LIBRARY)
    return {module: found[module] for module in sorted(found)}


def _is_in(module: str, places: Iterable[str]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def _rooms() -> list[str]:
    """Every module of the library that counts for any module that imports the library."""
    root = _folder(LIBRARY)
    files = sorted(path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py"))
    modules = [".".join(path.parts).removesuffix(".__init__") for path in files]
    return [module for module in modules if module != LIBRARY and not _is_in(module, BY_NAME)]


@cache
def _folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise StudyError(f"{package}: no package of this name is installed; check the spelling or install it")
    return Path(found.origin).parent


@cache
def _file(module: str) -> Path | None:
    """The module's file; None if the module does not exist."""
    package, *below = module.split(".")
    path = _folder(package).joinpath(*below)
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    if file is None:
        raise StudyError(f"{module}: no such module below {_folder(module.partition('.')[0])}; check the spelling")
    return ast.parse(file.read_bytes(), file)


@cache
def _digest(module: str) -> str:
    return hashlib.sha256(json.dumps(_plain(_tree(module))).encode()).hexdigest()[:12]


def _plain(node: Any, in_message: bool = False) -> Any:
    """A syntax tree as lists, without positions, docstrings and texts of messages: the same in all versions of Python.

    Args:
        in_message: whether the node is part of a `raise` statement or of a call that warns.
    """
    if isinstance(node, list):
        return [_plain(one, in_message) for one in node if not _is_docstring(one)]
    if not isinstance(node, ast.AST):
        return repr(node)
    if in_message and (_is_text(node) or isinstance(node, ast.JoinedStr)):
        return "text"
    in_message = in_message or isinstance(node, ast.Raise) or _warns(node)
    fields = [[name, _plain(value, in_message)] for name, value in ast.iter_fields(node) if value is not None]
    return [type(node).__name__, *(field for field in fields if field[1] != [])]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_docstring(node: Any) -> bool:
    """Whether the node is a docstring of a module, class, function or constant."""
    return isinstance(node, ast.Expr) and _is_text(node.value)


def _warns(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name in WARNING_CALLS


@cache
def _used(module: str, packages: frozenset[str]) -> list[str]:
    """The modules of these packages that a module imports anywhere, except imports for type checkers alone."""
    found: list[str] = []
    waiting: list[ast.AST] = [_tree(module)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in packages]
        elif isinstance(node, ast.ImportFrom):
            package = _absolute(module, node)
            if package.partition(".")[0] in packages:
                found += [_home(package, alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == LIBRARY:
            found.append(_home(LIBRARY, node.attr))
    return found


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    file = _file(module)
    own = module.split(".") + (["__init__"] if file is not None and file.name == "__init__.py" else [])
    return ".".join([*own[: -node.level], *([node.module] if node.module else [])])


def _home(package: str, name: str) -> str:
    """The module that defines `name` in `from package import name`; a package's __init__ may re-export it."""
    if _file(package) is None or _file(f"{package}.{name}") is not None:
        return f"{package}.{name}"
    for node in _tree(package).body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return _home(_absolute(package, node), name)
    return package
