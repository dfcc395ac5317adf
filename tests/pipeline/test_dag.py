"""dvc.yaml under the real DVC: which stages run after which change. The stages here only write their files."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from commands import PATIENCE

ROOT = Path(__file__).parents[2]
CELLS = ("boston-mnvi", "boston-mc_dropout", "lenet-mnist-mnvi")
REAL = (
    "__init__.py",
    "console.py",
    "errors.py",
    "files.py",
    "masking.py",
    "names.py",
    "params",
    "registry",
    "setting_types.py",
)
STANDS_IN = """
import json, sys
from pathlib import Path

stage, name = {stage!r}, sys.argv[-1]
for path in {paths!r}:
    path = Path(path.format(name=name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({{"digest": name, "log_likelihood": -1.0}}))
"""
WRITES = {
    "prepare": ["data/{name}/summary.json"],
    "tune": ["results/tune/{name}/best.yaml", "results/tune/{name}/trials.json"],
    "train": ["results/models/{name}/training.json"],
    "evaluate": [f"results/evaluate/{{name}}/{file}.json" for file in ("scores", "metrics", "plots/curves")],
    "report": ["results/report/index.html"],
}
SOURCES = {
    "pipeline/regression/search.py": "from pipeline import searching\nfrom pipeline.regression import folds\n",
    "pipeline/regression/training.py": "import mnvi\nfrom pipeline.regression import folds\n",
    "pipeline/regression/evaluation.py": "from mnvi import metrics\nfrom pipeline.regression import folds\n",
    "pipeline/regression/folds.py": "",
    "pipeline/images/search.py": "from pipeline import searching\nfrom pipeline.images import loop\n",
    "pipeline/images/training.py": "from pipeline.images import loop\n",
    "pipeline/images/evaluation.py": "import mnvi\nfrom pipeline.images import pictures\nmnvi.metrics\n",
    "pipeline/images/loop.py": "import mnvi\n",
    "pipeline/images/pictures.py": "",
    "pipeline/searching.py": "",
    "mnvi/__init__.py": "from mnvi import metrics\n",
    "mnvi/gaussian.py": "",
    "mnvi/methods.py": "",
    "mnvi/metrics.py": "",
    "mnvi/models.py": "",
    "pipeline/regression/predictions.py": "",
}
PLOTS = {
    "rejection": "cell,rate,misclassification\na,0.0,0.5\na,0.5,0.1\nb,0.0,0.4\nb,0.5,0.2\n",
    "reliability": "cell,confidence,accuracy\na,0.5,0.5\na,1.0,0.9\nb,0.5,0.4\nb,1.0,0.8\n",
    "log_likelihood": "cell,mean,std,paper\na,-2.4,0.1,-2.4\nb,-2.5,0.1,-2.4\n",
}


class Project:
    """A repository with this project's dvc.yaml, params.yaml and settings, and stages that take no time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("params.yaml", "dvc.yaml", ".dvcignore", ".gitignore"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "studies", folder / "studies")
        for name in REAL:
            source, target = ROOT / "pipeline" / name, folder / "pipeline" / name
            target.parent.mkdir(exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        for stage, paths in WRITES.items():
            self.write(f"pipeline/{stage}.py", STANDS_IN.format(stage=stage, paths=paths))
        self.write("pipeline/report/words.py", "pass\n")
        for name, text in SOURCES.items():
            self.write(name, text)
        (folder / "pipeline/report.py").rename(folder / "pipeline/report/__main__.py")
        self.run("git", "init", "--quiet")
        self.run("dvc", "init", "--quiet")
        shutil.copy(ROOT / ".dvc/config", folder / ".dvc/config")
        shutil.copytree(ROOT / ".dvc/plots", folder / ".dvc/plots")
        self.run("python", "-m", "pipeline.params", "select", "default", "--cells", ",".join(CELLS))

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        someone = {f"GIT_{role}_{what}": "someone" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        return {**os.environ, **someone, "PATH": path, "DVC_NO_ANALYTICS": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def reruns(self, *stages: str) -> set[str]:
        """Runs what is out of date, of everything or of what these stages need, and names it."""
        return set(re.findall(r"Running stage '([^']+)'", self.run("dvc", "repro", *stages)))

    def stop(self, stage: str, how: signal.Signals) -> None:
        """Runs a stage and, when it is at work, ends DVC with all that it has started, as Ctrl-C does."""
        path, started = self.folder / f"pipeline/{stage.partition('@')[0]}.py", self.folder / "started"
        whole = path.read_text()
        path.write_text(f"{whole}Path('started').touch()\nimport time\ntime.sleep(600)\n")
        command = ["dvc", "repro", "--force", "--single-item", stage]
        running = subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True)
        deadline = time.monotonic() + PATIENCE
        while running.poll() is None and not started.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(running.pid, how)
        path.write_text(whole)
        self.write("pipeline/regression/folds.py", f"AFTER = '{how.name}'\n")  # or DVC would look into its cache
        assert running.wait(PATIENCE) != 0
        assert started.exists(), f"{stage} had not begun"
        started.unlink()

    def damaged(self) -> list[Path]:
        """Files of the cache whose content is not what their names say."""
        found = [path for path in (self.folder / ".dvc/cache/files/md5").rglob("*") if path.is_file()]
        assert found
        return [
            path
            for path in found
            if hashlib.md5(path.read_bytes()).hexdigest() != path.parent.name + path.name.removesuffix(".dir")
        ]

    def change(self, before: str, after: str, below: str = "") -> None:
        """Where the text stands for the first time below another one; without that it has to stand there once."""
        path = self.folder / "params.yaml"
        above, heading, text = path.read_text().partition(below) if below else ("", "", path.read_text())
        assert text.count(before) == 1 or (heading and before in text), before
        path.write_text(above + heading + text.replace(before, after, 1))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def of_cells(stages: str, *cells: str) -> set[str]:
    return {f"{stage}@{cell}" for stage in stages.split() for cell in cells}


@pytest.mark.slow
def test_a_change_reruns_what_depends_on_it_and_nothing_else(project):
    data = {f"prepare@{name}" for name in ("boston", "mnist", "fashion_mnist")}
    everything = data | of_cells("tune train evaluate", *CELLS) | {"settings", "ood", "report"}
    assert project.reruns() == everything
    assert project.reruns() == set()

    # A method's own hyperparameter: only its cell.
    project.change("dropout: 0.05", "dropout: 0.07", below="  uci:\n")
    found = project.reruns()
    assert found >= of_cells("tune train evaluate", "boston-mc_dropout")
    assert not found & of_cells("tune train evaluate", "boston-mnvi", "lenet-mnist-mnvi")
    assert not found & data

    # The cut of one kind of experiment leaves the other kind alone.
    project.change("epochs: 14, ", "epochs: 13, ")
    found = project.reruns()
    assert found & of_cells("tune train evaluate", *CELLS) == of_cells("tune train evaluate", "lenet-mnist-mnvi")

    # What only the search looks at.
    project.change("search_epochs: 40", "search_epochs: 30")
    assert project.reruns() & of_cells("tune train evaluate", *CELLS) == {"tune@boston-mnvi"}

    # Comments and docstrings, in params.yaml and in all code.
    project.change("# The machines.", "# All machines.")
    for name, text in SOURCES.items():
        project.write(name, f'"""In other words."""\n\n{text}# a comment\n')
    assert project.reruns() == {"settings"}
    project.write("pipeline/prepare.py", (project.folder / "pipeline/prepare.py").read_text() + "# a comment\n")
    assert project.reruns() == {"settings"}

    # Code of one kind, a figure, a metric, the library.
    images = of_cells("tune train evaluate", "lenet-mnist-mnvi")
    for name, stages in {
        "pipeline/images/loop.py": images - of_cells("evaluate", "lenet-mnist-mnvi"),
        "pipeline/images/pictures.py": of_cells("evaluate", "lenet-mnist-mnvi"),
        "mnvi/metrics.py": of_cells("evaluate", *CELLS),
        "mnvi/gaussian.py": of_cells("train evaluate", *CELLS) | of_cells("tune", "boston-mnvi", "lenet-mnist-mnvi"),
    }.items():
        project.write(name, f"{SOURCES[name]}steps = 1\n")
        assert project.reruns() & of_cells("tune train evaluate", *CELLS) == stages, name

    # Other data for out-of-distribution tests reach the evaluation of those who use them.
    prepare = (project.folder / "pipeline/prepare.py").read_text()
    project.write("pipeline/prepare.py", prepare.replace(": name,", ': name.replace("fashion", "other"),'))
    found = project.reruns()
    assert found & of_cells("tune train evaluate", *CELLS) == of_cells("evaluate", "lenet-mnist-mnvi")


@pytest.mark.slow
def test_dvc_shows_metrics_parameters_and_plots(project):
    project.reruns()
    shown = project.run("dvc", "metrics", "show", "--md")
    assert all(f"results/evaluate/{name}/metrics.json" in shown for name in CELLS)
    project.run("git", "add", "--all")
    project.run("git", "commit", "--quiet", "--allow-empty", "--message", "all of it")
    (workspace,) = json.loads(project.run("dvc", "exp", "show", "--json"))[:1]
    parameters = {name: given["data"] for name, given in workspace["data"]["params"].items()}
    lines = parameters.pop("results/settings/shown.json")
    assert lines.keys() == {"study", *CELLS} and "epochs of batches of" in lines[CELLS[0]]
    assert parameters.keys() == {"params.yaml"}  # what dvc.yaml names of it
    assert len(parameters["params.yaml"]) <= 1 + 3 + len(CELLS), parameters
    for name, text in PLOTS.items():
        project.write(f"results/report/plots/{name}.csv", text)
    project.run("dvc", "plots", "show")
    page = (project.folder / "dvc_plots/index.html").read_text()
    assert all(column in page for column in ("misclassification", "accuracy", "log_likelihood"))
    for name in ("rejection", "reliability"):
        file = f"results/report/plots/{name}.csv"
        drawn = json.loads(project.run("dvc", "plots", "show", file, "--show-vega"))
        assert drawn["encoding"]["color"]["field"] == "cell"
        assert {point["cell"] for point in drawn["data"]["values"]} == {"a", "b"}


@pytest.mark.slow
def test_experiments_have_a_few_columns_for_each_cell(project):
    project.reruns()
    project.run("git", "add", "--all")
    project.run("git", "commit", "--quiet", "--allow-empty", "--message", "all of it")
    said = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/.installed", "experiments"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = shlex.split(said.replace("\\\n", " "))
    shown = project.run("dvc", *words[words.index("exp") :], "--csv")
    columns = next(csv.reader(shown.splitlines()))
    lines = ["study", *CELLS]
    assert set(lines) <= set(columns)
    scores = [column for column in columns if column.startswith("results/evaluate/")]
    assert scores and all(column.partition(":")[0].endswith("/metrics.json") for column in scores)
    about = len(columns) - len(lines) - len(scores)
    assert about <= 8, columns  # name, date, state and the like


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_dvc_goes_on_after_it_was_stopped_and_its_cache_is_whole(project, how):
    stage = f"train@{CELLS[0]}"
    project.reruns(stage)
    project.stop(stage, how)
    assert not project.damaged()
    assert stage in project.reruns(stage)
    assert not project.damaged()
    assert project.reruns(stage) == set()


@pytest.mark.slow
def test_one_run_with_another_parameter_shows_in_the_difference(project):
    stage = f"train@{CELLS[0]}"
    project.reruns(stage)
    project.run("git", "add", "--all")
    project.run("git", "commit", "--quiet", "--message", "before")
    key = "experiments.boston.learning_rate"
    assert f"Running stage '{stage}'" in project.run("dvc", "exp", "run", "-S", f"{key}=0.123", stage)
    settings = json.loads((project.folder / "results/settings/boston-mnvi/train.json").read_text())
    assert settings["experiment"]["learning_rate"] == 0.123
    differs = project.run("dvc", "params", "diff", "--targets", "params.yaml", "--md")
    assert re.search(rf"{re.escape(key)}\s*\|\s*\S+\s*\|\s*0.123", differs)
    assert "sgd 0.123" in project.run("dvc", "params", "diff", "--md")


@pytest.mark.slow
def test_metrics_of_an_earlier_run_can_be_compared(project):
    project.reruns(stage := f"evaluate@{CELLS[1]}")
    project.run("git", "add", "--all")
    project.run("git", "commit", "--quiet", "--message", "before")
    project.run("dvc", "exp", "run", "--name", "faster", "-S", "experiments.boston.learning_rate=0.234", stage)
    known = json.loads(project.run("dvc", "metrics", "diff", "--all", "--json", "HEAD", "faster"))
    found = known[f"results/evaluate/{CELLS[1]}/metrics.json"]["log_likelihood"]
    assert (found["old"], found["new"]) == (-1.0, -1.0)
    assert not [*project.folder.glob("results/**/.gitignore")], "DVC asks to commit what git ignores"


def test_no_lock_is_committed_at_the_top_so_that_a_fresh_clone_runs_its_study():
    listed = subprocess.run(["git", "ls-files", "dvc.lock"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout == ""


def test_every_code_dependency_of_dvc_yaml_exists():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    deps = {dep for stage in stages.values() for dep in stage.get("do", stage)["deps"]}
    code = {dep for dep in deps if dep.startswith(("pipeline", "mnvi"))}
    assert code >= {"mnvi", "pipeline"}
    assert not [dep for dep in code if not (ROOT / dep).exists()]
