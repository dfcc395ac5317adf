"""Following a job: its log as it is written, what Ctrl-C means, and how it ended."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from pipeline.console import say
from pipeline.errors import StudyError

if TYPE_CHECKING:
    from ray.job_submission import JobStatus, JobSubmissionClient

PAUSE = 2.0  # seconds between two questions
TURN = 0.5  # seconds of waiting for an answer at a time
PATIENCE = 300.0  # for a job server that does not answer
SILENCE = 120.0  # of a log, before its connection is taken for lost: Ray's has no heartbeat


def to_the_end(client: JobSubmissionClient, address: str, name: str) -> None:
    """Shows the log until the job has ended; raises if it did not end well."""
    try:
        status = _follow(client, address, name)
    except (KeyboardInterrupt, SystemExit) as reason:
        if isinstance(reason, KeyboardInterrupt) and _asked_to_stop(name):
            _stop(client, address, name)
        else:
            say(
                f"{name} goes on without us; the same command attaches to it again, "
                f"{stop_command(address, name)} stops it"
            )
        raise
    if status.value == "SUCCEEDED":
        return
    if status.value == "STOPPED":
        raise StudyError(f"{name} was stopped; the same command goes on from its last checkpoints")
    message = (client.get_job_info(name).message or "").splitlines()
    raise StudyError(
        f"{name} failed on {address}: {message[0] if message else 'no reason is given'} What it printed is above; the "
        "same command goes on from its last checkpoints"
    )


def trouble() -> tuple[type[Exception], ...]:
    """What Ray, requests and aiohttp raise for a server that is away or does not want us."""
    import aiohttp
    from ray.exceptions import RayError

    return OSError, RuntimeError, aiohttp.ClientError, RayError


def brief(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def refused(error: Exception) -> bool:
    """Whether the server answers, but does not take our token."""
    from ray.exceptions import AuthenticationError

    return isinstance(error, AuthenticationError) or getattr(error, "status", None) in (401, 403)


def refusal(address: str) -> StudyError:
    return StudyError(
        f"RAY_ADDRESS={address}: the cluster does not let us in; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the "
        "token that it was started with, or RAY_AUTH_MODE=disabled if it lets everybody in"
    )


def stop_command(address: str, name: str) -> str:
    """Ray's own default is to send no token."""
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    return f"`RAY_AUTH_MODE={mode} ray job stop --address {address} {name}`"


def _follow(client: JobSubmissionClient, address: str, name: str) -> JobStatus:
    log = _Log(client, name)
    while True:
        try:
            whole = asyncio.run(log.show())
            status = client.get_job_status(name)
            log.heard = time.monotonic()
            if status.is_terminal():
                if not whole:
                    asyncio.run(log.show())  # the end, which says why a job failed
                return status
        except trouble() as error:
            if refused(error):
                raise refusal(address) from error
            if time.monotonic() - log.heard > PATIENCE:
                raise StudyError(
                    f"RAY_ADDRESS={address}: the cluster has not answered for {PATIENCE:.0f} s ({brief(error)}); "
                    f"{name} may still run: the same command attaches to it again"
                ) from error
        time.sleep(PAUSE)


class _Log:
    """The server tells it from the beginning each time; what was shown is not shown again."""

    def __init__(self, client: JobSubmissionClient, name: str) -> None:
        self.client, self.name, self.shown = client, name, 0
        self.heard = time.monotonic()  # when the server last said anything

    async def show(self) -> bool:
        """Whether it ended, not fell silent: a connection that is cut somewhere on its way does not say so."""
        try:
            async with asyncio.timeout(SILENCE) as patience:
                await self._tell(patience)
        except TimeoutError:
            return False
        return True

    async def _tell(self, patience: asyncio.Timeout) -> None:
        position = 0
        async for text in self.client.tail_job_logs(self.name):
            patience.reschedule(asyncio.get_running_loop().time() + SILENCE)
            self.heard = time.monotonic()
            new = text[max(0, self.shown - position) :]
            position += len(text)
            if new:
                sys.stderr.write(new)
                sys.stderr.flush()
            self.shown = max(self.shown, position)


def _asked_to_stop(name: str) -> bool:
    """Whether the user, if there is one at a terminal, wants the job to stop."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        sys.stderr.write(f"\n{name}: [s]top it, or [d]etach and let it go on? ")
        sys.stderr.flush()
        return _answer().strip().lower().startswith("s")
    except KeyboardInterrupt:
        return False


def _answer() -> str:
    """A line, empty if there will be none. Waited for in short turns: a Ctrl-C right before a wait does not end it."""
    while not select.select([sys.stdin], [], [], TURN)[0]:
        pass
    return sys.stdin.readline()


def _stop(client: JobSubmissionClient, address: str, name: str) -> None:
    try:
        client.stop_job(name)
        while not client.get_job_status(name).is_terminal():
            time.sleep(PAUSE)
    except trouble() as error:
        raise StudyError(
            f"RAY_ADDRESS={address}: the cluster does not say that it has stopped {name} ({brief(error)}); "
            f"{stop_command(address, name)} stops it"
        ) from error
    say(f"{name}: stopped")
