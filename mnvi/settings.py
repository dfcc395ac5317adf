"""The choices among approximations: which one an operation uses when there is more than one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from types import TracebackType

PAPER_RELU_FLOOR = 1e-5

_CHOICES = {
    "activation": ("moments", "taylor"),
    "max_pool": ("argmax", "clark"),
    "dropout": ("variance", "sample"),
}


@dataclass(frozen=True)
class Options:
    """The settings in force; see :class:`options` for their meaning."""

    activation: str = "moments"
    max_pool: str = "argmax"
    dropout: str = "variance"
    relu_floor: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"options: {name}={value!r} is not one of {', '.join(map(repr, allowed))}")
        floor = self.relu_floor
        if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor < float("inf"):
            raise ValueError(f"options: relu_floor={floor!r} must be a finite number >= 0")


class _Current:
    """Holds the settings in force, as an attribute so that ``torch.compile`` guards on it."""

    value = Options()


current = _Current()


class options:
    r"""Choose approximations, for good or inside a ``with`` block.

    Args:
        activation: ``"moments"`` (default) uses closed forms or quadrature for the two moments
            :math:`E[f(Z)], V[f(Z)]`; ``"taylor"`` the first-order rule :math:`f(\mu), f'(\mu)^2 v` for every
            elementwise function.
        max_pool: ``"argmax"`` (default, the paper's) passes on the variance of the entry with the largest mean;
            ``"clark"`` matches the moments of the maximum pair by pair.
        dropout: in training, ``"variance"`` (default) adds the variance of the Bernoulli noise analytically;
            ``"sample"`` draws one mask. In evaluation dropout is the identity either way.
        relu_floor: lower bound on the input variance of a ReLU. 0 (default) keeps the limit of zero variance exact;
            the paper's experiments use ``1e-5`` (:data:`mnvi.options.PAPER_RELU_FLOOR`).

    Calling ``options(...)`` on its own does nothing but prepare: use ``with`` for a block, ``.set()`` to keep. A block
    goes around a compiled function, not inside it; a change makes the function compile anew.

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

    def __init__(self, **changes: str | float) -> None:
        known = [field.name for field in fields(Options)]
        for name in changes:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
                raise TypeError(f"options: unknown setting {name!r}{hint}")
        self._changes = changes
        self._before: list[Options] = []
        replace(Options(), **changes)  # type: ignore[arg-type]  # a bad value fails here, not at first use

    def set(self) -> None:
        """Keep these settings until changed again."""
        current.value = replace(current.value, **self._changes)  # type: ignore[arg-type]

    def __enter__(self) -> options:
        self._before.append(current.value)
        self.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current.value = self._before.pop()
