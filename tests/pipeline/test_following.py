"""Following a job, with a made-up job server: what is shown, what trouble and Ctrl-C come to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus

from pipeline.errors import StudyError
from pipeline.submission import follow

ADDRESS = "http://head:8265"


def handshake(status: int) -> Exception:
    return aiohttp.WSServerHandshakeError(Mock(real_url=ADDRESS), (), status=status, message="Invalid response status")


class Server:
    """A client whose job server does these things in turn: it raises, or its job has this log and this state."""

    def __init__(self, *turns: Exception | tuple[str, JobStatus]) -> None:
        self.turns = list(turns)
        self.status = JobStatus.RUNNING
        self.stopped: list[str] = []

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, BaseException):
            raise turn
        text, self.status = turn
        yield text

    def get_job_status(self, name: str) -> JobStatus:
        return self.status

    def get_job_info(self, name: str) -> Any:
        return SimpleNamespace(message="")

    def stop_job(self, name: str) -> None:
        self.stopped.append(name)
        self.status = JobStatus.STOPPED


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PAUSE", 0.0)


@pytest.mark.parametrize(
    "error",
    [
        handshake(503),
        aiohttp.ServerDisconnectedError(),
        RuntimeError("WebSocket connection closed unexpectedly"),
        ConnectionRefusedError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_server_that_is_away_for_a_moment_is_waited_for(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    server = Server(("one\n", JobStatus.RUNNING), error, ("one\ntwo\n", JobStatus.SUCCEEDED))
    follow.to_the_end(server, ADDRESS, "job")  # type: ignore[arg-type]
    assert capsys.readouterr().err == "one\ntwo\n"


def test_a_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PATIENCE", 0.0)
    with pytest.raises(StudyError, match=r"has not answered for 0 s .*job may still run"):
        follow.to_the_end(Server(aiohttp.ServerDisconnectedError()), ADDRESS, "job")  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [AuthenticationError("no"), handshake(401)], ids=lambda error: type(error).__name__)
def test_a_token_that_is_not_taken_any_more_is_said_at_once(error: Exception) -> None:
    with pytest.raises(StudyError, match="does not let us in; set RAY_AUTH_TOKEN"):
        follow.to_the_end(Server(error), ADDRESS, "job")  # type: ignore[arg-type]
