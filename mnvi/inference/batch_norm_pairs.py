"""Finds the batch norms of a model that the layer before them can absorb."""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from mnvi import layers
from mnvi.inference.frozen import can_be_frozen
from mnvi.layers._wrapped import OneOperation, Wrapped
from mnvi.layers.base import BayesianLayer
from mnvi.layers.convolution import geometry

logger = logging.getLogger("mnvi")

_KINDS = ["Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
_LAYERS = tuple(getattr(package, kind) for package in (nn, layers) for kind in _KINDS)
Pairs = dict[nn.Module, nn.Module]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def find_pairs(model: nn.Module) -> Pairs:
    """Batch norms of a model in evaluation mode, each with the layer whose every output goes to it and nowhere else.

    The graph of ``torch.fx`` gives the pairs. A model that cannot be traced has none. The log, under the name "mnvi",
    reports the batch norms that are left, and why.

    Args:
        model: gets a hook that refuses arguments other than the defaults in force while it was traced.

    Example:
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).eval()
        >>> find_pairs(net)
        {BatchNorm1d(3, ...): Linear(in_features=2, out_features=3, bias=True)}
    """
    norms = {module: name for name, module in model.named_modules() if isinstance(module, NORMS)}
    if not norms:
        return {}
    try:
        pairs, obstacles, as_traced = traced_pairs(model)
    except CannotBeTracedError as error:
        logger.warning("none of the %d batch norms was folded: %s", len(norms), error)
        return {}
    if pairs and as_traced.defaults:
        _without_wrappers(model).register_forward_pre_hook(as_traced, with_kwargs=True)
    if left := [f"{name} ({obstacles[norm]})" for norm, name in norms.items() if norm not in pairs]:
        logger.warning("%d of %d batch norms could not be folded: %s", len(left), len(norms), ", ".join(left))
    return pairs


class CannotBeTracedError(Exception):
    """``torch.fx`` cannot trace a model, so none of its batch norms folds; the message says why."""


class _AsTraced:
    """A hook before ``forward`` that refuses arguments other than those in force when the batch norms were folded."""

    def __init__(self, forward: Callable) -> None:
        parameters = inspect.signature(forward).parameters.items()
        self.defaults = {name: parameter.default for name, parameter in parameters if _has_default(parameter)}
        self.places = {name: place for place, (name, _) in enumerate(parameters)}

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        for name, default in self.defaults.items():
            place = self.places[name]
            given = args[place] if place < len(args) else kwargs.get(name, default)
            if given is not default and (isinstance(given, Tensor) or given != default):
                raise ValueError(
                    f"batch norms were folded for {name}={default!r}, which this call changes; use the model from "
                    "before mnvi.optimize_for_inference"
                )


def _without_wrappers(model: nn.Module) -> nn.Module:
    """The network inside modules that hand their arguments on as ``*args``, which ``torch.fx`` cannot follow."""
    while isinstance(model, Wrapped):
        model = model.net
    return model


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return isinstance(module, BayesianLayer | OneOperation) or super().is_leaf_module(module, qualified_name)


class Traced(NamedTuple):
    """What a trace tells: each batch norm that folds with its layer, why the others do not, and for which arguments."""

    pairs: Pairs
    obstacles: dict[nn.Module, str]
    as_traced: _AsTraced


def traced_pairs(model: nn.Module) -> Traced:
    """Batch norms that get all outputs of one layer, each with that layer, and the arguments for which this holds.

    The model stays unchanged. Raises a :class:`CannotBeTracedError` if ``torch.fx`` cannot trace it.
    """
    model = _without_wrappers(model)
    as_traced = _AsTraced(model.forward)
    try:
        graph = _Tracer().trace(model, concrete_args=as_traced.defaults or None)
    except Exception as error:  # a model's own code may raise anything when given proxies
        reason = str(error).partition("\n")[0]
        raise CannotBeTracedError(
            f"{type(model).__name__} cannot be traced by torch.fx ({type(error).__name__}: {reason})"
        ) from error
    modules = dict(model.named_modules(remove_duplicate=False))
    calls: dict[nn.Module, list[fx.Node]] = defaultdict(list)
    used_otherwise = set()
    for node in graph.nodes:
        if node.op == "call_module":
            calls[modules[str(node.target)]].append(node)
        elif node.op == "get_attr":  # e.g. a weight that an operation outside its layer also uses
            used_otherwise.add(modules.get(str(node.target).rpartition(".")[0]))
    names = {module: name for name, module in model.named_modules()}
    pairs: Pairs = {}
    obstacles: dict[nn.Module, str] = {norm: "forward does not call it" for norm in names if isinstance(norm, NORMS)}
    for norm in [module for module in calls if module in obstacles]:
        sources = {source for node in calls[norm] for source in node.all_input_nodes}
        makers = {modules[str(source.target)] if source.op == "call_module" else None for source in sources}
        layer = makers.pop() if len(makers) == 1 else None
        if layer is None:
            obstacles[norm] = "its input is not the output of one layer"
            continue
        readers = {reader for node in calls[layer] for reader in node.users}
        if used_otherwise & {layer, norm}:
            obstacles[norm] = f"something else uses its weights or those of layer {names[layer]!r}"
        elif readers != set(calls[norm]) or sources != set(calls[layer]):
            obstacles[norm] = f"the output of layer {names[layer]!r} also goes elsewhere"
        elif (obstacle := _obstacle(layer, names[layer], norm)) is not None:
            obstacles[norm] = obstacle
        else:
            pairs[norm] = layer
            del obstacles[norm]
    return Traced(pairs, obstacles, as_traced)


def _obstacle(layer: Any, name: str, norm: Any) -> str | None:
    """Why a layer cannot do the work of the batch norm behind it; None if it can.

    Only plain layers without hooks can: a subclass may change the output, and a hook may read or set values.
    """
    if any(m._forward_hooks or m._forward_pre_hooks for m in (layer, norm)):
        return f"it or layer {name!r} has a hook"
    if not _ends_with_its_weights(layer) or type(norm) not in NORMS:
        return f"folding does not know {type(layer).__name__} with {type(norm).__name__}"
    if isinstance(layer, BayesianLayer) and not can_be_frozen(layer):
        return f"posterior {layer.posterior} of layer {name!r} overrides Posterior.moments"
    if norm.running_var is None:
        return "it has no running statistics"
    units = geometry(layer).out_units(layer.weight)
    return None if norm.num_features == units else f"it has {norm.num_features} features, layer {name!r} {units} units"


def _ends_with_its_weights(layer: Any) -> bool:
    """Whether a layer's output is that of its linear operation; a subclass with a posterior may change the input."""
    if type(layer) in _LAYERS:
        return True
    kinds = [kind for kind in _LAYERS if issubclass(kind, BayesianLayer) and isinstance(layer, kind)]
    return any(type(layer).forward is kind.forward for kind in kinds)
