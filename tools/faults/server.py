"""An MLflow server that the campaign can kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tools.ray_nodes import NotStarted, free_port

PATIENCE = 300.0  # seconds


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
        until = time.monotonic() + PATIENCE
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                raise NotStarted(f"MLflow's server did not start:\n{(self.folder / 'server.log').read_text()}")
            time.sleep(0.2)

    def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.address}/health", timeout=1).close()
        except OSError:
            return False
        return True
