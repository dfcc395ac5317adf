"""Follows a job: shows its log as it grows, handles Ctrl-C, and reports how the job ended."""

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

PAUSE = 2.0  # seconds between two requests
TURN = 0.5  # seconds of one wait for the user's answer
PATIENCE = 300.0  # seconds to wait for a job server that does not answer
SILENCE = 120.0  # seconds without log output before we reconnect: Ray's connection has no heartbeat


def to_the_end(client: JobSubmissionClient, address: str, name: str) -> None:
    """Shows the log until the job ends; raises if it does not succeed."""
    try:
        status = _follow(client, address, name)
    except (KeyboardInterrupt, SystemExit) as reason:
        if isinstance(reason, KeyboardInterrupt) and _asked_to_stop(name):
            _stop(client, address, name)
        else:
            say(
                f"{name} continues without us; run the same command to attach to it again, "
                f"or {stop_command(address, name)} to stop it"
            )
        raise
    if status.value == "SUCCEEDED":
        return
    if status.value == "STOPPED":
        raise StudyError(f"{name} was stopped; run the same command to continue from its last checkpoints")
    message = (client.get_job_info(name).message or "").splitlines()
    raise StudyError(
        f"{name} failed on {address}: {message[0] if message else 'Ray gives no reason.'} Its output is above; run "
        "the same command to continue from its last checkpoints"
    )


def trouble() -> tuple[type[Exception], ...]:
    """The exceptions that Ray, requests and aiohttp raise if a server is unreachable or refuses us."""
    import aiohttp
    from ray.exceptions import RayError

    return OSError, RuntimeError, aiohttp.ClientError, RayError


def brief(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def refused(error: Exception) -> bool:
    """Whether the server answers, but rejects our token."""
    from ray.exceptions import AuthenticationError

    return isinstance(error, AuthenticationError) or getattr(error, "status", None) in (401, 403)


def refusal(address: str) -> StudyError:
    return StudyError(
        f"RAY_ADDRESS={address}: the cluster refuses access; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the "
        "token that it was started with, or RAY_AUTH_MODE=disabled if it uses no tokens"
    )


def stop_command(address: str, name: str) -> str:
    """The shell command that stops the job; it sets RAY_AUTH_MODE, because Ray sends no token by default."""
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
                    asyncio.run(log.show())  # the end of the log, which says why a job failed
                return status
        except trouble() as error:
            if refused(error):
                raise refusal(address) from error
            if time.monotonic() - log.heard > PATIENCE:
                raise StudyError(
                    f"RAY_ADDRESS={address}: the cluster has not answered for {PATIENCE:.0f} s ({brief(error)}); "
                    f"{name} may still be running; run the same command to attach to it again"
                ) from error
        time.sleep(PAUSE)


class _Log:
    """A job's log. The server sends it from the beginning each time; we skip the part already shown."""

    def __init__(self, client: JobSubmissionClient, name: str) -> None:
        self.client, self.name, self.shown = client, name, 0
        self.heard = time.monotonic()  # when the server last sent anything

    async def show(self) -> bool:
        """Shows the log; False if it fell silent before its end, since a broken connection may raise no error."""
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
        sys.stderr.write(f"\n{name}: [s]top it, or [d]etach and let it continue? ")
        sys.stderr.flush()
        return _answer().strip().lower().startswith("s")
    except KeyboardInterrupt:
        return False


def _answer() -> str:
    """A line of input, empty at its end. The waits are short, as a Ctrl-C just before a wait does not end that wait."""
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
            f"RAY_ADDRESS={address}: the cluster does not confirm that it stopped {name} ({brief(error)}); "
            f"run {stop_command(address, name)} to stop it"
        ) from error
    say(f"{name}: stopped")
