"""Copies a study from studies/*.yaml into params.yaml; the rest of that file, comments included, stays.

A study names experiments and methods. DVC's stages need every cell written out, and `dvc exp run -S` sets existing keys
only, so `select` writes the whole section.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.names import unknown
from pipeline.params.reading import Params, load, parse, read
from pipeline.params.settings import ClassificationLimits, Experiment, RegressionLimits
from pipeline.setting_types import Names, check_keys, checked, section

STUDIES = Path("studies")
LOCK = Path("dvc.lock")
# The section `study`, with the comment right above it.
SECTION = re.compile(r"(?:^#[^\n]*\n)*^study:.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
WIDTH = 110
DEFAULTS = {"preset": "release", "searcher": "grid", "trials": 16, "missing_data": "stop"}
COMMENTS = {
    "preset": "or paper: the text's recipes instead of the released implementation's",
    "cells": "what to run: one of the experiments below, its data and one of its methods",
    "searcher": "or random, optuna",
    "trials": "for random and optuna; grid tries every point",
    "missing_data": "or skip: continue without a data set that no source has",
    "limits": "null: as the experiment says",
    "grids": "what this study searches instead of the experiments' own grids",
}
COLUMN = 26  # where comments begin
KEYS = ("name", "results", "experiments", "methods", "data", "cells", "search", "grids", "limits", *DEFAULTS)


def select(name: str, params: Path, cells: list[str], results: str | None, more: Sequence[str] = ()) -> None:
    """Writes the study into params.yaml and swaps dvc.lock.

    Each study has its own lock file, which is kept with its results while another study is selected.

    Args:
        cells: keep only these; empty: all.
        more: experiments, or cells as `<experiment>-<method>`, that the study gets in addition.
    """
    known = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in known:
        raise unknown("select", name, known, f"a study in {STUDIES}/")
    before = load(params)
    source = STUDIES / f"{name}.yaml"
    raw = parse(params)
    whole = expanded(parse(source)["study"], raw)
    own = _own(raw)
    added = _add_own(whole, own)
    for one in more:
        _add(whole, one, before.experiments)
    _say_what_is_left_out(whole, own)
    _narrow(whole, cells, before.experiments)
    if results:
        whole["results"] = results
    comment = f"# From {source.as_posix()}.\n" if added or more or cells or results else _comment(source)
    after = read({**raw, "study": whole}).study
    text = SECTION.sub(lambda _: f"{comment}{_text(whole)}\n", params.read_text(encoding="utf-8"), count=1)
    files.write_text(params, text)
    _swap_locks(before.study.results, after.results)


def expanded(study: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """A study in the form of params.yaml, with every cell and every limit written out.

    Args:
        study: names `experiments`, each of which may list its own methods (`- boston: [mnvi]`), and the `methods` of
            all others; or already has `cells`.
        raw: the content of params.yaml, which defines the experiments.
    """
    check_keys("study", study, KEYS)
    read_before = read(raw)
    cells = study.get("cells") or _cells(study, read_before)
    used = [read_before.experiments[cell["experiment"]] for cell in cells.values()]
    data = list(dict.fromkeys(name for experiment in used for name in (experiment.data, *experiment.ood)))
    search = study.get("search", [])
    if search == "all":
        search = [name for name, cell in cells.items() if _grid(read_before, cell)]
    limits = section("study.limits", study.get("limits", {}))
    forms = {"regression": RegressionLimits, "classification": ClassificationLimits}
    return {
        **{key: study[key] for key in ("name", "results") if key in study},
        "preset": study.get("preset", DEFAULTS["preset"]),
        "data": study.get("data", data),
        "cells": cells,
        "search": search,
        **{key: study.get(key, DEFAULTS[key]) for key in ("searcher", "trials", "missing_data")},
        "limits": {
            kind: {**dict.fromkeys(form.__annotations__), **limits.get(kind, {})} for kind, form in forms.items()
        },
        "grids": study.get("grids", {}),
    }


def _cells(study: dict[str, Any], known: Params) -> dict[str, dict[str, str]]:
    shared = list(checked(Names, "study.methods", study.get("methods", [])))
    given = study.get("experiments", [])
    if not isinstance(given, list):
        raise StudyError(f"study.experiments: {given!r} is not a list; write [boston, yacht]")
    cells = {}
    for index, one in enumerate(given):
        path = f"study.experiments[{index}]"
        (name, methods), *more = one.items() if isinstance(one, dict) and one else [(one, shared)]
        if more:
            raise StudyError(f"{path}: {one!r} names several experiments; write one per line")
        if name not in known.experiments:
            raise unknown(path, name, known.experiments, "in experiments")
        experiment = known.experiments[name]
        for method in checked(Names, f"{path}.{name}", methods):
            if method not in experiment.methods:
                raise unknown(f"{path}.{name}", method, experiment.methods, f"a method of experiments.{name}.methods")
            cells[f"{name}-{method}"] = {"experiment": name, "data": experiment.data, "method": method}
    return cells


def _grid(known: Params, cell: dict[str, str]) -> dict[str, Any]:
    return known.experiments[cell["experiment"]].methods[cell["method"]].grid


def _comment(source: Path) -> str:
    """The comment at the top of the study's file."""
    found = re.match(r"(?:#[^\n]*\n)*", source.read_text(encoding="utf-8"))
    return found[0] if found else ""


