"""Following a job on a fake job server: what is shown, and what errors and Ctrl-C lead to."""

from __future__ import annotations

import _thread
import asyncio
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from commands import PATIENCE
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus

from pipeline.errors import StudyError
from pipeline.submission import follow

ADDRESS = "http://head:8265"
SILENT = "…\n"  # after this line nothing comes, and nothing says so: the connection is half open
# A job that does not end by itself.
FOLLOWS = """
from pipeline import console
from pipeline.submission import follow
from test_following import ADDRESS, JobStatus, Server

follow.PAUSE = 0.05
console.run(lambda: follow.to_the_end(Server(("at work", JobStatus.RUNNING)), ADDRESS, "job"))
"""


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
        if text.endswith(SILENT):
            await asyncio.sleep(20)
            pytest.fail("still waiting for the log")

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
    with pytest.raises(StudyError, match=r"has not answered for 0 s .*job may still be running"):
        follow.to_the_end(Server(aiohttp.ServerDisconnectedError()), ADDRESS, "job")  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.SUCCEEDED], ids=lambda status: status.value)
def test_a_log_that_falls_silent_is_followed_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: JobStatus
) -> None:
    monkeypatch.setattr(follow, "SILENCE", 0.2)
    server = Server((f"one\n{SILENT}", status), (f"one\n{SILENT}two\n", JobStatus.SUCCEEDED))
    follow.to_the_end(server, ADDRESS, "job")  # type: ignore[arg-type]
    assert capsys.readouterr().err == f"one\n{SILENT}two\n"


def test_a_log_that_falls_silent_for_good_does_not_keep_a_job_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SILENCE", 0.2)
    follow.to_the_end(Server((SILENT, JobStatus.SUCCEEDED)), ADDRESS, "job")  # type: ignore[arg-type]


def test_the_patience_with_a_server_begins_with_its_last_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not with the last question: a job may talk for hours without one."""
    monkeypatch.setattr(follow, "PATIENCE", 1.0)

    class Talkative(Server):
        async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
            for _ in range(6 if len(self.turns) > 1 else 0):
                await asyncio.sleep(0.25)
                yield "on\n"
            async for text in super().tail_job_logs(name):
                yield text

    server = Talkative(aiohttp.ServerDisconnectedError(), ("on\n" * 6 + "end\n", JobStatus.SUCCEEDED))
    follow.to_the_end(server, ADDRESS, "job")  # type: ignore[arg-type]
    assert capsys.readouterr().err == "on\n" * 6 + "end\n"


@pytest.mark.parametrize("error", [AuthenticationError("no"), handshake(401)], ids=lambda error: type(error).__name__)
def test_a_token_that_is_not_taken_any_more_is_said_at_once(error: Exception) -> None:
    with pytest.raises(StudyError, match="refuses access; set RAY_AUTH_TOKEN"):
        follow.to_the_end(Server(error), ADDRESS, "job")  # type: ignore[arg-type]


def read_until(terminal: int, words: str, patience: float = 60.0) -> str:
    """What a terminal shows, up to these words, the end of the process or of patience."""
    shown, until = "", time.monotonic() + patience
    with suppress(OSError):  # nobody is at the other end any more
        while words not in shown and select.select([terminal], [], [], max(0.0, until - time.monotonic()))[0]:
            shown += os.read(terminal, 4096).decode()
    return shown


def test_a_ctrl_c_that_comes_right_before_the_wait_for_an_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    with open(its) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stderr", Mock(isatty=lambda: True))
        wait, unseen = select.select, Timer(0.1, _thread.interrupt_main)  # a signal that no system call notices

        def waiting(*arguments: Any) -> Any:
            if unseen.ident is None:
                unseen.start()
            return wait(*arguments)

        monkeypatch.setattr(select, "select", waiting)
        way_out = Timer(20, os.write, (ours, b"s\n"))
        way_out.start()
        assert follow._asked_to_stop("job") is False
        assert unseen.ident is not None, "nobody was asked"
        assert way_out.is_alive(), "only the answer ended the wait"
        way_out.cancel()
    os.close(ours)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("s\n", "job: stopped"),
        ("d\n", "job continues without us; run the same command to attach to it again"),
        ("\n", "job continues without us; run the same command to attach to it again"),
        ("\x03", "job continues without us; run the same command to attach to it again"),
    ],
    ids=["stop", "detach", "no word", "Ctrl-C again"],
)
def test_ctrl_c_at_a_terminal_asks_what_to_do(keys: str, said: str) -> None:
    ours, its = pty.openpty()
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FOLLOWS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        start_new_session=True,
        preexec_fn=lambda: os.login_tty(its),  # so that Ctrl-C is a signal to it
    )
    os.close(its)
    try:
        assert "at work" in read_until(ours, "at work")
        os.write(ours, b"\x03")
        assert "job: [s]top it, or [d]etach" in read_until(ours, "let it continue? ")
        os.write(ours, keys.encode())
        shown = read_until(ours, "run the same command to continue")
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert said in shown
    assert ("job: stopped" in shown) is (keys == "s\n")
