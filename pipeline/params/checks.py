"""Checks of single values. Each takes the path of a key and its value, and gives the value as the program wants it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pipeline.errors import StudyError

Check = Callable[[str, Any], Any]


def fail(path: str, value: Any, expected: str, to_do: str) -> StudyError:
    return StudyError(f"{path}: {value!r} is not {expected}; {to_do}")


def unknown(path: str, name: Any, known: Collection[str], what: str) -> StudyError:
    """An error for a name that is not among those known, with the nearest one."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    to_do = f"did you mean {near[0]}?" if near else "take one of them"
    return StudyError(f"{path}: {name!r} is not {what} ({', '.join(known) or 'there are none'}); {to_do}")


def integer(least: int = 0) -> Check:
    def check(path: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise fail(path, value, f"a whole number of at least {least}", "write one without quotes or decimals")
        return value

    return check


def number(least: float = -math.inf, above: float = -math.inf, below: float = math.inf) -> Check:
    bounds = [
        text
        for given, text in (
            (least > -math.inf, f"of at least {least:g}"),
            (above > -math.inf, f"above {above:g}"),
            (below < math.inf, f"below {below:g}"),
        )
        if given
    ]
    expected = f"a number {' and '.join(bounds)}".rstrip()

    def check(path: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise fail(path, value, expected, "write it without quotes")
        if not math.isfinite(value) or value < least or value <= above or value >= below:
            raise fail(path, value, expected, "choose another one")
        return float(value)

    return check


def boolean(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise fail(path, value, "true or false", "write one of them without quotes")
    return value


def switch(path: str, value: Any) -> Any:
    if not isinstance(value, bool) and value != "auto":
        raise fail(path, value, "true, false or auto", "write one of them without quotes")
    return value


def text(path: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise fail(path, value, "a text", "write some, in quotes if YAML takes it for something else")
    return value


def matching(pattern: str, expected: str) -> Check:
    def check(path: str, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise fail(path, value, expected, "write it so")
        return value

    return check


def one_of(known: Collection[str], what: str | None = None) -> Check:
    def check(path: str, value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise unknown(path, value, known, what or "one of those known")
        return value

    return check


def nullable(check: Check) -> Check:
    return lambda path, value: None if value is None else check(path, value)


def list_of(check: Check) -> Check:
    def check_list(path: str, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise fail(path, value, "a list", "write [first, second] or [] for none")
        checked = [check(f"{path}[{index}]", item) for index, item in enumerate(value)]
        for index, item in enumerate(checked):
            if item in checked[:index]:
                raise StudyError(f"{path}[{index}]: {item!r} is in the list already; leave it out")
        return checked

    return check_list


def ascending(path: str, value: Any) -> tuple[int, ...]:
    epochs = list_of(integer(1))(path, value)
    if epochs != sorted(epochs):
        raise fail(path, value, "in ascending order", f"write {sorted(epochs)}")
    return tuple(epochs)


def schedule(path: str, value: Any) -> dict[int, float]:
    """From which epoch on which factor holds."""
    steps = {integer(0)(f"{path}, epoch", epoch): factor for epoch, factor in mapping(path, value).items()}
    if 0 not in steps:
        raise fail(path, value, "a schedule that starts at epoch 0", "add e.g. 0: 1.0")
    return {epoch: number(least=0)(f"{path}.{epoch}", steps[epoch]) for epoch in sorted(steps)}


def mapping(path: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise fail(path, value, "a section", "write key: value lines below it, or {} for an empty one")
    return value


def section(path: str, value: Any, fields: Mapping[str, Check], required: Collection[str]) -> dict[str, Any]:
    """Checks every key of a section; a key that is neither known nor required makes an error."""
    raw = mapping(path, value)
    for key in raw:
        if key not in fields:
            raise unknown(f"{path}.{key}", key, fields, "a key of this section")
    for key in required:
        if key not in raw:
            raise StudyError(f"{path}.{key}: is missing, but is needed (by the stages or by dvc.yaml); add it")
    return {key: fields[key](f"{path}.{key}", item) for key, item in raw.items()}
