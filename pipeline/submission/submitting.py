"""Submits a stage to the cluster: one job for the same settings, code and data, however often the command is run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import blobs, files, forwarded, stage_files, storage, tracking
from pipeline import params as settings
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.masking import masked
from pipeline.params import Cell
from pipeline.storage import Anywhere
from pipeline.submission import follow, server
from pipeline.submission.inside import INPUTS, finished, is_inside, tracked
from pipeline.submission.package import packed, requirements
from pipeline.tracking import runs, store
from pipeline.tracking.identity import JOB

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

PIP = "MNVI_PIP"
NOT_YET = "No available agent"  # in the answer of a server whose nodes have not announced themselves
SECONDS_TO_END_IN = "20"  # between Ray's request to stop a job and its killing it


def wanted(cell: Cell, stage: str) -> bool:
    """Whether to submit the stage to a cluster. A job never submits itself again."""
    return server.is_named() and not is_inside()


def submit(cell: Cell, stage: str, params: str | Path) -> None:
    """Runs the stage on the cluster and fetches its outputs."""
    one = prepared(cell, stage, params)
    if not one.is_finished():
        client = server.connect()
        running = one.running(client)
        if running is None:
            name = one.start(client)
        else:
            name = running
            say(f"{name} is already running on {server.address()}; its log from the beginning:")
        follow.to_the_end(client, server.address(), name)
    one.bring()


@dataclass(frozen=True)
class Submission:
    """A stage with its inputs in storage.

    Args:
        fingerprint: of its settings, code and data.
        inputs: paths, with their digests in storage.
    """

    cell: Cell
    stage: str
    params: str | Path
    root: Anywhere
    fingerprint: str
    inputs: dict[str, str]

    @property
    def job(self) -> str:
        """Names what all attempts make."""
        return f"{self.cell.study.results}/{self.stage}/{self.cell.name}/{self.fingerprint}"

    def is_finished(self) -> bool:
        return finished(self.root, self.job).exists()

    def running(self, client: JobSubmissionClient) -> str | None:
        """The running job with this fingerprint, if any. One for the same cell but other settings is an error.

        Both jobs would write to the same place.
        """
        for job in client.list_jobs():
            if job.status.is_terminal() or not job.submission_id:
                continue
            if self._about.items() <= (job.metadata or {}).items():
                if (job.metadata or {}).get("fingerprint") == self.fingerprint:
                    return str(job.submission_id)
                stop = follow.stop_command(server.address(), job.submission_id)
                raise StudyError(
                    f"{job.submission_id} is running on {server.address()} for {self.stage} of {self.cell.name}, with "
                    f"other settings, code or data; wait until it ends, or stop it: {stop}"
                )
        return None

    def start(self, client: JobSubmissionClient) -> str:
        """Uploads the code and starts the next attempt; returns its name."""
        name = f"{self.cell.name}-{self.stage}-{self.fingerprint}"
        name = f"{name}-{1 + _last_attempt(client.list_jobs(), name)}"
        variables = _environment(self.root) | {INPUTS: json.dumps(self.inputs), JOB: self.job}
        with packed(self.params) as package:
            environment: dict[str, Any] = {"working_dir": str(package.folder), "env_vars": variables}
            if os.environ.get(PIP, "0") not in ("", "0"):
                environment["pip"] = requirements()
            say(f"{name}: uploading {package}")
            _submit(
                client,
                name,
                entrypoint=shlex.join(["python", "-m", f"pipeline.{self.stage}", self.cell.name]),
                runtime_env=environment,
                metadata={**self._about, "fingerprint": self.fingerprint},
            )
        say(f"{name}: submitted to {server.address()}")
        return name

    def bring(self) -> None:
        """Fetches what the job has made into DVC's outputs."""
        note = finished(self.root, self.job)
        said = storage.read_json(note, f"python -m pipeline.{self.stage} {self.cell.name}")
        made = blobs.Contents(self.root, said["contents"])
        with tempfile.TemporaryDirectory(prefix="mnvi-") as name:
            folder = Path(name)
            try:
                made.write(folder)
            except StudyError:
                storage.remove(note)  # so that the next attempt runs the job anew
                raise
            for path in stage_files.outputs(self.cell, self.stage):
                with files.replacing(path) as temporary:
                    shutil.move(folder / path, temporary)
        if "unsent" in said:
            with files.replacing(tracked(self.job)) as temporary:
                blobs.Contents(self.root, said["unsent"]).write(temporary)
            storage.write_json(note, {"contents": said["contents"]})  # we alone send the rest now
            say(
                f"MLflow has not received all records of the job; the rest is in {tracked(self.job)}, and the next "
                "stage or `python -m pipeline.tracking send` sends it"
            )

    @property
    def _about(self) -> dict[str, str]:
        about = {"stage": self.stage, "cell": self.cell.name}
        return {**about, "results": str(self.cell.study.results), "storage": str(self.root)}


