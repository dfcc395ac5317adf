"""One check for every number that a caller passes. It lives here because all rooms may import ``moments``."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from torch import Tensor


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    whole: bool = False,
    because: str = "",
) -> None:
    """Raise a ``ValueError`` that says what was expected unless a value is a finite number (also numpy's) in bounds.

    Args:
        name: caller and argument, e.g. ``"ELBO: kappa"``.
        value: the value to check.
        least, above: lower bound, inclusive or exclusive.
        most, below: upper bound, inclusive or exclusive.
        whole: accept whole numbers only.
        because: the reason for the bounds, or what to write instead; ends the message.

    Example:
        >>> check_number("ELBO: kappa", 0.5, least=0)
        >>> try:
        ...     check_number("Recipe: epochs", 0, least=1, whole=True)
        ... except ValueError as error:
        ...     print(error)
        Recipe: epochs=0 must be a whole number >= 1
    """
    is_number = isinstance(value, Integral if whole else Real) and value is not True and value is not False
    if (
        is_number
        and (whole or math.isfinite(value))
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        return
    bounds = ((">=", least), (">", above), ("<=", most), ("<", below))
    limits = " and".join(f" {sign} {bound:g}" for sign, bound in bounds if bound is not None)
    expected = f"a {'whole' if whole else 'finite'} number{limits}"
    item = "take the number out of the tensor with .item()" if isinstance(value, Tensor) else ""
    raise ValueError("; ".join(part for part in (f"{name}={value!r} must be {expected}", item, because) if part))
