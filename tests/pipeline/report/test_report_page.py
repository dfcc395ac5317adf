"""The whole stage on generated results: what it writes, what the page holds, and what it does with broken input."""

import csv
import html.parser
import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import report_study

from pipeline import files, params
from pipeline.errors import StudyError
from pipeline.report import landscape, page, provenance, results, writing
from pipeline.tracking import store

pytestmark = pytest.mark.slow  # they share one run of the whole stage, MLflow store included

CELLS = ["boston-mnvi", "boston-mc_dropout", "yacht-mnvi", "lenet-mnist-deterministic", "lenet-mnist-mnvi"]
SEARCHED = ["boston-mnvi", "boston-mc_dropout"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study with its report: yacht's data are missing, the deterministic network did not run to the end."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = report_study.write_params(CELLS, SEARCHED)
        report_study.write_results(settings, missing=["yacht-mnvi"], unfinished=["lenet-mnist-deterministic"], runs=3)
        command = [sys.executable, "-m", "pipeline.report", "--params", "params.yaml"]
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("PYTHONPATH", str(report_study.ROOT))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def study(made, tmp_path, monkeypatch):
    """A copy of that study to break; the working folder is in it."""
    folder = tmp_path / "study"
    shutil.copytree(made, folder, ignore=shutil.ignore_patterns("mlflow*", "mlartifacts", "work"))
    monkeypatch.chdir(folder)
    return params.load("params.yaml")


class Page(html.parser.HTMLParser):
    """Collects every reference, every tag and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.references, self.tags, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for key, value in attributes if key in ("src", "srcset", "href", "action", "poster")]

    def handle_data(self, data):
        self.words.append(data)


def records(folder, table):
    return json.loads((folder / "results" / "report" / table).read_text())


def test_report_has_all_its_files(made):
    report = made / "results" / "report"
    names = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    expected = {"index.html", "table1.json", "table2.json", "table1.md", "table2.md"}
    expected |= {f"cards/{name}.md" for name in CELLS if name != "yacht-mnvi"}  # whose data are missing
    expected |= {f"plots/{name}.csv" for name in ("log_likelihood", "rejection", "reliability")}
    drawn = [
        "log_likelihood",
        "coverage",
        "rejection",
        "reliability",
        "severity",
        "kl_landscape",
        "training-regression",
    ]
    drawn += ["training-lenet-mnist", "search-boston-mnvi", "search-boston-mc_dropout"]
    drawn += ["uncertainty-lenet-mnist-mnvi", "uncertainty-lenet-mnist-deterministic"]
    assert names == expected | {f"figures/{folder}{name}.png" for name in drawn for folder in ("", "dark/")}


def test_table_1_tells_what_ran_and_what_did_not(made):
    found = {
        (one["data"], one["method"]): one for one in records(made, "table1.json") if one["metric"] == "log_likelihood"
    }
    assert len(found) == 42
    ran = found["boston", "mnvi"]
    assert ran["mean"] is not None and ran["complete"] and ran["note"] == "3 of 20 runs"
    assert found["yacht", "mnvi"]["note"].startswith("not run here: yacht: no source")
    assert found["wine", "dvi"]["note"] == "not run here" and found["wine", "dvi"]["paper_mean"] == -0.9
    assert "network" not in ran and ran["folds"] == 10


def test_table_2_tells_what_ran_and_what_did_not(made):
    found = {(one["data"], one["network"], one["method"], one["metric"]): one for one in records(made, "table2.json")}
    assert found["mnist", "lenet", "mnvi", "nll"]["complete"] is True
    unfinished = found["mnist", "lenet", "deterministic", "nll"]
    assert (unfinished["complete"], unfinished["reproduced"]) == (False, None)
    assert "not run to the end here" in unfinished["note"]
    assert found["imagenet", "resnet18", "mnvi", "mr50"]["mean"] is None
    assert found["mnist", "lenet", "mnvi", "auroc_fashion_mnist"]["paper_mean"] is None


def test_page_refers_to_nothing_outside_and_runs_no_script(made):
    text = (made / "results" / "report" / "index.html").read_text()
    page = Page(text)
    assert page.references
    assert all(reference.startswith("data:") for reference in page.references)
    assert not {"script", "iframe", "object", "embed"} & set(page.tags)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_page_shows_every_cell_and_where_it_comes_from(made):
    words = " ".join(Page((made / "results" / "report" / "index.html").read_text()).words)
    for cell in CELLS:
        assert cell in words
    for text in ("Study small", "Preset release", "search, 8 trials", "params", "mirror folder, mnist", "3 of 20 runs"):
        assert text in re.sub(r"\s+", " ", words)
    assert f"{report_study.hash_of('boston'):064x}" in words
    for status in ("✓ reproduced", "… unfinished", "– not run here"):
        assert status in words


def test_page_leads_with_a_verdict_and_folds_away_what_was_not_run(made):
    text = (made / "results" / "report" / "index.html").read_text()
    parts = ['<ul class="verdict">', '<figure id="rejection">', "<h2>What was run</h2>", "not run</h2>\n<details>"]
    verdict, picture, run, folded = map(text.index, parts)
    assert verdict < picture < run < folded
    assert "ImageNet" in text[folded:] and "ImageNet" not in text[:folded]
    assert text.count('id="rejection"') == 1


def test_curves_are_written_for_dvc(made):
    plots = made / "results" / "report" / "plots"
    with (plots / "log_likelihood.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["cell"], row["paper"]) for row in rows] == [("boston-mc_dropout", "-2.46"), ("boston-mnvi", "-2.43")]
    assert (plots / "reliability.csv").read_text().splitlines()[0] == "cell,confidence,accuracy"
    assert len((plots / "rejection.csv").read_text().splitlines()) == 1 + 2 * report_study.STEPS


def test_report_is_one_run_in_mlflow(made):
    client = store.client(f"sqlite:///{made / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("study-small")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("report", "FINISHED")
    (uploaded,) = {path.parent for path in made.rglob("index.html")} - {made / "results" / "report"}
    assert (uploaded / "table1.json").is_file()


def test_page_escapes_what_it_is_told(study):
    why = "<script>alert(1)</script>"
    files.write_json(study.cell("yacht-mnvi").data / "summary.json", {"missing": why})
    content = page.Content(study.study, "none", provenance.data(study), [], [], [], [])
    text = page.render(content)
    assert "&lt;script&gt;" in text and "<script>" not in text


BROKEN = [
    ("evaluate/boston-mnvi/scores.json", "{", "pipeline.evaluate boston-mnvi"),
    ("evaluate/boston-mnvi/scores.json", "[]", "pipeline.evaluate boston-mnvi"),
    ("evaluate/boston-mnvi/scores.json", None, "pipeline.evaluate boston-mnvi"),
    ("evaluate/lenet-mnist-mnvi/plots/curves.json", "{}", "pipeline.evaluate lenet-mnist-mnvi"),
    ("evaluate/lenet-mnist-mnvi/plots/extremes.png", None, "pipeline.evaluate lenet-mnist-mnvi"),
    ("evaluate/lenet-mnist-mnvi/plots/extremes.png", "GIF", "pipeline.evaluate lenet-mnist-mnvi"),
    ("tune/boston-mnvi/best.yaml", "a: [", "pipeline.tune boston-mnvi"),
    ("tune/boston-mnvi/best.yaml", "source: search", "pipeline.tune boston-mnvi"),
    ("tune/boston-mnvi/trials.json", "{}", "pipeline.tune boston-mnvi"),
    ("models/boston-mnvi/training.json", None, "pipeline.train boston-mnvi"),
    ("models/lenet-mnist-mnvi/seed-2/history.json", None, "pipeline.train lenet-mnist-mnvi"),
    ("models/lenet-mnist-mnvi/seed-2/history.json", "[1]", "pipeline.train lenet-mnist-mnvi"),
]


@pytest.mark.parametrize(("name", "content", "stage"), BROKEN)
def test_a_broken_file_is_named_with_the_stage_that_makes_it(study, name, content, stage):
    path = study.study.results / name
    before = (study.study.results / "report" / "index.html").read_bytes()
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(StudyError) as error:
        writing.write_report(study)
    assert str(path) in str(error.value) and f"python -m {stage}" in str(error.value)
    assert (study.study.results / "report" / "index.html").read_bytes() == before


@pytest.mark.parametrize(
    ("key", "value"), [("runs", "three"), ("runs", True), ("complete", None), ("metrics", {}), ("kind", "poetry")]
)
def test_a_wrong_entry_of_scores_is_named(study, key, value):
    path = study.cell("boston-mnvi").evaluate / "scores.json"
    files.write_json(path, {**json.loads(path.read_text()), key: value})
    with pytest.raises(StudyError, match=f"scores.json: `{key}`"):
        results.read_scores(path)


def test_a_missing_summary_of_the_data_is_named_with_its_stage(study):
    (study.cell("boston-mnvi").data / "summary.json").unlink()
    with pytest.raises(
        StudyError, match=r"summary\.json: no such file; it is made by `python -m pipeline\.prepare boston`"
    ):
        writing.write_report(study)


def test_scores_that_are_not_finite_become_none(study):
    path = study.cell("boston-mnvi").evaluate / "scores.json"
    raw = json.loads(path.read_text())
    raw["metrics"]["log_likelihood"] = {"mean": float("nan"), "std": float("inf")}
    files.write_json(path, raw)
    assert results.read_scores(path).metrics["log_likelihood"] == results.Score(None, None)


def test_nothing_is_half_written_when_the_disk_is_full(study):
    report = study.study.results / "report"
    before = {path: path.read_bytes() for path in report.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # no figure is that small
    try:
        with pytest.raises(StudyError, match="report: cannot be written"):
            writing.write_report(study)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in report.rglob("*") if path.is_file()} == before
    assert not list(study.study.results.glob(".*.tmp"))


def test_pages_take_scores_and_searches_of_several_results_folders(study):
    for kept in ("boston-mnvi", "lenet-mnist-mnvi"):
        shutil.copytree(study.study.results / "evaluate" / kept, Path("recorded") / kept / "evaluate" / kept)
    shutil.copytree(study.study.results / "tune" / "boston-mnvi", "recorded/search/tune/boston-mnvi")
    marks = "".join(f"<!-- {name} --><!-- /{name} -->\n" for name in ("table1", "table2", "searches"))
    Path("README.md").write_text(marks)
    writing.fill_pages([Path("README.md")], sorted(Path("recorded").iterdir()))
    text = Path("README.md").read_text()
    assert "3 of 20 runs" in text and "3 of 4 runs" in text and "**boston-mnvi**" in text
    with pytest.raises(StudyError, match=r"nowhere: the folder has neither evaluate/<cell>/scores\.json nor a search"):
        writing.fill_pages([Path("README.md")], [Path("nowhere")])
    assert Path("README.md").read_text() == text


def test_pictures_for_pages_show_the_recorded_curves(study):
    kept = Path("recorded/images/evaluate/lenet-mnist-mnvi")
    shutil.copytree(study.study.results / "evaluate/lenet-mnist-mnvi", kept)
    drawn = writing.draw_pictures(Path("pictures"), [Path("recorded/images")])
    assert {"rejection.png", "reliability.png"} <= {path.name for path in drawn}
    pictures = {path: path.read_bytes() for path in drawn}
    curves = json.loads((kept / "plots/curves.json").read_text())
    curves["rejection"]["misclassification"] = [0.9 for _ in curves["rejection"]["rate"]]
    (kept / "plots/curves.json").write_text(json.dumps(curves))
    writing.draw_pictures(Path("pictures"), [Path("recorded/images")])
    assert [path.name for path in drawn if path.read_bytes() != pictures[path]] == ["rejection.png"]
    with pytest.raises(StudyError, match=r"nowhere/evaluate/<cell>/plots/curves\.json; give --results"):
        writing.draw_pictures(Path("pictures"), [Path("nowhere")])


def test_landscape_is_lowest_where_the_equations_say():
    means, variances, surfaces = landscape.surfaces()
    at = surfaces["mean field"].argmin().item()
    assert abs(means[at % len(means)]) < 1e-9
    assert variances[at // len(means)] == pytest.approx(landscape.PRIOR_VARIANCE, rel=0.02)
    noise = surfaces["multiplicative noise"]
    half = len(means) // 2
    lowest = means[half:][noise[:, half:].argmin(dim=1)]
    step = float(means[1] - means[0])
    assert (lowest - (landscape.PRIOR_VARIANCE / (1 + variances)).sqrt()).abs().max() <= 0.51 * step
    assert min(float(surface.min()) for surface in surfaces.values()) >= -1e-9
