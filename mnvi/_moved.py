"""Names of earlier versions: files saved under them still load, and a removed name says what to write instead."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import torch

from mnvi.values.base import restored

_GONE = {
    "DataParallel": "use torch.nn.parallel.DistributedDataParallel, one process per device; it needs nothing from here",
    "optimizers": "use torch.optim, also on the flat tensors of replicas",
    "quadrature": "write mnvi.elementwise(function, 'quadrature', order=...)",
    "taylor": "write mnvi.elementwise(function, 'taylor')",
    "vision": "import torchvision itself; it needs a build that fits torch's",
}

# Where the classes and functions that version 0.1.0, or 0.2.0 before its release, pickled are now.
_PLACES = {
    "mnvi.attention": ("mnvi.layers.attention", "mnvi.layers.shifted_windows"),
    "mnvi.blocks": ("mnvi.replicas.step",),
    "mnvi.folding": ("mnvi.inference.folding", "mnvi.inference.batch_norm_pairs"),
    "mnvi.frozen": ("mnvi.inference.frozen",),
    "mnvi.likelihoods.gaussian": ("mnvi.likelihoods.gaussian_targets",),
    "mnvi.mean_calls": ("mnvi.conversion.mean_calls",),
    "mnvi.montecarlo": ("mnvi.methods.montecarlo", "mnvi.methods.ensemble"),
    "mnvi.objective": ("mnvi.elbo",),
    "mnvi.parallel": (),
    "mnvi.recipe": ("mnvi.replicas.recipe",),
    "mnvi.registry": ("mnvi.rules.table",),
    "mnvi.outputs": ("mnvi.values.samples",),
    "mnvi.settings": ("mnvi.rules.options",),
    "mnvi.value": ("mnvi.values.base",),
    "mnvi.gaussian": ("mnvi.values.gaussian",),
    "mnvi.models.all_cnn": ("mnvi.models._all_cnn",),
    "mnvi.models.lenet": ("mnvi.models._lenet",),
    "mnvi.models.mlp": ("mnvi.models._mlp",),
    "mnvi.models.resnet18": ("mnvi.models._resnet",),
}


class _Moved(ModuleType):
    """Stands in for a module of an earlier version when ``torch.load`` or ``pickle`` looks a name up in it."""

    def __getattr__(self, name: str) -> object:
        for place in _PLACES[self.__name__]:
            if hasattr(module := import_module(place), name):
                return getattr(module, name)
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(  # not an AttributeError, whose message unpicklers replace by their own
            f"{self.__name__}.{name} moved in mnvi 0.2, and old files cannot load it; load the file with mnvi 0.1, "
            "save the model's state_dict(), and load that into a model made by mnvi.convert"
        )


def let_old_files_load() -> None:
    """Redirect the modules that old pickles name to where their contents are now."""
    for name in _PLACES:
        sys.modules.setdefault(name, _Moved(name))
    torch.serialization.add_safe_globals([(restored, "mnvi.value.restored")])  # for weights_only=True


def explain(name: str) -> str:
    """Error message for a name that ``mnvi`` does not have."""
    if name in _GONE:
        return f"mnvi.{name} was removed in version 0.2: {_GONE[name]}"
    return f"module 'mnvi' has no attribute {name!r}"
