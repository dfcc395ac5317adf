"""The settings of one method of an experiment: its hyperparameters and its grid."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from typing_extensions import TypedDict

from pipeline.names import unknown
from pipeline.params.settings import RECIPE, Method
from pipeline.registry.methods import KAPPA_OVER_N, METHODS
from pipeline.setting_types import EACH_ONCE, LISTED_AS_LIST, check_keys, checked


def method_parts(path: str, raw: Any) -> Method:
    method: Method = checked(Method, path, raw)
    return method


def read_method(path: str, name: str, kind: str, raw: Any, shared: dict[str, Any]) -> Method:
    """The method; its own hyperparameters override the shared ones, and its registry entry sets their order."""
    if name not in METHODS:
        raise unknown(path, name, METHODS, "a method")
    parts = method_parts(path, raw)
    known = hyperparameters(kind, name)
    own = checked(_optional(kind, name), f"{path}.hyperparameters", parts.hyperparameters)
    given = {**{key: value for key, value in shared.items() if key in known}, **own}
    values = checked(_optional(kind, name), f"{path}.hyperparameters", given)
    grid = read_grid(f"{path}.grid", name, kind, parts.grid)
    return Method({key: values[key] for key in known if key in values}, grid)


def read_grid(path: str, method: str, kind: str, raw: dict[str, Any]) -> dict[str, Any]:
    values = checked(_optional(kind, method, lists=True), path, raw)
    return {key: values[key] for key in raw}


def hyperparameters(kind: str, method: str) -> dict[str, Any]:
    """The types of a method's hyperparameters: κ/N if images weight a KL divergence, its own, and the recipe's."""
    entry = METHODS[method]
    kappa = KAPPA_OVER_N if kind == "classification" and entry.has_kl else {}
    return {**kappa, **entry.hyperparameters, **RECIPE}


@cache
def _optional(kind: str, method: str, lists: bool = False) -> Any:
    """A type for any subset of a method's hyperparameters, or for lists of their values."""
    types = hyperparameters(kind, method)
    if lists:
        types = {key: Annotated[list[given], LISTED_AS_LIST, EACH_ONCE] for key, given in types.items()}  # type: ignore[valid-type]
    return TypedDict(f"{method}_hyperparameters", types, total=False)  # type: ignore[operator]


def check_shared(path: str, kind: str, shared: dict[str, Any]) -> None:
    known = {key: given for name in METHODS for key, given in hyperparameters(kind, name).items() if key not in RECIPE}
    check_keys(path, shared, known)
    for key, value in shared.items():
        checked(known[key], f"{path}.{key}", value)