def _text(study: dict[str, Any]) -> str:
    """The section, with one line per cell and comments that name the alternatives."""
    lines = files.yaml_of({"study": study}, default_flow_style=None, width=WIDTH).splitlines()
    for index, line in enumerate(lines):
        found = re.match(r"  (\w+):", line)
        if found and found[1] in COMMENTS:
            lines[index] = f"{line:<{COLUMN - 1}} # {COMMENTS[found[1]]}"
    return "\n".join(lines) + "\n"


def _own(raw: dict[str, Any]) -> dict[str, str | None]:
    """The user's own experiments: those that `pipeline.new` wrote a study for, and data sets without an experiment.

    Each with the experiment whose study it belongs to, if its data set names one as its `recipe`.
    """
    tables = {name: given.get("recipe") for name, given in raw["datasets"].items() if {"recipe", "file"} & set(given)}
    experiments = {name: None for name in raw["experiments"] if (STUDIES / f"{name}.yaml").exists()}
    return {**experiments, **tables}


def _add_own(study: dict[str, Any], own: dict[str, str | None]) -> bool:
    """Adds cells for data sets whose `recipe` is an experiment of the study, with all methods it has in the study."""
    added = {
        f"{name}-{cell['method']}": {"experiment": name, "data": name, "method": cell["method"]}
        for name, recipe in own.items()
        for cell in study["cells"].values()
        if cell["experiment"] == recipe
    }
    study["cells"] = {**study["cells"], **added}
    more = [name for name in own if any(cell["data"] == name for cell in added.values())]
    study["data"] = [*study["data"], *more]
    return bool(added)


def _add(study: dict[str, Any], name: str, experiments: dict[str, Experiment]) -> None:
    """Adds a cell, or an experiment with those methods of the study that it has."""
    known = _every_cell(experiments)
    if name in experiments:
        methods = dict.fromkeys(cell["method"] for cell in study["cells"].values())
        found = [f"{name}-{method}" for method in methods if method in experiments[name].methods]
        if not found:
            raise StudyError(
                f"--add: {name} has none of this study's methods ({', '.join(methods)}); name its cells, e.g. "
                f"{name}-{next(iter(experiments[name].methods))}"
            )
    elif name in known:
        found = [name]
    else:
        raise unknown("--add", name, experiments, "an experiment, or one of its cells <experiment>-<method>")
    study["cells"] = {**study["cells"], **{cell: known[cell] for cell in found}}
    experiment = experiments[known[found[0]]["experiment"]]
    study["data"] = list(dict.fromkeys([*study["data"], experiment.data, *experiment.ood]))


def _every_cell(experiments: dict[str, Experiment]) -> dict[str, dict[str, str]]:
    return {
        f"{name}-{method}": {"experiment": name, "data": experiment.data, "method": method}
        for name, experiment in experiments.items()
        for method in experiment.methods
    }


def _say_what_is_left_out(study: dict[str, Any], own: dict[str, str | None]) -> None:
    there = {cell["experiment"] for cell in study["cells"].values()}
    for name, recipe in own.items():
        if name not in there:
            why = f", which has no experiment {recipe}, its recipe" if recipe else ""
            say(f"{name}: not in this study{why}; add it with `select STUDY --add {name}`")


def _narrow(study: dict[str, Any], cells: list[str], experiments: dict[str, Experiment]) -> None:
    """Keeps only these cells and the data they need."""
    known = _every_cell(experiments)
    for cell in cells:
        if cell not in study["cells"]:
            if cell in known:
                raise StudyError(f"--cells: {cell!r} is not a cell of this study; add it with --add {cell}")
            raise unknown("--cells", cell, study["cells"], "a cell of this study")
    if cells:
        study["cells"] = {cell: study["cells"][cell] for cell in cells}
        study["search"] = [cell for cell in study["search"] if cell in cells]
        study["grids"] = {cell: grid for cell, grid in study["grids"].items() if cell in cells}
        used = [experiments[cell["experiment"]] for cell in study["cells"].values()]
        needed = {name for experiment in used for name in (experiment.data, *experiment.ood)}
        study["data"] = [name for name in study["data"] if name in needed]


def _swap_locks(before: Path, after: Path) -> None:
    if before == after:
        return
    if LOCK.exists():
        files.write_text(before / LOCK, LOCK.read_text(encoding="utf-8"))
        LOCK.unlink()
    kept = after / LOCK
    if kept.exists():
        files.write_text(LOCK, kept.read_text(encoding="utf-8"))
