"""Submits what the cells of a study lack, side by side: as many jobs at a time as the cluster has room for.

A cell's stages follow each other: when its search has ended, its training is submitted, then its evaluation. Outputs
come back as they are made. ``dvc repro`` finds them in storage, attaches to jobs that still run, and writes its lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import cluster, missing, stages, tune
from pipeline.console import progress, say
from pipeline.errors import StudyError
from pipeline.params import Cell
from pipeline.submission import follow, server
from pipeline.submission.submitting import Submission, prepared

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

STAGES = ("tune", "train", "evaluate")
LINES = 8  # of a failed job's log


def submit(cells: Sequence[Cell], params: str | Path, at_a_time: int) -> None:
    """Runs all stages of these cells on the cluster, until nothing is left to do.

    Args:
        at_a_time: the largest number of jobs: each has a process on the head.
    """
    if not server.is_named():
        raise StudyError(
            f"RAY_ADDRESS={server.address()}: names no job server; set it to the cluster's, e.g. http://head:8265"
        )
    everything = _Everything(cells, params, at_a_time)
    try:
        everything.run()
    except (KeyboardInterrupt, SystemExit):
        if everything.running:
            names = ", ".join(everything.running)
            say(f"{names}: continue without us; this command or `dvc repro` attaches to them again")
        raise
    if everything.failed:
        raise StudyError(
            "\n".join(f"{name}: {why}" for name, why in everything.failed.items())
            + "\nRun the same command to continue from the last checkpoints"
        )


class _Everything:
    def __init__(self, cells: Sequence[Cell], params: str | Path, at_a_time: int) -> None:
        self.params, self.at_a_time = params, at_a_time
        self.waiting = deque(cells)
        self.running: dict[str, Submission] = {}  # by the name of the job
        self.failed: dict[str, str] = {}  # cells, and why
        self.client = server.connect()

    def run(self) -> None:
        with progress("submission", len(self.waiting), "cells") as bar:
            while self.waiting or self.running:
                self._take_in(_jobs(self.client))
                try:
                    self._fill()
                except follow.trouble() as error:
                    say(f"RAY_ADDRESS={server.address()}: does not answer ({follow.brief(error)}); asking it again")
                bar.advance(bar.total - bar.done - len(self.waiting) - len(self.running))
                if self.waiting or self.running:
                    time.sleep(follow.PAUSE)

    def _fill(self) -> None:
        nodes = server.nodes(self.client)
        while self.waiting and len(self.running) < self.at_a_time:
            taken = sum(_share(one.cell, nodes) for one in self.running.values())
            if self.running and taken + _share(self.waiting[0], nodes) > 1.0 + 1e-9:
                return
            cell = self.waiting[0]
            try:
                one = _next(cell, self.params)
                if one is not None:
                    self.running[one.running(self.client) or one.start(self.client)] = one
            except StudyError as error:
                self._fail(cell, str(error))
            self.waiting.popleft()

    def _take_in(self, jobs: dict[str, JobDetails]) -> None:
        for name in [name for name in self.running if name not in jobs or jobs[name].status.is_terminal()]:
            one = self.running.pop(name)
            if name in jobs and jobs[name].status.value == "SUCCEEDED":
                say(f"{name}: done")
                self.waiting.appendleft(one.cell)  # its outputs come with its next stage
            else:
                status = jobs[name].status.value.lower() if name in jobs else "unknown to the cluster"
                self._fail(one.cell, f"{name} is {status}; the end of its log:\n{self._end_of_log(name)}")

    def _end_of_log(self, name: str) -> str:
        try:
            lines = self.client.get_job_logs(name).splitlines()
        except follow.trouble() as error:
            lines = [follow.brief(error)]
        return "\n".join(f"    {line}" for line in lines[-LINES:])

    def _fail(self, cell: Cell, why: str) -> None:
        say(f"{cell.name}: {why}")
        self.failed[cell.name] = why


def _next(cell: Cell, params: str | Path) -> Submission | None:
    """The first stage of the cell that has to run on the cluster; what storage already has is taken in."""
    if missing.why(cell.data) is not None:
        say(f"{cell.name}: its data are missing; `dvc repro` notes that in the results")
        return None
    for stage in STAGES:
        account = stages.account(cell, stage)
        if account.holds():
            continue
        if stage == "tune" and not cell.searched:
            tune.leave_unsearched(cell)
        else:
            one = prepared(cell, stage, params)
            if not one.is_finished():
                return one
            one.bring()
        account.settle()
    return None


def _share(cell: Cell, nodes: list[dict[str, float]]) -> float:
    """The part of the cluster that the cell needs at least: a chunk of a table takes a CPU, a training its workers."""
    if cell.kind == "regression":
        return 1.0 / max(1, cluster.room(nodes, {"CPU": 1.0}))
    return 1.0 / max(1, cluster.room(nodes, cell.resources.per_worker) // cell.resources.workers)


def _jobs(client: JobSubmissionClient) -> dict[str, JobDetails]:
    """The cluster's jobs by name; waits for a server that does not answer for a while."""
    until = time.monotonic() + follow.PATIENCE
    while True:
        try:
            return {job.submission_id: job for job in client.list_jobs() if job.submission_id}
        except follow.trouble() as error:
            if follow.refused(error):
                raise follow.refusal(server.address()) from error
            if time.monotonic() > until:
                raise StudyError(
                    f"RAY_ADDRESS={server.address()}: the cluster has not answered for {follow.PATIENCE:.0f} s "
                    f"({follow.brief(error)}); its jobs may still be running; run the same command to attach to them"
                ) from error
        time.sleep(follow.PAUSE)
