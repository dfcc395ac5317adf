"""The stage `report`: writes tables beside the paper's, figures and one page to <results>/report.

python -m pipeline.report
python -m pipeline.report --pages README.md docs/results.md --results recorded/*
python -m pipeline.report --pictures docs/pictures/cifar --results recorded/cifar
"""

from __future__ import annotations

from pathlib import Path

from pipeline import console, files, params
from pipeline.done import Account
from pipeline.params import Params, tracked
from pipeline.params.cells import WORK
from pipeline.report import provenance

CODE = Path(__file__).parents[1]


def main() -> None:
    parser = console.parser("pipeline.report", __doc__)
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    parser.add_argument(
        "--pages", type=Path, nargs="+", help="only write the tables between the marks of these Markdown files"
    )
    parser.add_argument("--pictures", type=Path, help="only draw rejection, reliability and severity into this folder")
    parser.add_argument(
        "--results",
        type=Path,
        nargs="+",
        help="results folders whose scores and searches go into --pages and --pictures (default: the study's)",
    )
    arguments = parser.parse_args()
    if arguments.results and not (arguments.pages or arguments.pictures):
        parser.error("--results needs --pages or --pictures; the report itself reads study.results of params.yaml")
    if arguments.pages or arguments.pictures:
        from pipeline.report import writing

        roots = arguments.results or [params.load(arguments.params).study.results]
        if arguments.pages:
            writing.fill_pages(arguments.pages, roots)
        if arguments.pictures:
            for path in writing.draw_pictures(arguments.pictures, roots):
                console.say(str(path))
        return
    write(params.load(arguments.params))


def write(study: Params) -> None:
    """Writes the report, unless it is up to date. Imports matplotlib and MLflow only if it is not."""
    known = account(study)
    if not known.is_settled():
        from pipeline.report.writing import write_report

        write_report(study)
        account(study).settle()
    console.say(f"report: {known.makes[0] / 'index.html'}")
    if not any(_ran(cell.evaluate / "scores.json") for cell in study.cells()):
        console.say(
            "WARNING: nothing ran. The data of every cell are missing, and study.missing_data is skip; the report says "
            "why, and so does `python -m pipeline.prepare NAME`"
        )


def _ran(scores: Path) -> bool:
    return files.read_json(scores, "python -m pipeline.evaluate").get("missing") is None


def account(study: Params) -> Account:
    """What the report depends on: the results of all cells, the summaries of their data, the code that shows them."""
    results = study.study.results
    cells = [path for cell in study.cells() for path in (cell.tune, cell.model, cell.evaluate)]
    data = [one / "summary.json" for cell in study.cells() for one in (cell.data, *cell.ood.values())]
    depends_on = {**tracked.of_report(study), "commit": provenance.commit()}
    code = [path for room in ("report", "registry") for path in sorted((CODE / room).glob("*.py"))]
    note = WORK / results / "report" / "done.json"
    return Account("report", note, depends_on, [*cells, *data, *code], [results / "report"])


if __name__ == "__main__":
    console.run(main)
