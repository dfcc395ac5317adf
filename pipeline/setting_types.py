"""Types of settings: pydantic types, each with its own message for a value that does not fit.

`checked` validates a whole section and reports the first mistake as a StudyError: the path of the key, its value, what
was expected, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import is_typeddict

from pipeline.errors import StudyError
from pipeline.names import not_known, unknown

Items = TypeVar("Items", tuple[Any, ...], list[Any])

STRICT = ConfigDict(strict=True, extra="forbid")


def misfit(value: Any, expected: str, to_do: str, below: str = "") -> PydanticCustomError:
    """The error that a validator raises.

    Args:
        below: added to the path of the key, e.g. [1] for an item of a list.
    """
    return _told(f"{value!r} is not {expected}; {to_do}", below)


def _told(text: str, below: str = "") -> PydanticCustomError:
    return PydanticCustomError("told", "{text}", {"text": text, "below": below})


@dataclass(frozen=True)
class Says:
    """Replaces pydantic's message for a value that does not fit."""

    expected: str
    to_do: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        context = {"expected": self.expected, "to_do": self.to_do}
        return core_schema.custom_error_schema(
            handler(source), "misfit", custom_error_message="{expected}; {to_do}", custom_error_context=context
        )


_WHOLE = "write one without quotes or decimals"
_NUMBER = "write a different one, without quotes"

Count = Annotated[int, Field(strict=True, ge=1), Says("a whole number of at least 1", _WHOLE)]
Folds = Annotated[int, Field(strict=True, ge=2), Says("a whole number of at least 2", _WHOLE)]
Index = Annotated[int, Field(strict=True, ge=0), Says("a whole number of at least 0", _WHOLE)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False), Says("a number", _NUMBER)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False), Says("a number above 0", _NUMBER)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False), Says("a number of at least 0", _NUMBER)]
Momentum = Annotated[
    float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False), Says("a number of at least 0 and below 1", _NUMBER)
]
Share = Annotated[
    float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False), Says("a number above 0 and below 1", _NUMBER)
]
# The library refuses MNVI below this.
Variance = Annotated[
    float, Field(strict=True, ge=1e-9, allow_inf_nan=False), Says("a number of at least 1e-09", _NUMBER)
]
Boolean = Annotated[bool, Field(strict=True), Says("true or false", "write one of them without quotes")]
_TEXT = Says("text", "write a non-empty string, in quotes if YAML reads it as something else")
Text = Annotated[str, Field(strict=True, min_length=1), _TEXT]
Name = Annotated[
    str,
    Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$"),
    Says("a name of letters, digits, - and _", "use only these, starting with a letter or digit"),
]
Sha256 = Annotated[str, Field(strict=True, pattern=r"^[0-9a-f]{64}$"), Says("64 hexadecimal digits", "write all 64")]
Column = Annotated[
    Annotated[int, Field(strict=True, ge=0)] | Annotated[str, Field(strict=True, min_length=1)],
    Says("the name of a column, or its number counted from 0", "write one of the two"),
]
Section = Annotated[
    dict[Any, Any],
    Field(strict=True),
    Says("a section", "write key: value lines below it, or {} for an empty one"),
]


def _switch(value: Any) -> bool | str:
    if not isinstance(value, bool) and value != "auto":
        raise misfit(value, "true, false or auto", "write one of them without quotes")
    return value


Switch = Annotated[bool | str, BeforeValidator(_switch)]


def one_of(
    names: Callable[[Mapping[str, Any]], Collection[str]],
    what: Callable[[Mapping[str, Any]], str] = lambda _: "one of those known",
    or_like: re.Pattern[str] | None = None,
) -> BeforeValidator:
    """Accepts a known name; which names are known may depend on the fields before this one.

    Args:
        or_like: pattern of texts that are accepted as well.
    """

    def check(value: Any, info: ValidationInfo) -> str:
        if isinstance(value, str) and or_like is not None and or_like.fullmatch(value):
            return value
        found = names(info.data)
        if not isinstance(value, str) or value not in found:
            raise _told(not_known(value, found, what(info.data)))
        return value

    return BeforeValidator(check)


def known(*names: str) -> BeforeValidator:
    return one_of(lambda _: names)


def _list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise misfit(value, "a list", "write [first, second] or [] for none")
    return tuple(value)


def _each_once(items: Items) -> Items:
    for index, item in enumerate(items):
        if item in items[:index]:
            raise _told(f"{item!r} is in the list already; leave it out", f"[{index}]")
    return items


def _ascending(epochs: tuple[int, ...]) -> tuple[int, ...]:
    if list(epochs) != sorted(epochs):
        raise misfit(list(epochs), "in ascending order", f"write {sorted(epochs)}")
    return epochs


