"""The walk of docs/walk.md: what is read from the page, and that its commands are those of the other pages."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools import follow_docs

ROOT = Path(__file__).parent.parent
STEPS = follow_docs.steps(follow_docs.PAGE.read_text())
PAGE = """# Title

## First

Words.

```bash
name=earth
```

```python
print("hello")
```

## Nothing to run

    make ui

## Second

```bash
echo hello $name
```
"""


def test_a_walk_carries_variables_from_step_to_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = list(follow_docs.follow(follow_docs.steps(PAGE), tmp_path))
    assert [step.name for step, _ in taken] == ["First", "Second"]
    assert "hello\n" in capsys.readouterr().out.replace("hello earth\n", "hello\n")
    assert (
        "| First | " in (shown := follow_docs.table([(step.name, time) for step, time in taken], "abc1234"))
        and "commit abc1234." in shown
    )


def test_a_walk_stops_at_the_first_command_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk = [follow_docs.Step("fine", "true\n"), follow_docs.Step("broken", "false\necho never\n")]
    taken = follow_docs.follow(walk, tmp_path)
    assert next(taken)[0].name == "fine"
    with pytest.raises(subprocess.CalledProcessError):
        next(taken)
    assert "never" not in capsys.readouterr().out


def test_the_commit_that_is_recorded_is_one_of_main(tmp_path: Path) -> None:
    """What another branch has on top is counted, since its commits may be renamed before they get to main."""

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=walker", "-c", "user.email=walker@example.org"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "--quiet", "--initial-branch", "main")
    git("commit", "--quiet", "--allow-empty", "--message", "on main")
    known = git("rev-parse", "--short", "HEAD")
    assert follow_docs.commit(tmp_path) == known
    git("switch", "--quiet", "--create", "trial")
    for message in ("one", "two"):
        git("commit", "--quiet", "--allow-empty", "--message", message)
    assert follow_docs.commit(tmp_path) == f"{known} and 2 later"


def test_the_walk_has_every_step() -> None:
    script = "\n".join(step.script for step in STEPS)
    for part in ("pip wheel", "BayesianRegressor", "efficientnet_lite0", "tune_noise", "refer=0.1", "mnvi.export"):
        assert part in script
    for part in ("pipeline.new photos/", "dvc repro", "pipeline.predict", "pipeline.serve", "make ui"):
        assert part in script


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_is_valid_shell_and_python(step: follow_docs.Step) -> None:
    subprocess.run(["bash", "-n", "-c", step.script], check=True)
    for part in step.script.split(f"python - <<'{follow_docs.HERE}'\n")[1:]:
        ast.parse(part.partition(f"{follow_docs.HERE}\n")[0])


@pytest.mark.soak
def test_the_whole_walk(tmp_path: Path) -> None:
    page = tmp_path / "walk.md"
    page.write_text(follow_docs.PAGE.read_text())
    subprocess.run([sys.executable, "-m", "tools.follow_docs", "--page", str(page)], cwd=ROOT, check=True)
    assert all(f"| {step.name} | " in page.read_text() for step in STEPS)
