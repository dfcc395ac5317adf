"""Pictures of MLflow's pages and of a report for docs/tracking.md and docs/study.md, taken in a headless browser.

    python -m tools.screenshots EXPERIMENT                      of the store in mlflow.db, into docs/pictures
    python -m tools.screenshots diabetes --report results/diabetes/report/index.html --browser google-chrome

The experiment must have runs of `evaluate`. Without searches the scores of its methods are compared instead of trials.
The browser is Chromium or Chrome, found on the PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from pipeline.tracking import presentation, store
from tools.ray_nodes import free_port
from tools.servers import wait_until_it_answers

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE = "1500,850"
COLOURS = 96
SETTLED = 15_000  # milliseconds of the page's own time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="its name in MLflow")
    parser.add_argument("--browser", help=f"a program (default: the first of {', '.join(BROWSERS)})")
    parser.add_argument("--report", type=Path, help="a report's page, for docs/pictures/report.png")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="default: %(default)s")
    arguments = parser.parse_args()
    browser = arguments.browser or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error("no browser is on the PATH; install chromium, or name a program with --browser")
    uri = store.address()
    pages = pages_of(uri, arguments.experiment)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.report:
        take(browser, arguments.report.absolute().as_uri(), arguments.out / "report.png")
    with served(uri) as address:
        for name, page in pages.items():
            picture = arguments.out / f"mlflow-{name}.png"
            take(browser, f"{address}/{page}", picture)
            print(picture, flush=True)


def pages_of(uri: str, name: str) -> dict[str, str]:
    """Name of a picture → page, below the server's address."""
    client = store.client(uri)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        sys.exit(f"error: {uri} has no experiment {name!r}; run a study first")
    key = experiment.experiment_id
    searches = client.search_runs([key], "tags.stage = 'tune' AND attributes.run_name LIKE '%=%'", max_results=12)
    scored = client.search_runs([key], "tags.stage = 'evaluate'", max_results=12)
    if not scored:
        sys.exit(f"error: experiment {name!r} has no runs of evaluate; run `dvc repro` first")
    compared = quote(json.dumps([run.info.run_id for run in searches or scored]))
    return {
        "scores": presentation.view(key),
        "searches" if searches else "methods": f"#/compare-runs?runs={compared}&experiments={quote(json.dumps([key]))}",
        "evaluation": f"#/experiments/{key}/runs/{scored[0].info.run_id}",
    }


@contextmanager
def served(uri: str) -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    settings = {"MLFLOW_BACKEND_STORE_URI": uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until_it_answers(f"{address}/health", server)
        yield address
    finally:
        server.terminate()
        server.wait()


def take(browser: str, address: str, picture: Path) -> None:
    """A picture of a page after its scripts have run."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
    options += [f"--virtual-time-budget={SETTLED}", f"--screenshot={picture.absolute()}"]
    subprocess.run([browser, *options, address], check=True, stderr=subprocess.DEVNULL)
    with Image.open(picture) as taken:
        small = taken.convert("RGB").quantize(COLOURS)  # a third of the bytes
    small.save(picture, optimize=True)


if __name__ == "__main__":
    main()
