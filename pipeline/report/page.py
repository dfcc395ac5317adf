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
from pipeline.report import labels, verdict, views, wording
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
    lead = _lead(content.figures)
    judged = [record for record in (*content.table_1, *content.table_2) if record.paper]
    return template.render(
        content=content,
        study=content.study,
        counts=Counter(record.status for record in judged),
        table_1=views.table_1(content.table_1),
        table_2=views.table_2(content.table_2),
        shown_2=[grid for grid in (grid.ran() for grid in views.table_2(content.table_2)) if grid.rows],
        further=[views.further_data(content.table_1), views.further_regression(content.table_1)],
        cells=[_cell(result) for result in content.results],
        verdict=verdict.of(content.results, content.table_1, content.table_2),
        lead=_pictures(lead),
        sections=_sections([figure for figure in content.figures if figure not in lead]),
        extremes=[(title(result), _uri(result.extremes)) for result in content.results if result.extremes],
        ours=wording.ours,
        theirs=wording.theirs,
        remark=wording.remark,
        status_text=STATUS_TEXT,
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


def _lead(figures: Sequence[Drawn]) -> list[Drawn]:
    """The figure that supports the verdict, if there is one."""
    by_name = {figure.drawing.name: figure for figure in figures}
    return [by_name[name] for name in verdict.PICTURES if name in by_name][:1]


def _sections(figures: Sequence[Drawn]) -> dict[str, list[dict[str, str]]]:
    """The pictures of each section by its title, in the order of ``SECTIONS``; empty sections are left out."""
    found = {key: [figure for figure in figures if figure.drawing.section == key] for key in SECTIONS}
    return {SECTIONS[key]: _pictures(drawn) for key, drawn in found.items() if drawn}


def _pictures(figures: Sequence[Drawn]) -> list[dict[str, str]]:
    return [
        {
            "name": figure.drawing.name,
            "caption": figure.drawing.caption,
            "light": _uri(figure.light),
            "dark": _uri(figure.dark),
        }
        for figure in figures
    ]


def _uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
