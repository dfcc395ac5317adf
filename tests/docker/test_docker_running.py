"""The commands of docker/compose.yaml, run as they stand there on other ports: who gets in, and who does not."""

from __future__ import annotations

import configparser
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from docker_files import DOCKER, SECRET, compose, example

from tools.ray_nodes import free_port

BIN = Path(sys.executable).parent
PATIENCE = 600  # seconds for a server to start on a busy machine; a dozen on an idle one


def answer(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0  # nobody is there


@contextmanager
def running(service: dict[str, Any], command: str, health: str, folder: Path) -> Iterator[dict[str, str]]:
    """A service as compose starts it, but with this command, until its health check is content; all of it is ended."""
    inherited = {name: os.environ[name] for name in ("HOME", "LANG", "OMP_NUM_THREADS") if name in os.environ}
    environment = {**inherited, "PATH": f"{BIN}:{os.environ['PATH']}", **service["environment"]}
    log = folder / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            shlex.split(command), cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while answer(health) != 200:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)
        yield environment
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        _, left = psutil.wait_procs(family, timeout=10)
        for member in left:
            member.kill()
        process.kill()
        process.wait()


def is_turned_away(command: str, environment: dict[str, str]) -> bool:
    """Whether a node hears that it is not known; it would go on trying for minutes."""
    with subprocess.Popen(shlex.split(command), env=environment, stderr=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(PATIENCE, process.kill)
        limit.start()
        try:
            return any("Unauthenticated" in line for line in process.stderr)
        finally:
            limit.cancel()
            process.kill()


def replaced(command: str, **changes: str) -> str:
    """The command with other values for options that it has."""
    for option, value in changes.items():
        pattern = rf"--{option.replace('_', '-')}=\S+"
        assert re.search(pattern, command), f"{pattern} is not part of {command}"
        command = re.sub(pattern, f"--{option.replace('_', '-')}={value}", command)
    return command


@pytest.mark.slow
def test_mlflow_server_of_compose_wants_a_password_and_keeps_artifacts_in_s3(tmp_path: Path) -> None:
    from moto.server import ThreadedMotoServer

    values = {name: value or secrets.token_hex(24) for name, value in example().items()}
    service = compose(values)["services"]["mlflow"]
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    store.start()
    port = free_port()
    users = configparser.ConfigParser()
    users.read(DOCKER / "basic_auth.ini")
    users["mlflow"]["database_uri"] = f"sqlite:///{tmp_path}/users.db"
    with (tmp_path / "basic_auth.ini").open("w") as file:
        users.write(file)
    service["environment"] |= {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*store.get_host_and_port()),
        "MLFLOW_AUTH_CONFIG_PATH": f"{tmp_path}/basic_auth.ini",
    }
    command = replaced(
        service["command"],
        host="127.0.0.1",
        port=str(port),
        workers="1",
        backend_store_uri=f"sqlite:///{tmp_path}/mlflow.db",
    )
    health = service["environment"]["HEALTH_URL"].replace(":5000", f":{port}")
    runs = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/search?max_results=1"
    try:
        with running(service, command, health, tmp_path) as environment:
            import boto3

            s3 = boto3.client(
                "s3",
                endpoint_url=environment["AWS_ENDPOINT_URL"],
                aws_access_key_id=values["S3_ACCESS_KEY"],
                aws_secret_access_key=values["S3_SECRET_KEY"],
                region_name=environment["AWS_REGION"],
            )
            s3.create_bucket(Bucket="mnvi")
            as_inside = {"Host": "mlflow:5000"}
            assert answer(runs, **as_inside) == 401
            assert answer(runs, **as_inside, **basic("admin", "guessed-by-somebody")) == 401
            admin = basic("admin", values["MLFLOW_ADMIN_PASSWORD"])
            assert answer(runs, **as_inside, **admin) == 200
            assert answer(runs, Host="elsewhere.example.org", **admin) == 403
            upload = urllib.request.Request(
                f"http://127.0.0.1:{port}/api/2.0/mlflow-artifacts/artifacts/1/run/artifacts/note.txt",
                data=b"hello",
                headers={**as_inside, **admin},
                method="PUT",
            )
            urllib.request.urlopen(upload, timeout=PATIENCE).close()
            [kept] = s3.list_objects_v2(Bucket="mnvi")["Contents"]
            assert kept["Key"].startswith("mlflow/") and kept["Key"].endswith("note.txt")
    finally:
        store.stop()
    log = (tmp_path / "service.log").read_text()
    assert not [name for name, value in values.items() if SECRET.search(name) and value in log]


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The names of Ray's sockets may not be longer than a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="docker-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.slow
def test_ray_head_of_compose_answers_only_who_has_the_token(short_folder: Path) -> None:
    values = {name: value or secrets.token_hex(24) for name, value in example().items()}
    services = compose(values)["services"]
    port, dashboard, agent = free_port(), free_port(), free_port()
    command = replaced(
        services["head"]["command"],
        port=str(port),
        dashboard_host="127.0.0.1",
        dashboard_port=str(dashboard),
        object_store_memory="100000000",
    )
    services["head"]["environment"]["RAY_raylet_start_wait_time_s"] = str(PATIENCE)
    # Others may run Ray on this machine.
    command += f" --node-ip-address=127.0.0.9 --temp-dir={short_folder} --dashboard-agent-listen-port={agent}"
    for other in ("ray-client-server", "dashboard-agent-grpc", "metrics-export", "runtime-env-agent"):
        command += f" --{other}-port={free_port()}"
    health = services["head"]["environment"]["HEALTH_URL"].replace(":8265", f":{dashboard}")
    with running(services["head"], command, health, short_folder) as environment:
        jobs = f"http://127.0.0.1:{dashboard}/api/jobs/"
        assert answer(jobs) == 401
        assert answer(jobs, Authorization=f"Bearer {secrets.token_hex(24)}") == 403
        assert answer(jobs, Authorization=f"Bearer {values['RAY_AUTH_TOKEN']}") == 200
        worker = replaced(services["worker"]["command"], address=f"127.0.0.9:{port}", object_store_memory="100000000")
        assert is_turned_away(worker, environment | {"RAY_AUTH_TOKEN": secrets.token_hex(24)})
        health_of_worker = re.search(r"HEALTH_URL=(\S+)", (DOCKER / "Dockerfile").read_text())[1]
        deadline = time.monotonic() + PATIENCE
        while answer(health_of_worker.replace("127.0.0.1:52365", f"127.0.0.9:{agent}")) != 200:
            assert time.monotonic() < deadline, "the image's health check never was content"
            time.sleep(0.3)
