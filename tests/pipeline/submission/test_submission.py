"""What is submitted and when, and the messages if something is missing; test_submitted_jobs.py has the jobs."""

from __future__ import annotations

import errno
import json
import re
import socket
import threading
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import Mock

import pytest
import tiny_study
import torch
import yaml
from image_study import make_cell, make_job, write_best
from ray._private.ray_constants import get_runtime_env_default_excludes
from ray._private.runtime_env.packaging import create_package
from remote_study import enter

import mnvi
from pipeline import files, params, stage_files, storage, submission
from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.params import Cell
from pipeline.submission import follow, inside, server
from pipeline.submission.package import packed
from pipeline.submission.submitting import Submission, _fingerprint, prepared
from pipeline.tracking.identity import JOB

DOCUMENTATION = Path(__file__).parents[3] / "docs/cluster.md"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter(tmp_path, monkeypatch)


def test_little_is_uploaded_and_it_is_listed(study: Path) -> None:
    make_cell()
    (study / "notes.bin").write_bytes(bytes(1_000_000))
    with packed("params.yaml") as package:
        names = {path.name for path in package.folder.iterdir()}
        assert names == {"mnvi", "pipeline", "params.yaml", "requirements.lock"}
        files = [path for path in package.folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 2_000_000
        assert not [path for path in files if "__pycache__" in path.parts]
        listed = str(package)
    assert "params.yaml" in listed and re.search(r": [0-9.]+ (k|M)B$", listed)


def test_no_secret_is_uploaded_by_hand(study: Path) -> None:
    needed = {"mnvi/a.py", "pipeline/a.py", "params.yaml", "dvc.lock", "data/boston/x.npy", "results/tune/best.yaml"}
    others = {"docker/.env", "docker/compose.yaml", ".env", ".dvc/config.local", ".git/config", "mlflow.db-wal"}
    others |= {"work/large.bin", "results/models/model.pt", "mnvi/__pycache__/a.pyc", "notes/keys.txt"}
    for name in needed | others:
        (study / name).parent.mkdir(parents=True, exist_ok=True)
        (study / name).write_text(name)
    documented = re.search(r"```yaml\n(# job.yaml.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert documented
    excludes = get_runtime_env_default_excludes() + yaml.safe_load(documented[1])["excludes"]
    package = study.parent / "package.zip"
    create_package(str(study), package, include_gitignore=False, excludes=excludes)
    with zipfile.ZipFile(package) as uploaded:
        assert set(uploaded.namelist()) == needed


@pytest.mark.parametrize("fewer", [{"recipe": {"runs": 2}}, {"recipe": {"runs": 20}, "limits": {"runs": 2}}])
def test_a_job_for_fewer_runs_is_another_one(study: Path, fewer: dict[str, Any]) -> None:
    jobs = []
    for settings in ({"recipe": {"runs": 20}}, fewer):
        tiny_study.write_params(Path("params.yaml"), **settings)
        jobs.append(_fingerprint(tiny_study.cell("mnvi"), "train", {}))
    assert jobs[0] != jobs[1]


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({}, r"MNVI_STORAGE: is not set, but RAY_ADDRESS=http://127\.0\.0\.1:1 needs it"),
        ({"MNVI_STORAGE": "storage"}, r"RAY_ADDRESS=http://127\.0\.0\.1:1: no job server of Ray answers there"),
        (
            {"MNVI_STORAGE": "s3://bucket/x", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"},
            "MLFLOW_TRACKING_URI=sqlite.*is a file, which the cluster cannot reach",
        ),
        (
            {"MNVI_STORAGE": "storage", "MLFLOW_TRACKING_URI": "http://user:word@host"},
            "MLFLOW_TRACKING_URI.*which Ray's dashboard would show",
        ),
        (
            {"MNVI_STORAGE": "storage", "AWS_ENDPOINT_URL": "http://user:word@host"},
            "AWS_ENDPOINT_URL.*which Ray's dashboard would show",
        ),
    ],
)
def test_what_a_submission_lacks_is_named(
    study: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], complaint: str
) -> None:
    cell = make_cell()
    write_best(cell)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StudyError, match=complaint) as error:
        submission.submit(cell, "train", "params.yaml")
    assert ":word" not in str(error.value)


