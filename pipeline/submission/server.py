"""The cluster's job server, which ``RAY_ADDRESS=http://head:8265`` names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pipeline.errors import StudyError
from pipeline.submission import follow

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


def address() -> str:
    return os.environ.get("RAY_ADDRESS", "")


def is_named() -> bool:
    """Whether RAY_ADDRESS names a job server, not a cluster to join."""
    return address().startswith(("http://", "https://"))


def connect() -> JobSubmissionClient:
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        """A client with a timeout; Ray's own waits forever for a server that accepts a request and does not answer."""

        def _do_request(self, *arguments: Any, **settings: Any) -> Any:
            return super()._do_request(*arguments, timeout=follow.PATIENCE, **settings)

    try:
        client = Client(address())
        client.list_jobs()
    except follow.trouble() + (ValueError,) as error:
        if follow.refused(error):
            raise follow.refusal(address()) from error
        raise StudyError(
            f"RAY_ADDRESS={address()}: no job server of Ray answers there ({follow.brief(error)}); start one with "
            "`RAY_AUTH_MODE=token ray start --head` (it is part of the dashboard), or unset RAY_ADDRESS to use this "
            "machine alone"
        ) from error
    return client


def nodes(client: JobSubmissionClient) -> list[dict[str, float]]:
    """The resources of each living node, whether they are in use or not."""
    answer = client._do_request("GET", "/api/v0/nodes").json()
    return [node["resources_total"] or {} for node in answer["data"]["result"]["result"] if node["state"] == "ALIVE"]
