"""Data are on a worker's node before the workers form their process group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from image_study import make_cell, make_job

from pipeline import blobs
from pipeline.errors import StudyError
from pipeline.images import hooks, workers
from pipeline.images.job import Job


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Of a cluster whose storage is a folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MNVI_STORAGE", str(tmp_path / "storage"))
    monkeypatch.setenv("MNVI_NODE_CACHE", str(tmp_path / "node"))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    return make_job(make_cell())


def cached() -> bool:
    return any(blobs.node_cache().glob("*/summary.json"))


def test_every_worker_fetches_before_the_group_is_formed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    class Group:
        def execute(self, work: Any, *arguments: Any) -> None:
            work(*arguments)
            order.append("fetched" if cached() else "not fetched")

    monkeypatch.setattr(hooks._Torch, "on_start", lambda *_: order.append("group"))
    assert not cached()
    config = hooks.FetchFirst(job=job)
    config.backend_cls().on_start(Group(), config)
    assert order == ["fetched", "group"]


def test_a_failure_to_fetch_ends_the_training_with_its_words(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs.Contents, "here", Mock(side_effect=StudyError("blobs/ab: was altered or damaged")))
    hooks.fetch(job)
    workers._work({"job": job})  # a worker: it ends at once
    with pytest.raises(StudyError, match="blobs/ab: was altered or damaged"):
        workers.raise_why_stopped(job.state)


def test_data_that_all_machines_see_are_not_fetched(job: Job) -> None:
    hooks.fetch(replace(job, data=replace(job.data, contents=None)))
    assert not cached()
