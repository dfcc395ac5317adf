"""Names of earlier versions: files saved under them still load, and a removed name says what to write instead."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import torch

from mnvi.values.base import restored

_PARALLEL = "use torch.nn.parallel.DistributedDataParallel, one process per device; it needs nothing from here"
_GONE = {
    "DataParallel": _PARALLEL,
    "optimizers": "use torch.optim, also on the flat tensors of replicas",
    "parallel": _PARALLEL,
    "quadrature": "write mnvi.elementwise(function, 'quadrature', order=...)",
    "taylor": "write mnvi.elementwise(function, 'taylor')",
    "vision": "import torchvision itself; it needs a build that fits torch's",
}

# New locations of classes and functions that files of 0.1.0 and early 0.2.0 name.
_PLACES: dict[str, tuple[str, ...]] = {
    "mnvi.alike": ("mnvi.replicas.alike",),
    "mnvi.attention": ("mnvi.layers.attention", "mnvi.layers.shifted_windows"),
    "mnvi.blocks": ("mnvi.replicas.step",),
    "mnvi.convert": ("mnvi.conversion.converting", "mnvi.elbo", "mnvi.layers.base"),
    "mnvi.copying": ("mnvi.conversion.copying",),
    "mnvi.elementwise": ("mnvi.rules.elementwise",),
    "mnvi.export": ("mnvi.inference.exporting",),
    "mnvi.folding": ("mnvi.inference.folding", "mnvi.inference.batch_norm_pairs"),
    "mnvi.frozen": ("mnvi.inference.frozen",),
    "mnvi.likelihoods.gaussian": ("mnvi.likelihoods.gaussian_targets",),
    "mnvi.mean_calls": ("mnvi.conversion.mean_calls",),
    "mnvi.montecarlo": ("mnvi.methods.montecarlo", "mnvi.methods.ensemble"),
    "mnvi.objective": ("mnvi.elbo",),
    "mnvi.precision": ("mnvi.moments.precision",),
    "mnvi.recipe": ("mnvi.replicas.recipe",),
    "mnvi.recording": ("mnvi.replicas.recording",),
    "mnvi.registry": ("mnvi.rules.table",),
    "mnvi.outputs": ("mnvi.values.samples",),
    "mnvi.settings": ("mnvi.rules.options",),
    "mnvi.tracing": ("mnvi.moments.tracing",),
    "mnvi.value": ("mnvi.values.base",),
    "mnvi.gaussian": ("mnvi.values.gaussian",),
    "mnvi.models.all_cnn": ("mnvi.models._all_cnn",),
    "mnvi.models.lenet": ("mnvi.models._lenet",),
    "mnvi.models.mlp": ("mnvi.models._mlp",),
    "mnvi.models.resnet18": ("mnvi.models._resnet",),
    "mnvi.moments.linear": ("mnvi.moments.affine",),
    "mnvi.moments.relu": ("mnvi.moments.activations.relu",),
}
_REMOVED = """
    mnvi.checks mnvi.first_order mnvi.metrics.checks mnvi.moments.covariance mnvi.moments.elu mnvi.moments.gelu
    mnvi.moments.hardswish mnvi.moments.logistic mnvi.moments.piecewise mnvi.moments.rectifiers mnvi.moments.softsign
    mnvi.moments.transcendental mnvi.rules.covariance mnvi.rules.linear
"""


_OLD_FILES = (
    "to load an old file that needs it, use mnvi 0.1, save the model's state_dict(), and load that into a model made "
    "by mnvi.convert"
)


class _Moved(ModuleType):
    """Stands in for a module of an earlier version when ``torch.load`` or ``pickle`` looks a name up in it."""

    def __getattr__(self, name: str) -> object:
        for place in _PLACES[self.__name__]:
            if hasattr(module := import_module(place), name):
                return getattr(module, name)
        if name.startswith("__"):
            raise AttributeError(name)
        # not an AttributeError, whose message unpicklers replace by their own
        raise ImportError(f"{self.__name__}.{name} was moved or removed in mnvi 0.2; {_OLD_FILES}")


class _Removed(MetaPathFinder):
    """Lets imports of what was removed, ``from mnvi import taylor`` among them, fail with what to write instead."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        name = fullname.removeprefix("mnvi.")
        if fullname == f"mnvi.{name}" and name in _GONE:
            raise ImportError(f"{explain(name)}; {_OLD_FILES}", name=fullname)
        if fullname in _REMOVED.split():
            raise ImportError(f"{fullname} was removed in version 0.2; {_OLD_FILES}", name=fullname)


def let_old_files_load() -> None:
    """Redirect the modules that old pickles name to where their contents are now."""
    for name in _PLACES:
        sys.modules.setdefault(name, _Moved(name))
    sys.meta_path.append(_Removed())
    torch.serialization.add_safe_globals([(restored, "mnvi.value.restored")])  # for weights_only=True


def explain(name: str) -> str:
    """Error message for a name that ``mnvi`` does not have."""
    if name in _GONE:
        return f"mnvi.{name} was removed in version 0.2: {_GONE[name]}"
    return f"module 'mnvi' has no attribute {name!r}"