def test_only_a_job_server_is_submitted_to_and_never_from_inside_a_job(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    assert not submission.wanted(cell, "train")
    monkeypatch.setenv("RAY_ADDRESS", "https://head:8265")
    assert submission.wanted(cell, "train")
    assert submission.wanted(cell, "evaluate")
    monkeypatch.setenv(inside.INPUTS, "{}")
    assert not submission.wanted(cell, "train")


def test_a_cluster_with_other_versions_is_refused(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (study / "requirements.lock").write_text("# made by hand\ntorch==1.0.0\nno-such-package==3\n")
    monkeypatch.setenv("MNVI_STORAGE", "storage")
    monkeypatch.setenv(inside.INPUTS, "{}")
    with (
        pytest.raises(StudyError, match=r"requirements.lock: the cluster has torch .* instead of 1\.0\.0;.*MNVI_PIP=1"),
        submission.entered(),
    ):
        pytest.fail("went on with other versions")


@pytest.mark.parametrize("error", [RuntimeError("status code 500\nTraceback"), ConnectionError("status code 500")])
def test_a_job_that_the_server_does_not_take_is_named(study: Path, error: Exception) -> None:
    client = Mock(list_jobs=Mock(return_value=[]), submit_job=Mock(side_effect=error))
    with pytest.raises(StudyError, match=r"did not accept lenet-train-0-1 \(status"):
        Submission(make_cell(), "train", "params.yaml", study, "0", {}).start(client)


def test_a_cluster_that_has_just_started_is_asked_again(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PAUSE", 0.0)
    busy = RuntimeError("status code 500: No available agent to submit job, please try again later.")
    client = Mock(list_jobs=Mock(return_value=[]), submit_job=Mock(side_effect=[busy, busy, "lenet-train-0-1"]))
    assert Submission(make_cell(), "train", "params.yaml", study, "0", {}).start(client) == "lenet-train-0-1"
    assert client.submit_job.call_count == 3


def test_a_server_that_takes_a_question_and_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("RAY_ADDRESS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        end = threading.Timer(20, silent.shutdown, [socket.SHUT_RDWR])  # or a client without patience would stay
        end.start()
        with pytest.raises(StudyError, match=r"no job server of Ray answers there \(.*imed out"):
            server.connect()
        end.cancel()


def test_the_next_attempt_has_a_name_that_no_job_has_when_the_first_was_deleted(study: Path) -> None:
    left = ["lenet-train-0-2", "lenet-train-0-10", "lenet-train-01-40", "lenet-tune-0-40", None]
    client = Mock(list_jobs=Mock(return_value=[Mock(submission_id=name) for name in left]))
    assert Submission(make_cell(), "train", "params.yaml", study, "0", {}).start(client) == "lenet-train-0-11"


def with_weights(weights: str, **changes: Any) -> Cell:
    """A cell whose network starts from a file."""
    net = mnvi.models.lenet(num_classes=2)
    Path(weights).parent.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), weights)
    cell = make_cell("deterministic", experiment={"weights": weights, "epochs": 1, "milestones": []}, **changes)
    write_best(cell)
    return cell


@pytest.fixture
def storing(study: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A storage, and a job server that nobody asks."""
    monkeypatch.setenv("MNVI_STORAGE", str(study / "storage"))
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    return study / "storage"


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_a_job_finds_the_weights_that_the_settings_name(
    storing: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    cell = with_weights("start/lenet.pt")
    files.write_tensors(cell.model / "seed-0/model.pt", {})
    files.write_json(cell.model / "training.json", {})
    one, given = prepared(cell, stage, "params.yaml"), Path("start/lenet.pt").read_bytes()
    monkeypatch.setenv("MNVI_NODE_CACHE", str(storing / "node"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv(inside.INPUTS, json.dumps(one.inputs))
    monkeypatch.setenv(JOB, one.job)
    with packed("params.yaml") as package, monkeypatch.context() as patch:
        patch.chdir(package.folder)
        with submission.entered():
            there = params.load().cell("lenet")
            assert Path("start/lenet.pt").read_bytes() == given
            assert there.fingerprint(stage) == cell.fingerprint(stage)
            assert all(path.exists() for path in stage_files.inputs(there, stage))


def test_a_worker_on_another_node_starts_from_its_own_copy(storing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = with_weights("start/lenet.pt")
    expected, job = torch.load("start/lenet.pt"), make_job(cell)
    monkeypatch.setenv("MNVI_NODE_CACHE", str(storing / "node"))
    (elsewhere := storing / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    net = jobs.objective(job).net
    assert isinstance(net, torch.nn.Module)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in expected.items())


def test_weights_outside_of_the_study_are_named(storing: Path) -> None:
    cell = with_weights(str(storing.parents[1] / "lenet.pt"))
    with pytest.raises(StudyError, match=r"experiments.lenet-mnist.weights: .*lenet.pt is outside of the study's"):
        prepared(cell, "train", "params.yaml")


def test_weights_of_a_released_name_are_no_file(storing: Path) -> None:
    cell = make_cell("deterministic")
    write_best(cell)
    assert set(prepared(cell, "train", "params.yaml").inputs) == {"data/mnist", "results/tune/lenet/best.yaml"}


def test_other_weights_are_another_job(storing: Path) -> None:
    cell = with_weights("start/lenet.pt")
    before = prepared(cell, "train", "params.yaml")
    torch.save({**torch.load("start/lenet.pt"), "more": torch.zeros(1)}, "start/lenet.pt")
    assert before.fingerprint != prepared(cell, "train", "params.yaml").fingerprint


def test_an_evaluation_knows_the_run_that_trained(storing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, kept = make_cell(), storing / "drivers/results/train/lenet/results/train/lenet/mlflow-run.json"
    files.write_json(kept, {"id": "1"})
    monkeypatch.setenv("MNVI_NODE_CACHE", str(storing / "node"))
    monkeypatch.setenv(inside.INPUTS, "{}")
    monkeypatch.setenv(JOB, "results/evaluate/lenet/0")
    with packed("params.yaml") as package, monkeypatch.context() as patch:
        patch.chdir(package.folder)
        with submission.entered():
            assert json.loads((cell.state("train") / "mlflow-run.json").read_text()) == {"id": "1"}
    assert not (storing / "drivers/results/evaluate").exists(), "it is no state of the evaluation"


def test_a_file_that_vanishes_while_state_is_copied_does_not_end_the_copying(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = inside._Copier(study, study.parent / "copy")
    (study / "trial.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "names", lambda folder: [PurePosixPath("gone.json"), PurePosixPath("trial.json")])
        copier.copy()
    copier.copy()
    assert storage.names(study.parent / "copy") == [PurePosixPath("trial.json")]


def test_a_node_without_room_for_a_copy_is_told_and_copies_once_there_is(
    study: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    copier = inside._Copier(study, study.parent / "copy")
    (study / "trial.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "put", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        copier.copy()
    assert "not in storage yet: [Errno 28] No space left on device" in capfd.readouterr().err
    copier.copy()
    assert storage.names(study.parent / "copy") == [PurePosixPath("trial.json")]
