"""State that does not fit is set aside under a name that says why, and put back or removed by a command alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import command
from tiny_study import cell, enter

from pipeline import state, storage
from pipeline.errors import StudyError
from pipeline.params import Cell


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(tmp_path, monkeypatch)


def kept(one: Cell, content: str = "hours of work", **made_for: Any) -> Path:
    """The folder of a stage that has kept something in it."""
    folder = progress(one, **made_for)
    (folder / "chunk").write_text(content)
    return folder


def progress(one: Cell, **made_for: Any) -> Path:
    folder = state.progress(one.state("train"), one, "train", {**one.made_for("train"), "data": "a", **made_for})
    assert isinstance(folder, Path)
    return folder


def names(one: Cell) -> list[str]:
    return [name for _, name, _ in state.aside(one, "train")]


@pytest.mark.parametrize("name", ["chunks/0000.pt", "finished/1.json", "seed-0/checkpoint.pt", "trial-ab/record.json"])
def test_state_of_an_earlier_version_stays_and_one_message_says_what_to_do(
    capfd: pytest.CaptureFixture[str], name: str
) -> None:
    one = cell("mnvi")
    old = one.state("train") / name
    old.parent.mkdir(parents=True)
    old.write_text("hours of work")
    for _ in range(2):
        assert not (progress(one) / name).exists()
    message = capfd.readouterr().err
    assert message.count("has state of version 0.1") == 1 and name.partition("/")[0] in message
    assert old.read_text() == "hours of work"


def test_what_a_stage_keeps_beside_its_state_is_not_taken_for_an_earlier_version_s(
    capfd: pytest.CaptureFixture[str],
) -> None:
    one = cell("mnvi")
    for name in ("done.json", "run.json", "children/seed-0/run.json", "ray/trial-1/x"):
        path = one.state("train") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    progress(one)
    assert "version 0.1" not in capfd.readouterr().err


def test_what_fits_stays() -> None:
    one = cell("mnvi")
    folder = kept(one)
    assert (progress(one) / "chunk").read_text() == "hours of work" and folder == progress(one)
    assert not names(one)


@pytest.mark.parametrize(
    ("made_for", "ending", "said"),
    [
        ({"settings": {"experiment": {"clip": 2.0}}}, "-settings-clip", "settings.experiment.clip: 1.0, now 2.0"),
        ({"data": "b"}, "-data", "something else: data."),
        ({"code": {"pipeline.images.loop": "1"}}, "-code-pipeline.images.loop", "code/pipeline.images.loop"),
    ],
)
def test_what_does_not_fit_is_set_aside_and_the_message_says_why_and_how_to_go_on(
    capfd: pytest.CaptureFixture[str], made_for: dict[str, Any], ending: str, said: str
) -> None:
    one = cell("mnvi")
    before = one.made_for("train")
    changes = {key: _merged(before.get(key), value) for key, value in made_for.items()}
    kept(one)
    assert not (progress(one, **changes) / "chunk").exists()
    (name,) = names(one)
    assert name.endswith(ending)
    assert (one.state("train") / "set-aside" / name / "chunk").read_text() == "hours of work"
    message = capfd.readouterr().err
    assert said in message and f"python -m pipeline.state adopt tiny-mnvi train/{name}" in message


def _merged(before: Any, change: Any) -> Any:
    if not isinstance(change, dict) or not isinstance(before, dict):
        return change
    return {**before, **{key: _merged(before.get(key), value) for key, value in change.items()}}


def test_state_without_a_mark_is_set_aside() -> None:
    one = cell("mnvi")
    (one.state("train") / "progress").mkdir(parents=True)
    (one.state("train") / "progress" / "chunk").write_text("")
    progress(one)
    assert names(one) == ["unknown-date-unmarked"]


def test_adopted_state_is_continued_from_though_it_was_made_for_something_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    one = cell("mnvi")
    kept(one, "first")
    kept(one, "second", data="b")
    (name,) = names(one)
    assert command("state", "adopt", "tiny-mnvi", f"train/{name}")[0] == 0
    folder = progress(one, data="b")
    assert (folder / "chunk").read_text() == "first"
    assert "continues from adopted state, although these differ: data" in capfd.readouterr().err
    assert json.loads((folder / "made-for.json").read_text())["adopted"] == [["data"]]
    assert (progress(one, data="b") / "chunk").read_text() == "first", "it is the state of these settings by now"
    (replaced,) = names(one)
    assert replaced.endswith("-replaced")
    assert (one.state("train") / "set-aside" / replaced / "chunk").read_text() == "second"


def test_state_can_be_adopted_before_a_stage_sees_other_digests_of_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    one = cell("mnvi")
    kept(one, code={"mnvi.elbo": "as it was counted before"})
    assert command("state", "set-aside", "tiny-mnvi", "train")[0] == 0
    (name,) = names(one)
    assert command("state", "adopt", "tiny-mnvi", f"train/{name}")[0] == 0
    assert (progress(one) / "chunk").read_text() == "hours of work" and names(one) == []
    assert "although these differ: code" in capfd.readouterr().err


def test_only_the_command_removes_and_it_removes_what_it_is_told() -> None:
    one = cell("mnvi")
    for data in "abc":
        kept(one, data, data=data)
    first, second = names(one)
    assert command("state", "remove", "tiny-mnvi", f"train/{first}")[0] == 0
    assert names(one) == [second]
    status, said = command("state", "remove", "tiny-mnvi", f"train/{first}")
    assert status == 1 and f"no such state set aside; there is train/{second}" in said
    assert (progress(one, data="c") / "chunk").read_text() == "c"


def test_a_stage_can_be_started_anew_without_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    one = cell("mnvi")
    kept(one)
    assert command("state", "set-aside", "tiny-mnvi", "train")[0] == 0
    assert not (progress(one) / "chunk").exists()
    (name,) = names(one)
    assert command("state", "list")[0] == 0
    assert (
        f"tiny-mnvi train/{name}: 2 files in work/results/train/tiny-mnvi/set-aside/{name}" in capsys.readouterr().out
    )


@pytest.mark.parametrize("given", ["train", "report/2026", "train/"])
def test_what_is_no_state_is_refused(given: str) -> None:
    status, said = command("state", "adopt", "tiny-mnvi", given)
    assert status == 1 and f"{given}: expected STAGE/NAME" in said


def test_a_move_that_fails_leaves_the_state_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    one = cell("mnvi")
    folder = kept(one)
    with monkeypatch.context() as patch, pytest.raises(StudyError, match=r"cannot be moved to .*-data"):
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        progress(one, data="b")
    assert (folder / "chunk").read_text() == "hours of work" and not names(one)


def test_more_runs_are_no_reason_to_start_anew() -> None:
    one = cell("mnvi")
    kept(one)
    more = replace(one, experiment=replace(one.experiment, runs=7))
    assert (progress(more) / "chunk").exists()


def test_state_in_storage_is_listed_and_adopted_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(storage.VARIABLE, str(tmp_path / "storage"))
    one = cell("mnvi")
    _, workers, drivers = state.places(one, "train")
    for place in (workers, drivers):
        for data in "ab":
            folder = state.progress(place, one, "train", {**one.made_for("train"), "data": data})
            storage.write_json(folder / "chunk.json", [str(place), data])
        name = next(name for where, name, _ in state.aside(one, "train") if where == place)
        state.adopt(one, "train", name)
        folder = state.progress(place, one, "train", {**one.made_for("train"), "data": "b"})
        assert storage.read_json(folder / "chunk.json", "a test") == [str(place), "a"]
        state.remove(one, "train", names(one)[0])