LISTED = BeforeValidator(_list)
LISTED_AS_LIST = BeforeValidator(lambda value: list(_list(value)))
EACH_ONCE = AfterValidator(_each_once)
Names = Annotated[tuple[Name, ...], LISTED, EACH_ONCE]
Texts = Annotated[tuple[Text, ...], LISTED, EACH_ONCE]
Epochs = Annotated[tuple[Count, ...], LISTED, EACH_ONCE, AfterValidator(_ascending)]


def _schedule(steps: dict[int, float]) -> dict[int, float]:
    if steps and 0 not in steps:
        raise misfit(steps, "a schedule that starts at epoch 0", "add e.g. 0: 1.0")
    return {epoch: steps[epoch] for epoch in sorted(steps)}


Schedule = Annotated[dict[Index, NotNegative], Field(strict=True), AfterValidator(_schedule)]
"""Maps the first epoch of each step to its factor; empty without a schedule."""

TAKEN = (
    *("benchmarks", "build", "data", "dist", "docker", "docs", "dvc_plots", "examples", "mlartifacts"),
    *("mlruns", "mnvi", "own", "pipeline", "studies", "tests", "tools", "work"),
)
"""Folders of the project that are unfit for results: the two would mix, or a stage would delete the folder."""


def _folder(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise misfit(value, _TEXT.expected, _TEXT.to_do)
    given = Path(value)
    if given.is_absolute() or ".." in given.parts or given == Path("."):
        raise misfit(value, "a folder inside the project", "write a relative path such as results/mine")
    if given.parts[0] in TAKEN or any(part.startswith(".") for part in given.parts):
        raise misfit(value, "a folder of results alone", "choose a different one, such as results/mine")
    if any(part.is_file() for part in (given, *given.parents)):
        raise misfit(value, "a folder, as there is a file of that name", "choose a different one")
    return given


ResultsFolder = Annotated[Path, BeforeValidator(_folder)]


def checked(kind: Any, path: str, value: Any, partial: bool = False) -> Any:
    """The value, validated and converted to this type.

    Args:
        kind: a pydantic dataclass whose fields the value gives, a TypedDict or an annotated type.
        partial: whether keys may be missing; if some are, the others are checked and the result is None.

    Raises:
        StudyError: for the first mistake; unknown keys come first, then missing ones, then wrong values.
    """
    fills_dataclass = isinstance(kind, type) and is_dataclass(kind)
    if fills_dataclass:
        check_keys(path, value, [one.name for one in fields(kind)])
    elif is_typeddict(kind):
        check_keys(path, value, kind.__annotations__)
    try:
        return kind(**value) if fills_dataclass else _adapter(kind).validate_python(value)
    except ValidationError as error:
        mistakes = [one for one in error.errors(include_url=False) if not (partial and one["type"] == "missing")]
        if mistakes:
            raise _as_study_error(path, value, min(mistakes, key=_rank)) from None
        return None


def check_keys(path: str, value: Any, keys: Collection[str]) -> None:
    """Refuses a section with a key other than these: those of its type, or of its kind."""
    for key in section(path, value):
        if key not in keys:
            raise unknown(f"{path}.{key}", key, keys, "a key of this section")


def section(path: str, value: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = checked(Section, path, value)
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _rank(mistake: Any) -> bool:
    return mistake["type"] != "missing"


def _as_study_error(path: str, whole: Any, mistake: Any) -> StudyError:
    place, value, context = _place(path, whole, mistake["loc"]), mistake["input"], mistake.get("ctx", {})
    if mistake["type"] == "missing":
        return missing(place)
    if mistake["type"] == "told":
        return StudyError(f"{place}{context['below']}: {context['text']}")
    if "to_do" not in context:  # the message is none of ours: a section, or a check of another package
        return StudyError(f"{place}: {value!r} does not fit ({mistake['msg']}); change it")
    return StudyError(f"{place}: {value!r} is not {context['expected']}; {context['to_do']}")


def missing(path: str) -> StudyError:
    return StudyError(f"{path}: is missing, but the stages or dvc.yaml need it; add it")


def _place(path: str, whole: Any, loc: tuple[int | str, ...]) -> str:
    """The path in params.yaml notation: a.b[0].c; for the key of a mapping, the path of its value."""
    for part in loc:
        if part == "[key]":
            break
        listed = isinstance(whole, list | tuple)
        path += f"[{part}]" if listed else f".{part}"
        if listed or isinstance(whole, dict):
            whole = whole[part] if listed or part in whole else None
    return path
