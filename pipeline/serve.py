"""Serves a study's registered model over HTTP, with MLflow's model server.

python -m pipeline.serve prices-mnvi
python -m pipeline.serve lenet-mnist-mnvi --port 8080
curl http://127.0.0.1:5001/invocations -H 'Content-Type: application/json' \\
    -d '{"dataframe_split": {"columns": ["rooms", "area"], "data": [[3, 71.5]]}}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pipeline import console, files, params
from pipeline.console import say
from pipeline.tracking import registered


def main() -> None:
    parser = console.parser("pipeline.serve", __doc__)
    parser.add_argument("cell", help="a cell of the study, as `python -m pipeline.params show` lists them")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=5001, help="default: %(default)s")
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    arguments = parser.parse_args()
    cell = params.load(arguments.params).cell(arguments.cell)
    name = registered.name_of(cell)
    folder = registered.folder(name, f"python -m pipeline.train {cell.name}")
    settings = files.read_json(folder / "artifacts" / "settings.json", "python -m pipeline.train")
    address = f"http://{arguments.host}:{arguments.port}/invocations"
    say(f"{name}: {address} takes {request(settings)}; Ctrl-C ends it")
    sys.stdout.flush()
    # MLflow calls uvicorn by its name, which is beside the interpreter, in the environment's folder.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execve(sys.executable, command(folder, arguments.host, arguments.port), {**os.environ, "PATH": path})


def request(settings: dict[str, Any]) -> str:
    """An example of what to send, as JSON."""
    if settings.get("columns"):
        rows = [[0.0] * len(settings["columns"])]
        return json.dumps({"dataframe_split": {"columns": settings["columns"], "data": rows}})
    kind = "pixels from 0 to 255" if settings["kind"] == "classification" else "numbers"
    shape = f" of the shape {[1, *settings['shape']]}" if "shape" in settings else ""
    return f'{{"inputs": …}} with an array of {kind}{shape}'


def command(folder: Path, host: str, port: int) -> list[str]:
    mlflow = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(folder), "--env-manager", "local"]
    return [*mlflow, "--host", host, "--port", str(port)]


if __name__ == "__main__":
    console.run(main)
