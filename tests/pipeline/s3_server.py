"""An S3 server on this machine: moto's, with one bucket."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import boto3

from pipeline import storage
from tools.ray_nodes import free_port
from tools.servers import wait_until_it_answers


@contextmanager
def s3_server(port: int | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """The bucket's address and the variables with which it is reached."""
    port = free_port() if port is None else port
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
        wait_until_it_answers(f"{endpoint}/moto-api/data.json", server)
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="study")
        storage._system.cache_clear()  # an earlier server had the same bucket at another port
        yield "s3://study", environment
    finally:
        server.kill()
        server.wait()
