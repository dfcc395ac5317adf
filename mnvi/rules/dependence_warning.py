"""The warning about values that count as independent although they are not."""

from __future__ import annotations

import inspect
import warnings

from mnvi.moments._torch import is_compiling


class DependenceWarning(UserWarning):
    """Values of one source meet, and the rule takes them for independent; the message names the line.

    Example:
        >>> import torch, mnvi, warnings
        >>> x = mnvi.Gaussian(torch.zeros(3, 3), torch.ones(3, 3))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     y = torch.matmul(x, torch.relu(x))
        ...     total = x[:, :1].expand(3, 3).sum()
        >>> [warning.category.__name__ for warning in caught]
        ['DependenceWarning', 'DependenceWarning']
    """


def warn_about_operands(name: str) -> None:
    """Warn that the operands of a function depend on each other.

    Args:
        name: the function.
    """
    warn(
        f"{name}: its operands are functions of the same random value, but they count as independent, so the variance "
        "is wrong; if entries only meet themselves, put the function into mnvi.elementwise"
    )


def warn(message: str) -> None:
    """Warn once for each line of the user's code; not while compiling, since an eager run has warned before.

    Args:
        message: what is wrong; the place is added to it.
    """
    if is_compiling():
        return
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("mnvi.", "torch.")):
        frame = frame.f_back
    if frame is None:
        warnings.warn(message, DependenceWarning, stacklevel=2)
        return
    place = frame.f_code.co_filename, frame.f_lineno
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        f"{message} ({place[0]}, line {place[1]}, in {frame.f_code.co_name})", DependenceWarning, *place,
        module=frame.f_globals.get("__name__"), registry=registry,
    )  # fmt: skip
