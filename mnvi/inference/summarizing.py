"""What a model is made of: which layers have a posterior, and what happens to the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.conversion.obstacles import owners, why_deterministic
from mnvi.inference.batch_norm_pairs import NORMS, CannotBeTracedError, traced_pairs
from mnvi.inference.exporting import evaluation_mode
from mnvi.inference.optimizing import uncompiled
from mnvi.layers.base import BayesianLayer
from mnvi.methods.ensemble import Ensemble
from mnvi.methods.montecarlo import MonteCarlo
from mnvi.moments import outer_products
from mnvi.rules.fallbacks import listening

_LONGEST = 60  # characters of a cell


@dataclass(frozen=True)
class LayerSummary:
    """One row of a :class:`Summary`.

    Args:
        name: as in ``model.named_modules()``.
        kind: the layer's class.
        bayesian: whether it has a posterior.
        why: the posterior, or why there is none.
        parameters: number of parameters, the posterior's included; those of tied layers count in the first.
        noise: how many of them the posterior has added.
        folds_into: for a batch norm, the layer that absorbs it in :func:`mnvi.optimize_for_inference`.
        unfolded: for a batch norm of a model in which none folds, the reason.
        called: whether the example reached it; None without an example.
        fallbacks: functions that fell back, for the example, to a coarser assumption than the options ask for.
        missed: for a layer with factored variances, how far the factors are from its squared weights
            (:func:`mnvi.moments.outer_products.miss`); None if its variances are exact.
        terms: for a layer with factored variances, the number of outer products that stand for its squared weights.
    """

    name: str
    kind: str
    bayesian: bool
    why: str
    parameters: int
    noise: int
    folds_into: str | None = None
    unfolded: str | None = None
    called: bool | None = None
    fallbacks: tuple[str, ...] = ()
    missed: float | None = None
    terms: int = 0

    @property
    def remarks(self) -> str:
        """Factored variances, folding or why not, fallbacks and a missing call, in words."""
        found = []
        if self.missed is not None:
            terms = f" in {self.terms} terms" if self.terms > 1 else ""
            found.append(f"variances factored{terms}, off by {self.missed:.2f}")
        if self.folds_into is not None:
            found.append(f"folds into {self.folds_into or 'the model'}")
        if self.unfolded is not None:
            found.append("does not fold")
        if self.bayesian and self.called is False:
            found.append("not called: its noise is unused")
        if self.fallbacks:
            found.append(f"falls back: {', '.join(self.fallbacks)}")
        return "; ".join(found)


@dataclass(frozen=True)
class Summary:
    """The result of :func:`summary`: iterate over it, index it by position or by a layer's name, or print it."""

    rows: tuple[LayerSummary, ...]

    def __iter__(self) -> Iterator[LayerSummary]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | str) -> LayerSummary:
        if isinstance(key, int):
            return self.rows[key]
        for row in self.rows:
            if row.name == key:
                return row
        raise KeyError(f"summary: no layer is called {key!r}; there are {', '.join(repr(r.name) for r in self.rows)}")

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return sum(row.parameters for row in self.rows)

    @property
    def noise(self) -> int:
        """Number of parameters that posteriors have added."""
        return sum(row.noise for row in self.rows)

    @property
    def bayesian_share(self) -> float:
        """Share of the model's own parameters, without those of posteriors, that belong to layers with a posterior."""
        own = sum(row.parameters - row.noise for row in self.rows)
        return sum(row.parameters - row.noise for row in self.rows if row.bayesian) / own if own else 0.0

    def __str__(self) -> str:
        titles = ("layer", "kind", "Bayesian", "posterior, or why none", "parameters", "noise", "remarks")
        cells = [
            (row.name or "(model)", row.kind, "yes" if row.bayesian else "no", row.why, f"{row.parameters:,}",
             f"{row.noise:,}", row.remarks)
            for row in self.rows
        ]  # fmt: skip
        shown = [[_shortened(cell) for cell in line] for line in (titles, *cells)]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        numbers = (4, 5)
        lines = [
            "  ".join(
                cell.rjust(width) if place in numbers else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in shown
        ]
        lines.insert(1, "-" * max(map(len, lines)))
        reasons = dict.fromkeys(row.unfolded for row in self.rows if row.unfolded is not None)
        return "\n".join([*lines, self._totals(), *(f"no batch norm folds: {reason}" for reason in reasons)])

    def _totals(self) -> str:
        layers = sum(row.bayesian for row in self.rows)
        noise = 100 * self.noise / max(1, self.parameters)
        return (
            f"{layers} of {len(self.rows)} layers are Bayesian, with {100 * self.bayesian_share:.1f} % of the model's "
            f"own parameters; noise is {noise:.2f} % of all {self.parameters:,} parameters"
        )


def summary(model: nn.Module, example: Any = None) -> Summary:
    """List every layer of a model: its posterior or why it has none, its parameters, and whether it folds.

    A layer is listed if it has parameters of its own or is a batch norm. Batch norms that
    :func:`mnvi.optimize_for_inference` will fold are marked; if it can fold none, because ``torch.fx`` cannot trace the
    model, they say so. With an example the model runs once, in evaluation mode and under the options in force; then the
    summary also tells which Bayesian layers the pass did not call, and which functions fell back to a coarser
    assumption. A function that belongs to no listed layer is reported by the module that calls it.

    Args:
        model: any module, converted or not; it stays unchanged.
        example: an input, a tuple of inputs, or a dictionary of keyword arguments.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten())
        >>> net.append(torch.nn.Linear(72, 2))  # doctest: +ELLIPSIS
        Sequential(...)
        >>> table = mnvi.summary(mnvi.convert(net, mnvi.MultiplicativeNoise(1.0), skip="3"))
        >>> print(table)  # doctest: +NORMALIZE_WHITESPACE
        layer  kind         Bayesian  posterior, or why none  parameters  noise  remarks
        -------------------------------------------------------------------------------------
        0      Conv2d       yes       MultiplicativeNoise             81      1
        1      BatchNorm2d  no        scales and shifts only          16      0  folds into 0
        3      Linear       no        not converted                  146      0
        1 of 3 layers are Bayesian, with 33.1 % of the model's own parameters; noise is 0.41 % of all 243 parameters
        >>> [row.name for row in table if row.bayesian], table["1"].folds_into
        (['0'], '0')
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"summary: model must be a torch.nn.Module, got {type(model).__name__}")
    model = uncompiled(model)
    with evaluation_mode(model):
        folding, reasons = _folding(model)
        run = None if example is None else _Run(model, example)
    seen: set[int] = set()
    rows = []
    for name, module, parameters in owners(model):
        own = {key: p for key, p in parameters.items() if id(p) not in seen}
        seen.update(map(id, own.values()))
        fallbacks = () if run is None else tuple(run.fallbacks.get(name, {}))
        listed = isinstance(module, (BayesianLayer, *NORMS)) or bool(parameters)
        if not listed and not fallbacks:
            continue
        bayesian = isinstance(module, BayesianLayer)
        torchs = module.own_names if isinstance(module, BayesianLayer) else tuple(own)
        added = [p for key, p in own.items() if key in module._parameters and key not in torchs]
        rows.append(
            LayerSummary(
                name,
                type(module).__name__,
                bayesian,
                type(module.posterior).__name__ if bayesian else why_deterministic(module) if listed else "",
                sum(_size(p) for p in own.values()),
                sum(_size(p) for p in added),
                folding.get(name),
                reasons.get(name),
                None if run is None else name in run.called,
                fallbacks,
                *_factoring(module),
            )
        )
    return Summary(tuple(rows))


@torch.no_grad()
def _factoring(layer: nn.Module) -> tuple[float | None, int]:
    """By how much the factors miss, and their number."""
    if not isinstance(layer, BayesianLayer) or not layer.posterior.is_factored(layer):
        return None, 0
    matrix, terms = layer.posterior.factoring(layer)
    return float(outer_products.miss(layer.geometry, matrix, terms)), len(terms)


def _folding(model: nn.Module) -> tuple[dict[str, str], dict[str, str]]:
    """Batch norms that will fold, each with the layer that absorbs it, and those that will not, with the reason."""
    folds: dict[str, str] = {}
    reasons: dict[str, str] = {}
    if isinstance(model, MonteCarlo | Ensemble):
        inside = {"net": model.net} if isinstance(model, MonteCarlo) else dict(model.members.named_children())
        prefix = "" if isinstance(model, MonteCarlo) else "members."
        for part, net in inside.items():
            folds_there, reasons_there = _folding(net)
            folds |= {f"{prefix}{part}.{norm}": f"{prefix}{part}.{layer}" for norm, layer in folds_there.items()}
            reasons |= {f"{prefix}{part}.{norm}": reason for norm, reason in reasons_there.items()}
        return folds, reasons
    names = {module: name for name, module in model.named_modules()}
    norms = [name for module, name in names.items() if isinstance(module, NORMS)]
    if not norms:
        return folds, reasons
    try:
        pairs, obstacles, _ = traced_pairs(model)
    except CannotBeTracedError as error:
        return folds, dict.fromkeys(norms, str(error))
    reasons = {names[norm]: obstacle for norm, obstacle in obstacles.items()}
    return {names[norm]: names[layer] for norm, layer in pairs.items()}, reasons


class _Run:
    """One pass of a model: which modules were called, and which functions fell back inside which module."""

    def __init__(self, model: nn.Module, example: Any) -> None:
        self.called: set[str] = set()
        self.fallbacks: dict[str, dict[str, None]] = {}  # an ordered set for each module
        self._inside: list[str] = []
        hooks = []
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entering(name)))
            # before the model's own hooks, one of which removes itself
            hooks.append(module.register_forward_hook(self._leaving, prepend=True, always_call=True))
        try:
            with torch.no_grad(), listening(self._note):
                if isinstance(example, dict):
                    model(**example)
                else:
                    model(*(example if isinstance(example, tuple) else (example,)))
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Any:
        def enter(module: nn.Module, args: Any) -> None:
            self.called.add(name)
            self._inside.append(name)

        return enter

    def _leaving(self, module: nn.Module, args: Any, out: Any) -> None:
        self._inside.pop()

    def _note(self, function: str) -> None:
        self.fallbacks.setdefault(self._inside[-1], {})[function] = None


def _size(parameter: Tensor) -> int:
    return 0 if isinstance(parameter, nn.parameter.UninitializedParameter) else parameter.numel()


def _shortened(cell: str) -> str:
    return cell if len(cell) <= _LONGEST else f"{cell[: _LONGEST - 2]} …"
