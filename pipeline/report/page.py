"""Renders the report as one self-contained HTML file, which can be mailed and opens without a network."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.params import Study
from pipeline.report import labels, views, wording
from pipeline.report.drawing import Drawn
from pipeline.report.image_figures import title
from pipeline.report.provenance import DataSource
from pipeline.report.results import Result
from pipeline.report.tables import Record

STATUS_TEXT = {
    "reproduced": "✓ reproduced",
    "differs": "✗ not reproduced",
    "unfinished": "… unfinished",
    "not-run": "– not run here",
    "told": "",
}
SECTIONS = {
    "regression": "Regression",
    "classification": "Classification",
    "uncertainty": "Uncertainty on known and other data",
    "training": "Training",
    "search": "Searches for hyperparameters",
    "landscape": "The KL divergence as a landscape",
}


@dataclass(frozen=True)
class Content:
    study: Study
    commit: str
    data: Sequence[DataSource]
    table_1: Sequence[Record]
    table_2: Sequence[Record]
    results: Sequence[Result]
    figures: Sequence[Drawn]


def render(content: Content) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.j2")
    judged = [record for record in (*content.table_1, *content.table_2) if record.paper]
    return template.render(
        content=content,
        study=content.study,
        counts=Counter(record.status for record in judged),
        table_1=views.table_1(content.table_1),
        table_2=views.table_2(content.table_2),
        further=[views.further_data(content.table_1), views.further_regression(content.table_1)],
        cells=[_cell(result) for result in content.results],
        sections=_sections(content.figures),
        extremes=[(title(result), _uri(result.extremes)) for result in content.results if result.extremes],
        ours=wording.ours,
        theirs=wording.theirs,
        remark=wording.remark,
        status_text=STATUS_TEXT,
        meanings=wording.MEANINGS,
        about_table_2=wording.TABLE_2,
    )


def _cell(result: Result) -> dict[str, Any]:
    """A row of the table of cells."""
    scores, best = result.scores, result.best
    hyperparameters = best.get("hyperparameters", {})
    source = best.get("source", "")
    return {
        "name": result.cell.name,
        "method": labels.method_label(result.cell.method),
        "missing": scores.missing,
        "complete": scores.complete,
        "hyperparameters": ", ".join(f"{name} {wording.setting(value)}" for name, value in hyperparameters.items()),
        "source": f"{source}, {len(result.trials)} trials" if source == "search" else source,
        "runs": f"{scores.runs} × {scores.folds} folds" if scores.folds else scores.runs,
        "parameters": "" if scores.num_parameters is None else f"{scores.num_parameters:,}",
        "seconds": wording.duration(result.training.get("seconds")),
    }


def _sections(figures: Sequence[Drawn]) -> dict[str, list[dict[str, str]]]:
    """The pictures of each section by its title, in the order of ``SECTIONS``; empty sections are left out."""
    found: dict[str, list[dict[str, str]]] = {key: [] for key in SECTIONS}
    for figure in figures:
        found[figure.drawing.section].append(
            {
                "name": figure.drawing.name,
                "caption": figure.drawing.caption,
                "light": _uri(figure.light),
                "dark": _uri(figure.dark),
            }
        )
    return {SECTIONS[key]: pictures for key, pictures in found.items() if pictures}


def _uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
