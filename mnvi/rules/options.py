"""Options: which approximation an operation uses when there are several."""

from __future__ import annotations

import sys
import threading
import warnings
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from types import TracebackType

from mnvi.moments._torch import is_compiling
from mnvi.moments.checking import check_number

PAPER_RELU_FLOOR = 1e-5
PAPER: dict[str, str | float] = {
    "relu_floor": PAPER_RELU_FLOOR,
    "spatial": "independent",
    "batch_norm": "constant_scale",
}

_CHOICES = {
    "activation": ("moments", "quadrature", "taylor"),
    "batch_norm": ("full_gradient", "constant_scale"),
    "max_pool": ("argmax", "clark"),
    "dropout": ("variance", "sample"),
    "spatial": ("independent", "shared_weights"),
    "kl": ("together", "by_layer"),
}


@dataclass(frozen=True)
class Options:
    """The settings in force; see :class:`options` for their meaning."""

    activation: str = "moments"
    max_pool: str = "argmax"
    dropout: str = "variance"
    relu_floor: float = 0.0
    spatial: str = "independent"
    batch_norm: str = "full_gradient"
    kl: str = "together"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"options: {name}={value!r} is not one of {', '.join(map(repr, allowed))}")
        check_number("options: relu_floor", self.relu_floor, least=0)


@dataclass(frozen=True)
class _State:
    """The settings in force, and what they are made of: what each open block changes, the outermost first."""

    blocks: tuple[tuple[object, dict[str, str | float]], ...]
    value: Options


_DEFAULTS = _State((), Options())
_STATE: ContextVar[_State] = ContextVar("mnvi.options", default=_DEFAULTS)


class _SeenByCompiler(threading.local):
    """A copy for ``torch.compile``, which cannot trace a context variable but guards on an attribute of a thread."""

    def __init__(self) -> None:
        self.value = Options()


_SEEN_BY_COMPILER = _SeenByCompiler()


def current() -> Options:
    """The settings in force, in this thread and task."""
    return _SEEN_BY_COMPILER.value if is_compiling() else _STATE.get().value


def _keep(*blocks: tuple[object, dict[str, str | float]]) -> None:
    merged = {name: choice for _, changes in blocks for name, choice in changes.items()}
    value = replace(Options(), **merged)  # type: ignore[arg-type]
    _STATE.set(_State(blocks, value))
    _SEEN_BY_COMPILER.value = value


class options:
    r"""Choose approximations, permanently or inside a ``with`` block.

    Args:
        activation: ``"moments"`` (default) uses closed forms, tables or quadrature for the two moments
            :math:`E[f(Z)], V[f(Z)]`; ``"quadrature"`` integrates in place of tables and takes ten times as long in
            eager mode (:mod:`mnvi.moments.activations.tabulated` lists the errors of tables, for most inputs below
            :math:`2 \cdot 10^{-4}`); ``"taylor"`` is the first-order rule :math:`f(\mu), f'(\mu)^2 v` for every
            elementwise function.
        max_pool: ``"argmax"`` (default, the paper's) passes on the variance of the entry with the largest mean;
            ``"clark"`` matches the moments of the maximum pair by pair.
        dropout: in training, ``"variance"`` (default) adds the variance of the Bernoulli noise analytically;
            ``"sample"`` draws one mask. In evaluation dropout is the identity either way.
        relu_floor: lower bound on the input variance of a ReLU. 0 (default) keeps the limit of zero variance exact;
            the paper's experiments use ``1e-5`` (:data:`mnvi.options.PAPER_RELU_FLOOR`).
        spatial: ``"independent"`` (default, the paper's) treats positions of an image and tokens of a sequence as
            independent; ``"shared_weights"`` carries the mean covariance between two positions of a channel, which the
            weights that they share cause (:attr:`mnvi.Gaussian.shared`). It matters for networks that average over
            positions: their variances otherwise come out far too small.
        batch_norm: in training, the scale of a batch norm depends on the means of the batch. ``"full_gradient"``
            (default) differentiates it also in the variance; ``"constant_scale"``, as the paper's release does, does
            not. Values are the same.
        kl: ``"together"`` (default) computes the KL of neighbouring layers at once, ``"by_layer"`` one layer after the
            other. The two differ in rounding alone.

    ``options(**options.PAPER)`` are the settings of the paper's experiments. ``options(...)`` by itself changes
    nothing, and warns: use ``with`` for a block, or ``.set()`` to keep the settings. Options are a context variable:
    each thread and each asynchronous task has its own, and a new thread starts with the defaults. Compiled functions
    follow the options of their thread, whatever the task. Put a block around a compiled function, not inside it; a
    changed option recompiles the function.

    ``torch.utils.checkpoint`` computes a second time in the backward pass, on a GPU in a thread of autograd's, where
    the defaults are in force. Put the block inside the function that is checkpointed, not around the call.

    Example:
        >>> import torch, mnvi
        >>> x = mnvi.Gaussian(torch.zeros(1), torch.ones(1))
        >>> with mnvi.options(activation="taylor"):
        ...     print(torch.sigmoid(x).var)
        tensor([0.0625])
        >>> print(torch.sigmoid(x).var)
        tensor([0.0434])
    """

    PAPER_RELU_FLOOR = PAPER_RELU_FLOOR
    PAPER = PAPER
    _used = True  # nothing to warn about until the arguments are checked

    def __init__(self, **changes: str | float) -> None:
        known = [field.name for field in fields(Options)]
        for name in changes:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
                raise TypeError(f"options: unknown setting {name!r}{hint}")
        self._changes = changes
        replace(Options(), **changes)  # type: ignore[arg-type]  # a bad value fails here, not at first use
        self._used = False

    def set(self) -> None:
        """Keep these settings, in this thread or task, until changed again."""
        self._used = True
        *before, (block, changes) = _STATE.get().blocks or ((None, {}),)
        _keep(*before, (block, {**changes, **self._changes}))

    def __enter__(self) -> options:
        self._used = True
        _keep(*_STATE.get().blocks, (self, self._changes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        blocks = list(_STATE.get().blocks)
        places = [place for place, (block, _) in enumerate(blocks) if block is self]
        if places:  # a generator may leave its block while a later one is open, or in another task
            del blocks[places[-1]]
            _keep(*blocks)

    def __del__(self) -> None:
        if not self._used and not sys.is_finalizing():
            changes = ", ".join(f"{name}={value!r}" for name, value in self._changes.items())
            warnings.warn(
                f"mnvi.options({changes}) was made but not used, so it changed nothing; write `with "
                f"mnvi.options({changes}):` around the calls that it is for, or mnvi.options({changes}).set()",
                stacklevel=2,
            )
