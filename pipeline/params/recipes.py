"""Recipes and presets: values that an experiment takes over from elsewhere, and replaces by its own."""

from __future__ import annotations

from typing import Any

from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.params.method_settings import method_parts
from pipeline.params.settings import KINDS, Dataset, Experiment, keys
from pipeline.setting_types import Name, Text, check_keys, checked, section

OWN_RECIPE = "table"
"""The recipe of a CSV file that no experiment uses."""


def kind_of(path: str, raw: Any, known: tuple[str, ...]) -> str:
    kind = section(path, raw).get("kind")
    if kind not in known:
        raise unknown(f"{path}.kind", kind, known, "a kind")
    return str(kind)


def with_recipes(
    datasets: dict[str, Dataset], experiments: dict[str, Any], recipes: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """All experiments with the values of their recipes, including those of data sets that name a recipe."""
    named = {name: (f"experiments.{name}", value) for name, value in experiments.items()}
    for name, value in recipes.items():
        checked(Name, f"recipes.{name}", name)
        if name in experiments:
            raise StudyError(f"recipes.{name}: experiments.{name} has the same name; rename one of the two")
        named[name] = (f"recipes.{name}", value)
    used = {value.get("data") for value in experiments.values() if isinstance(value, dict)}
    for name, dataset in datasets.items():
        is_new = dataset.file is not None and name not in used and OWN_RECIPE in recipes
        recipe = OWN_RECIPE if dataset.recipe is None and is_new else dataset.recipe
        if recipe is None:
            continue
        path = f"datasets.{name}.recipe"
        if recipe not in named:
            raise unknown(path, recipe, named, "in experiments or recipes")
        if name in experiments:
            raise StudyError(f"{path}: {recipe!r}, but experiments.{name} exists, too; leave one of the two out")
        named[name] = (f"experiments.{name}", {"recipe": recipe, "data": name})
    whole = {name: _whole(name, named) for name in named}
    for name in recipes:
        check_part(f"recipes.{name}", name, whole[name], recipes[name])
    return {name: value for name, value in whole.items() if name not in recipes}


def _whole(name: str, named: dict[str, tuple[str, Any]], passed: tuple[str, ...] = ()) -> dict[str, Any]:
    """The experiment or recipe, completed by the values of the recipe that it names."""
    path, given = named[name]
    raw = dict(section(path, given))
    if "recipe" not in raw:
        return raw
    recipe = checked(Text, f"{path}.recipe", raw.pop("recipe"))
    if recipe not in named:
        raise unknown(f"{path}.recipe", recipe, named, "in experiments or recipes")
    if recipe in (*passed, name):
        raise StudyError(f"{path}.recipe: {recipe!r} leads back to {name!r}; name one that holds the values itself")
    below = _whole(recipe, named, (*passed, name))
    for where, part in ((named[recipe][0], below), (path, raw)):
        check_mergeable(where, part)
    return overridden(below, raw)


def check_part(path: str, name: str, whole: dict[str, Any], given: dict[str, Any]) -> None:
    """Checks a recipe or a preset, which need not have all keys of an experiment.

    Args:
        whole: the completed recipe, or the preset's experiment, which gives the kind.
    """
    kind = kind_of(path, whole, KINDS)
    part = {key: value for key, value in given.items() if key not in ("recipe", "presets", "hyperparameters")}
    check_keys(path, part, keys(Experiment, kind))
    part.pop("methods", None)
    checked(Experiment, path, {"name": name, **part, "kind": kind}, partial=True)


def check_mergeable(path: str, raw: dict[str, Any]) -> None:
    """Checks that the parts to merge are sections, whatever they contain."""
    section(f"{path}.hyperparameters", raw.get("hyperparameters", {}))
    for name, parts in section(f"{path}.methods", raw.get("methods", {})).items():
        method_parts(f"{path}.methods.{name}", parts)


def overridden(raw: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The recipe with the keys of `above`, e.g. a preset; of methods `above` replaces single hyperparameters."""
    merged = {**raw, **above}
    if "hyperparameters" in merged:
        merged["hyperparameters"] = {**raw.get("hyperparameters", {}), **above.get("hyperparameters", {})}
    if "methods" in raw:
        merged["methods"] = dict(raw["methods"])
        for method, changes in above.get("methods", {}).items():
            before = raw["methods"].get(method, {})
            merged["methods"][method] = {
                part: {**before.get(part, {}), **changes.get(part, {})} for part in {**before, **changes}
            }
    return merged
