"""Tables of what `python -m tools.variations` and `python -m tools.nested` measured, written into Markdown pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.files import read_json
from pipeline.report import labels, paper
from pipeline.report.markdown import line
from pipeline.report.results import Scores
from pipeline.report.wording import number, setting

FOLDER = "variations"
VALIDATION = "validation"
UNCHANGED = "as in the study"


@dataclass(frozen=True)
class Varied:
    """The figures of one cell: a log-likelihood and more for each change of its settings."""

    cell: str
    data: str
    method: str
    runs: int
    validation: bool
    found: Sequence[Mapping[str, Any]]

    @property
    def command(self) -> str:
        """What measures these figures anew."""
        changes = [one["changed"] for one in self.found if one["changed"]]
        given = [" ".join(f"{key}={_plain(value)}" for key, value in change.items()) for change in changes]
        parts = ["python -m tools.variations", self.cell, *map(_quoted, given), f"--runs {self.runs}"]
        parts += ["--validation"] if self.validation else []
        parts += ["--only"] if len(changes) == len(self.found) else []
        return " ".join(parts)

    @property
    def cpu_seconds(self) -> float:
        return sum(one["cpu_seconds"] for one in self.found)

    @property
    def best(self) -> Mapping[str, Any]:
        return max(self.found, key=_mean)


def path_of(results: Path, cell: str, validation: bool) -> Path:
    """Where the figures of a cell are."""
    return (results / FOLDER / VALIDATION if validation else results / FOLDER) / f"{cell}.json"


def found_variations(root: Path) -> list[Varied]:
    """The variations of every cell below a results folder, those on validation rows last."""
    places = [(root / FOLDER, False), (root / FOLDER / VALIDATION, True)]
    return [_read(path, validation) for folder, validation in places for path in sorted(folder.glob("*.json"))]


def _read(path: Path, validation: bool) -> Varied:
    made_by = f"python -m tools.variations {path.stem}{' --validation' if validation else ''}"
    kept = read_json(path, made_by)
    return Varied(path.stem, kept["data"], kept["method"], kept["runs"], validation, kept["variations"])


def told(changed: Mapping[str, Any]) -> str:
    """A change in words: `epochs 50, targets standardised`."""
    return ", ".join(f"{key} {setting(value)}" for key, value in changed.items()) or UNCHANGED


def tables(found: Sequence[Varied], scores: Sequence[Scores]) -> dict[str, str]:
    """For each method the test figures of its cells, and its search on validation rows, by the marks of a page.

    Args:
        scores: of the study, whose own setting need not have been measured again.
    """
    written: dict[str, str] = {}
    for method in dict.fromkeys(varied.method for varied in found):
        of_method = [varied for varied in found if varied.method == method]
        on_test = [varied for varied in of_method if not varied.validation]
        searched = [varied for varied in of_method if varied.validation]
        written |= {f"variations {method}": _on_test(on_test, scores)} if on_test else {}
        written |= {f"validation {method}": _of_search(searched)} if searched else {}
    return written


def _on_test(of_method: Sequence[Varied], scores: Sequence[Scores]) -> str:
    rows = [["data", "change", "log-likelihood", "RMSE", "95 % intervals hold"]]
    for varied in of_method:
        data = labels.data_label(varied.data)
        if all(one["changed"] for one in varied.found):
            rows += [
                _row(data, f"{UNCHANGED}, {one.runs} runs", _recorded(one)) for one in scores if one.cell == varied.cell
            ]
        rows += [_row(data, told(one["changed"]), one) for one in varied.found]
        printed = paper.TABLE_1.get((varied.data, "mlp", varied.method))
        if printed is not None:
            rows.append([data, "the paper's figure", printed.text.replace("-", "−"), "", ""])
    return _table(rows) + _made_by(of_method)


def _recorded(scores: Scores) -> dict[str, Any]:
    """What Table 1 shows of a cell, in the form of a variation."""
    metrics = scores.metrics
    means = {name: metrics[name].mean for name in ("rmse", "coverage_95")}
    return {"mean": metrics["log_likelihood"].mean, "std": metrics["log_likelihood"].std, **means}


def _row(data: str, what: str, one: Mapping[str, Any]) -> list[str]:
    return [data, what, _figure(one), _error(one), _held(one)]


def _of_search(searched: Sequence[Varied]) -> str:
    changes = list({told(one["changed"]): None for varied in searched for one in varied.found})
    rows = [["change", *(labels.data_label(varied.data) for varied in searched)]]
    for change in changes:
        rows.append([change, *(_searched(varied, change) for varied in searched)])
    return _table(rows) + _made_by(searched)


def _searched(varied: Varied, change: str) -> str:
    one = next((one for one in varied.found if told(one["changed"]) == change), None)
    if one is None:
        return ""
    text = "not finite" if one["mean"] is None else number(one["mean"], 3)
    return f"**{text}**" if one is varied.best else text


def _made_by(varied: Sequence[Varied]) -> str:
    seconds = sum(one.cpu_seconds for one in varied)
    commands = "\n".join(f"    {one.command}" for one in varied)
    return f"\nMade in {seconds / 60:.1f} CPU minutes, on one thread, by\n\n{commands}\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join(map(line, [head, ["---"] * len(head), *rest])) + "\n"


def _figure(one: Mapping[str, Any]) -> str:
    if one["mean"] is None:
        return "no complete run"
    return number(one["mean"], 3) + ("" if one["std"] is None else f" ± {number(one['std'], 3)}")


def _error(one: Mapping[str, Any]) -> str:
    return "" if one["rmse"] is None else f"{one['rmse']:.4g}"


def _held(one: Mapping[str, Any]) -> str:
    return "" if one["coverage_95"] is None else f"{100 * one['coverage_95']:.1f} %"


def _mean(one: Mapping[str, Any]) -> float:
    return float("-inf") if one["mean"] is None else float(one["mean"])


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quoted(argument: str) -> str:
    return f'"{argument}"' if " " in argument else shlex.quote(argument)
