"""An S3 server on this machine: moto's, with one bucket."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import boto3

from tools.ray_nodes import free_port

PATIENCE = 300.0  # seconds


@contextmanager
def s3_server() -> Iterator[tuple[str, dict[str, str]]]:
    """The bucket's address and the variables with which it is reached."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "moto.server",
        "-H",
        "127.0.0.1",
        "-p",
        endpoint.rpartition(":")[2],
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(endpoint, server)
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="study")
        yield "s3://study", environment
    finally:
        server.kill()
        server.wait()


def _wait(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/data.json", timeout=30).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise
        time.sleep(0.2)
