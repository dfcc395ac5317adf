"""The page with every public name of `mnvi`, room by room. A new name appears without anyone listing it."""

from __future__ import annotations

from collections import defaultdict
from types import ModuleType

import mnvi
import mnvi.sklearn

# The room in which an object is defined, and the title of its part of the page.
ROOMS = {
    "conversion": "Conversion",
    "training": "Training and prediction",
    "sklearn": "scikit-learn",
    "posteriors": "Posteriors",
    "likelihoods": "Likelihoods",
    "elbo": "The objective",
    "methods": "Methods",
    "inference": "Inference and export",
    "comparison": "Comparison with sampling",
    "metrics": "Metrics",
    "values": "Values",
    "layers": "Layers",
    "rules": "Rules",
    "covariance": "Full covariances",
    "models": "Networks",
    "replicas": "Many small networks",
}
OPENING = """# API reference

Every public name with its equation, its arguments and an example that the tests run. `make docs` makes this page from
the docstrings; `help(mnvi.convert)` shows the same text.
"""


def names() -> dict[str, list[str]]:
    """Room → the public names that are defined there, each under its shortest public name."""
    modules = {"mnvi": mnvi, "mnvi.sklearn": mnvi.sklearn}
    modules |= {f"mnvi.{name}": getattr(mnvi, name) for name in mnvi.__all__ if _is_module(name)}
    found: dict[str, list[str]] = defaultdict(list)
    seen: list[object] = []
    for path, module in modules.items():
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType) or any(value is known for known in seen):
                continue
            seen.append(value)
            found[_room(path, value)].append(f"{path}.{name}")
    return found


def page() -> str:
    found = names()
    parts = [OPENING]
    for room, title in ROOMS.items():
        parts += [f"## {title}\n", *(f"::: {name}\n" for name in found[room])]
    return "\n".join(parts)


def _is_module(name: str) -> bool:
    return isinstance(getattr(mnvi, name), ModuleType)


def _room(path: str, value: object) -> str:
    """The room of the module that defines `value`; a plain value belongs to the module that lists it."""
    defined = getattr(value, "__module__", None) or path
    room = (defined if defined.startswith("mnvi.") else path).split(".")[1]
    if room not in ROOMS:
        raise KeyError(f"{path} lists a name of mnvi.{room}, which has no title: add it to ROOMS in {__file__}")
    return room
