"""Writes the report of a study: reads everything first, then replaces the report's folder as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline import tracking
from pipeline.console import progress
from pipeline.errors import StudyError
from pipeline.files import read_json, replacing, write_json, write_text
from pipeline.params import Params
from pipeline.params.cells import WORK
from pipeline.report import (
    cards,
    drawing,
    image_figures,
    landscape,
    markdown,
    nested,
    overview,
    page,
    plot_files,
    process_figures,
    provenance,
    regression_figures,
    tables,
    variations,
)
from pipeline.report.drawing import Drawing
from pipeline.report.nested import Nested, found_nested
from pipeline.report.results import Result, Scores, found_curves, found_scores, found_searches, read_result
from pipeline.report.searches import Search
from pipeline.report.variations import Varied, found_variations
from pipeline.tracking.registered import name_of


def write_report(params: Params) -> Path:
    """Writes the folder ``<results>/report`` anew; the old folder stays if anything goes wrong."""
    results = [read_result(cell) for cell in params.cells()]
    scores = [result.scores for result in results]
    table_1, table_2 = tables.table_1(scores), tables.table_2(scores)
    data = provenance.data(params)
    drawings = [
        *regression_figures.drawings(table_1),
        *image_figures.drawings(results),
        *process_figures.drawings(results),
        landscape.drawing(),
    ]
    folder = params.study.results / "report"
    with replacing(folder) as temporary:
        figures = _draw(drawings, temporary / "figures")
        content = page.Content(params.study, provenance.commit(), data, table_1, table_2, results, figures)
        write_text(temporary / "index.html", page.render(content))
        write_json(temporary / "table1.json", _without("network", table_1))
        write_json(temporary / "table2.json", _without("folds", table_2))
        write_text(temporary / "table1.md", markdown.table_1(table_1))
        write_text(temporary / "table2.md", markdown.table_2(table_2))
        plot_files.write(temporary / "plots", table_1, results)
        described = _cards(results, [*table_1, *table_2])
        for result in results:
            if name_of(result.cell) in described:
                write_text(temporary / "cards" / f"{result.cell.name}.md", described[name_of(result.cell)])
    _track(params, folder, described)
    return folder


def fill_pages(pages: Sequence[Path], roots: Sequence[Path]) -> None:
    """Writes the tables of all scores and searches below these results folders between the marks of Markdown pages."""
    scores, searches = list[Scores](), list[Search]()
    varied, nested_found = list[Varied](), list[Nested]()
    for root in roots:
        own_scores, own_searches = found_scores(root), found_searches(root)
        if not own_scores and not own_searches:
            raise StudyError(
                f"{root}: the folder has neither evaluate/<cell>/scores.json nor a search; give the results folder of "
                "a study with --results"
            )
        scores += own_scores
        searches += own_searches
        varied += found_variations(root)
        nested_found += found_nested(root)
    table_1, table_2 = tables.table_1(scores), tables.table_2(scores)
    written = {
        "table1": markdown.table_1(table_1),
        "table2": markdown.table_2(table_2),
        "summary": overview.summary(table_2, overview.MNIST),
        "summary_cifar": overview.summary(table_2, overview.CIFAR),
        "methods": overview.comparison(table_1, table_2),
        "searches": markdown.searches(searches),
        **variations.tables(varied, scores),
        **({"nested": nested.table(nested_found)} if nested_found else {}),
    }
    for page_path in pages:
        markdown.fill_page(page_path, written)


def draw_pictures(folder: Path, roots: Sequence[Path]) -> list[Path]:
    """Draws, for pages, what the recorded curves below these results folders show beside each other."""
    curved = [one for root in roots for one in found_curves(root)]
    if not curved:
        places = ", ".join(f"{root}/evaluate/<cell>/plots/curves.json" for root in roots)
        raise StudyError(f"--pictures: there is no {places}; give --results the folder of a study of images that ran")
    drawn = []
    for one in image_figures.comparisons(curved):
        drawn.append(folder / f"{one.name}.png")
        drawing.write(one, drawn[-1])
    return drawn


def _draw(drawings: Sequence[Drawing], folder: Path) -> list[drawing.Drawn]:
    drawn = []
    with progress("report", len(drawings), "figures") as bar:
        for one in drawings:
            drawn.append(drawing.save(one, folder))
            bar.advance()
    return drawn


def _without(key: str, records: Sequence[tables.Record]) -> list[dict[str, object]]:
    """Drops a key that means nothing in a table: Table 1 has one network, Table 2 no folds."""
    return [{name: value for name, value in record.as_json().items() if name != key} for record in records]


def _cards(results: Sequence[Result], records: Sequence[tables.Record]) -> dict[str, str]:
    """The cards of all models, by the models' names."""
    ran = [result for result in results if result.scores.missing is None]
    found = {}
    for one in ran:
        made_by = f"python -m pipeline.prepare {one.cell.dataset.name}"
        found[name_of(one.cell)] = cards.card(one, records, read_json(one.cell.data / "summary.json", made_by))
    return found


def _track(params: Params, folder: Path, described: dict[str, str]) -> None:
    with tracking.run(f"study-{params.study.name}", "report", state=WORK / params.study.results / "report") as run:
        run.params({"study": params.study.name, "preset": params.study.preset})
        run.artifact(folder)
        for name, text in described.items():
            run.describe(name, text)