def prepared(cell: Cell, stage: str, params: str | Path) -> Submission:
    """Checks that the stage can run on the cluster, and uploads its inputs."""
    root = storage.of(f"RAY_ADDRESS={server.address()}")
    _check_no_secret(_environment(root))
    _check_tracking(root)
    if stage != "tune":
        files.read_yaml(cell.tune / "best.yaml", made_by=f"python -m pipeline.tune {cell.name}")
    if stage == "evaluate":
        files.read_json(cell.model / "training.json", made_by=f"python -m pipeline.train {cell.name}")
    inputs = {str(path): _published(path, root) for path in stage_files.inputs(cell, stage)}
    fingerprint = _fingerprint(cell, stage, inputs)
    # The cell's settings cover the content of its own; reading the settings of the others needs theirs.
    weights = {str(path): _published(path, root) for path in _starting_weights(params)}
    return Submission(cell, stage, params, root, fingerprint, inputs | weights)


def _published(path: Path, root: Anywhere) -> str:
    return blobs.publish({"." if path.is_dir() else path.name: path}, root).digest


def _starting_weights(params: str | Path) -> list[Path]:
    """The files of weights that the experiments start from."""
    found = []
    for experiment in settings.load(params).experiments.values():
        file = experiment.weights_file
        if file is None:
            continue
        if file.is_absolute() or ".." in file.parts:
            raise StudyError(
                f"experiments.{experiment.name}.weights: {file} is outside of the study's folder, where a job on the "
                f"cluster cannot put it; copy or link it into this folder and write its name there, e.g. {file.name}"
            )
        found.append(file)
    return found


def _fingerprint(cell: Cell, stage: str, inputs: dict[str, str]) -> str:
    # A job trains all seeds or runs; the cell's own fingerprint covers the training of each, but not their number.
    how_many = [cell.experiment.seeds, cell.experiment.runs]
    depends_on = [cell.fingerprint(stage), how_many, inputs]
    return hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:12]


def _submit(client: JobSubmissionClient, name: str, **job: Any) -> None:
    """Submits a job; a server that has just started says for a while that no node can take it."""
    until = time.monotonic() + follow.PATIENCE
    while True:
        try:
            client.submit_job(submission_id=name, **job)
            return
        except follow.trouble() as error:
            if NOT_YET not in str(error) or time.monotonic() > until:
                raise StudyError(
                    f"RAY_ADDRESS={server.address()}: the cluster did not accept {name} ({follow.brief(error)}); run "
                    "the same command again, which attaches to the job if it is running after all"
                ) from error
        time.sleep(follow.PAUSE)


def _last_attempt(jobs: list[JobDetails], name: str) -> int:
    """The number of the last attempt, which may exceed the count of attempts: earlier ones may have been deleted."""
    found = [re.fullmatch(rf"{re.escape(name)}-(\d+)", job.submission_id or "") for job in jobs]
    return max((int(attempt[1]) for attempt in found if attempt), default=0)


def _environment(root: Anywhere) -> dict[str, str]:
    return {
        **forwarded.variables(),
        storage.VARIABLE: str(root),
        "MLFLOW_TRACKING_URI": store.address(),
        "RAY_JOB_STOP_WAIT_TIME_S": SECONDS_TO_END_IN,
        runs.COMMIT: runs.source_commit(),
    }


def _check_no_secret(variables: dict[str, str]) -> None:
    """Checks that no variable sent with the job contains a password."""
    for name, value in variables.items():
        if masked(value) != value:
            keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            if name.startswith("MLFLOW"):
                keys = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise StudyError(
                f"{name}={masked(value)}: contains a password, which Ray's dashboard would show; set {keys} instead, "
                "here and on the cluster's nodes"
            )


def _check_tracking(root: Anywhere) -> None:
    address = store.address()
    if store.database_file(address) is None:
        return
    if not isinstance(root, Path):
        raise StudyError(
            f"MLFLOW_TRACKING_URI={address}: is a file, which the cluster cannot reach; start `mlflow server` where "
            "this machine and the cluster can reach it, and set MLFLOW_TRACKING_URI to its address"
        )
    tracking.prepare()  # creates the file: the job looks for it to see whether the machines share it
