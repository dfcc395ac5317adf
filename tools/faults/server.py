"""An MLflow server that the campaign can kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tools.ray_nodes import free_port
from tools.servers import wait_until_it_answers


class Server:
    def __init__(self, folder: Path, host: str, environment: Mapping[str, str]) -> None:
        self.folder, self.host, self.port, self.environment = folder, host, free_port(), environment
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        """Starts the server, and returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        store = ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "artifacts"]
        place = ["--host", self.host, "--port", str(self.port), "--allowed-hosts", f"{self.host}:{self.port}"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", *store, *place, "--workers", "1"],
                cwd=self.folder,
                env={
                    **self.environment,
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until_it_answers(f"{self.address}/health", self.process, self.folder / "server.log")

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
