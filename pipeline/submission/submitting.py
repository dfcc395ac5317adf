"""Submits a stage to the cluster: one job for the same settings, code and data, however often the command is run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import blobs, files, storage, tracking
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.masking import masked
from pipeline.params import Cell
from pipeline.storage import Anywhere
from pipeline.submission import follow
from pipeline.submission.inside import INPUTS, finished, is_inside, outputs, tracked
from pipeline.submission.package import Package, packed, requirements
from pipeline.tracking import runs, store
from pipeline.tracking.identity import JOB

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

# Without passwords and keys: Ray's dashboard shows the variables of a job. Nodes must have their own.
FORWARDED = (
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "MNVI_TRACKING_WAIT",
    "MNVI_VERBOSE",
)
PIP = "MNVI_PIP"
SECONDS_TO_END_IN = "20"  # between Ray's request to stop a job and its killing it


def wanted(cell: Cell, stage: str) -> bool:
    """Whether to submit the stage to a cluster. A job never submits itself again, and evaluation runs locally."""
    return _address().startswith(("http://", "https://")) and not is_inside() and stage != "evaluate"


def submit(cell: Cell, stage: str, params: str | Path) -> None:
    """Runs the stage on the cluster and fetches its outputs."""
    root = storage.of(f"RAY_ADDRESS={_address()}")
    _check_no_secret(_environment(root))
    _check_tracking(root)
    inputs = {
        str(path): blobs.publish({"." if path.is_dir() else path.name: path}, root).digest
        for path in _inputs(cell, stage)
    }
    with packed(params) as package:
        fingerprint = _fingerprint(cell, stage, inputs)
        job = f"{cell.study.results}/{stage}/{cell.name}/{fingerprint}"
        if not finished(root, job).exists():
            client = _client()
            running = _running(client, cell, stage, root, fingerprint)
            if running is None:
                name = _start(client, cell, stage, root, fingerprint, package, {INPUTS: json.dumps(inputs), JOB: job})
            else:
                name = running
                say(f"{name} is already running on {_address()}; its log from the beginning:")
            follow.to_the_end(client, _address(), name)
    _bring(cell, stage, root, job)


def _bring(cell: Cell, stage: str, root: Anywhere, job: str) -> None:
    note = finished(root, job)
    said = storage.read_json(note, f"python -m pipeline.{stage} {cell.name}")
    made = blobs.Contents(root, said["contents"])
    with tempfile.TemporaryDirectory(prefix="mnvi-") as name:
        folder = Path(name)
        try:
            made.write(folder)
        except StudyError:
            storage.remove(note)  # so that the next attempt runs the job anew
            raise
        for path in outputs(cell, stage):
            with files.replacing(path) as temporary:
                shutil.move(folder / path, temporary)
    if "unsent" in said:
        with files.replacing(tracked(job)) as temporary:
            blobs.Contents(root, said["unsent"]).write(temporary)
        storage.write_json(note, {"contents": said["contents"]})  # we alone send the rest now
        say(
            f"MLflow has not received all records of the job; the rest is in {tracked(job)}, and the next stage or "
            "`python -m pipeline.tracking send` sends it"
        )


def _inputs(cell: Cell, stage: str) -> list[Path]:
    if stage == "tune":
        return [cell.data]
    best = cell.tune / "best.yaml"
    files.read_yaml(best, made_by=f"python -m pipeline.tune {cell.name}")
    return [cell.data, best]


def _fingerprint(cell: Cell, stage: str, inputs: dict[str, str]) -> str:
    # A job trains all seeds or runs; the cell's own fingerprint covers the training of each, but not their number.
    how_many = [cell.experiment.seeds, cell.experiment.runs]
    depends_on = [cell.fingerprint(stage), how_many, inputs]
    return hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:12]


def _address() -> str:
    return os.environ.get("RAY_ADDRESS", "")


def _client() -> JobSubmissionClient:
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        """A client with a timeout; Ray's own waits forever for a server that accepts a request and does not answer."""

        def _do_request(self, *arguments: Any, **settings: Any) -> Any:
            return super()._do_request(*arguments, timeout=follow.PATIENCE, **settings)

    address = _address()
    try:
        client = Client(address)
        client.list_jobs()
    except follow.trouble() + (ValueError,) as error:
        if follow.refused(error):
            raise follow.refusal(address) from error
        raise StudyError(
            f"RAY_ADDRESS={address}: no job server of Ray answers there ({follow.brief(error)}); start one with "
            "`RAY_AUTH_MODE=token ray start --head` (it is part of the dashboard), or unset RAY_ADDRESS to use this "
            "machine alone"
        ) from error
    return client


def _running(client: JobSubmissionClient, cell: Cell, stage: str, root: Anywhere, fingerprint: str) -> str | None:
    """The running job with this fingerprint, if any. One for the same cell but other settings is an error.

    Both jobs would write to the same place.
    """
    for job in client.list_jobs():
        if job.status.is_terminal() or not job.submission_id:
            continue
        if _about(cell, stage, root).items() <= (job.metadata or {}).items():
            if (job.metadata or {}).get("fingerprint") == fingerprint:
                return str(job.submission_id)
            raise StudyError(
                f"{job.submission_id} is running on {_address()} for {stage} of {cell.name}, with other settings, "
                f"code or data; wait until it ends, or stop it: {follow.stop_command(_address(), job.submission_id)}"
            )
    return None


def _start(
    client: JobSubmissionClient,
    cell: Cell,
    stage: str,
    root: Anywhere,
    fingerprint: str,
    package: Package,
    variables: dict[str, str],
) -> str:
    name = f"{cell.name}-{stage}-{fingerprint}"
    name = f"{name}-{1 + _last_attempt(client.list_jobs(), name)}"
    environment: dict[str, Any] = {"working_dir": str(package.folder), "env_vars": _environment(root) | variables}
    if os.environ.get(PIP, "0") not in ("", "0"):
        environment["pip"] = requirements()
    say(f"{name}: uploading {package}")
    entrypoint = shlex.join(["python", "-m", f"pipeline.{stage}", cell.name])
    try:
        client.submit_job(
            entrypoint=entrypoint,
            submission_id=name,
            runtime_env=environment,
            metadata={**_about(cell, stage, root), "fingerprint": fingerprint},
        )
    except follow.trouble() as error:
        raise StudyError(
            f"RAY_ADDRESS={_address()}: the cluster did not accept {name} ({follow.brief(error)}); run the same "
            "command again, which attaches to the job if it is running after all"
        ) from error
    say(f"{name}: submitted to {_address()}")
    return name


def _last_attempt(jobs: list[JobDetails], name: str) -> int:
    """The number of the last attempt, which may exceed the count of attempts: earlier ones may have been deleted."""
    found = [re.fullmatch(rf"{re.escape(name)}-(\d+)", job.submission_id or "") for job in jobs]
    return max((int(attempt[1]) for attempt in found if attempt), default=0)


def _about(cell: Cell, stage: str, root: Anywhere) -> dict[str, str]:
    return {"stage": stage, "cell": cell.name, "results": str(cell.study.results), "storage": str(root)}


def _environment(root: Anywhere) -> dict[str, str]:
    variables = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    return {
        **variables,
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
