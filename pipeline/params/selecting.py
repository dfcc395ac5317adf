"""Putting another study of studies/*.yaml into params.yaml; the rest of that file, comments included, stays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.params.checks import unknown
from pipeline.params.reading import load, parse, read
from pipeline.params.settings import Experiment

STUDIES = Path("studies")
LOCK = Path("dvc.lock")
# With the comment right above it.
SECTION = re.compile(r"(?:^#[^\n]*\n)*^study:.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def select(name: str, params: Path, cells: list[str], results: str | None) -> None:
    """Each study has a lock file of its own, kept with its results while another study is selected."""
    known = sorted(path.stem for path in STUDIES.glob("*.yaml"))
    if name not in known:
        raise unknown("select", name, known, f"a study in {STUDIES}/")
    before = load(params)
    source = STUDIES / f"{name}.yaml"
    section = SECTION.findall(source.read_text(encoding="utf-8"))[0].rstrip() + "\n\n"
    rest = parse(params)
    study = parse(source)["study"]
    added = _add_own(study, rest["datasets"])
    if added or cells or results:
        _narrow(study, cells, before.experiments)
        study["results"] = results or study["results"]
        text = files.yaml_of({"study": study}, default_flow_style=None, width=118)
        section = f"# From {source.as_posix()}.\n{text}\n"
    after = read({**rest, **files.parse_yaml(section)}).study
    text = SECTION.sub(lambda _: section, params.read_text(encoding="utf-8"), count=1)
    files.write_text(params, text)
    _swap_locks(before.study.results, after.results)


def _add_own(study: dict[str, Any], datasets: dict[str, Any]) -> bool:
    """Cells for data sets whose `recipe` is an experiment of the study, with all methods that this one has there."""
    own = {name: given["recipe"] for name, given in datasets.items() if isinstance(given, dict) and "recipe" in given}
    added = {
        f"{name}-{cell['method']}": {"experiment": name, "data": name, "method": cell["method"]}
        for name, recipe in own.items()
        for cell in study["cells"].values()
        if cell["experiment"] == recipe
    }
    study["cells"] |= added
    study["data"] += [name for name in own if any(cell["data"] == name for cell in added.values())]
    return bool(added)


def _narrow(study: dict[str, Any], cells: list[str], experiments: dict[str, Experiment]) -> None:
    """Leaves only these cells, and what they need."""
    for cell in cells:
        if cell not in study["cells"]:
            raise unknown("--cells", cell, study["cells"], "a cell of this study")
    if cells:
        study["cells"] = {cell: study["cells"][cell] for cell in cells}
        study["search"] = [cell for cell in study["search"] if cell in cells]
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
