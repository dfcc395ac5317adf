"""What counts as a number in an argument."""

from __future__ import annotations

from numbers import Real
from typing import Any


def is_number(value: Any) -> bool:
    """A real number, numpy's included; True and False are none.

    Example:
        >>> is_number(0.5), is_number(True), is_number("1")
        (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)
