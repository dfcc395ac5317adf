"""`python -m pipeline.serve`, asked by a real HTTP client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import torch
from commands import PATIENCE, command
from torch import nn
from tracking_cases import Cell, Experiment

import mnvi
from pipeline import serve, tracking
from tools.ray_nodes import free_port
from tools.servers import wait_until_it_answers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "params.yaml").write_text((ROOT / "params.yaml").read_text())
        yield place


def register(cell: Cell, net: nn.Module, example: torch.Tensor, **settings: Any) -> None:
    with tracking.run(cell, "train", state=Path("work/state")) as run:
        tracking.model(run, net.eval(), cell, example, **settings)


@contextmanager
def serving(cell: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONPATH": str(ROOT)}
    with open(f"{cell}.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.serve", cell, "--port", str(port)],
            start_new_session=True,
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def addresses(folder: Path) -> Iterator[dict[str, str]]:
    """Two servers: of a table with the columns a, b, c, and of images of 28 x 28 bytes."""
    torch.manual_seed(0)
    noise = {"prior_variance": 1.0}
    table = mnvi.methods.build("mnvi", lambda: mnvi.models.mlp(3, 5), **noise)
    register(Cell(Experiment(name="boston"), method_arguments=noise), table, torch.randn(4, 3), columns=["a", "b", "c"])
    images = mnvi.methods.build("mnvi", lambda: mnvi.models.lenet(10, 1))
    example = torch.randint(0, 256, (3, 1, 28, 28), dtype=torch.uint8)
    cell = Cell(Experiment(name="lenet-mnist", network="lenet"), "mnvi", "classification")
    register(cell, images, example, inputs={"mean": [33.3], "std": [78.6]})
    cells = {"table": "boston-mnvi", "images": "lenet-mnist-mnvi"}
    with ExitStack() as stack:
        started = {name: stack.enter_context(serving(cell)) for name, cell in cells.items()}
        for name, (address, process) in started.items():
            wait_until_it_answers(f"{address}/ping", process, Path(f"{cells[name]}.log"))
        yield {name: address for name, (address, _) in started.items()}


def ask(address: str, body: Any) -> tuple[int, Any]:
    """Status and answer, which must be JSON that knows no Infinity and no NaN."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/invocations", content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            status, answer = response.status, response.read()
    except HTTPError as error:
        status, answer = error.code, error.read()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return status, json.loads(answer, parse_constant=refuse)


@pytest.mark.slow
def test_columns_are_matched_by_name(addresses: dict[str, str]) -> None:
    ordered = {"dataframe_split": {"columns": ["a", "b", "c"], "data": [[1.0, 2.0, 3.0]]}}
    shuffled = {"dataframe_split": {"columns": ["c", "a", "b"], "data": [[3.0, 1.0, 2.0]]}}
    status, answer = ask(addresses["table"], ordered)
    assert status == 200 and list(answer["predictions"]) == ["mean", "std", "aleatoric", "epistemic"]
    assert ask(addresses["table"], shuffled) == (200, answer)
    assert ask(addresses["table"], {"inputs": [[1.0, 2.0, 3.0]]}) == (200, answer)


@pytest.mark.slow
def test_bytes_are_answered_with_probabilities(addresses: dict[str, str]) -> None:
    status, answer = ask(addresses["images"], {"inputs": [[[[7] * 28] * 28]]})
    assert status == 200 and sum(answer["predictions"]["probs"][0]) == pytest.approx(1, abs=1e-4)


MISTAKES = {
    "missing column": (
        "table",
        {"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2]]}},
        "the column c is missing",
    ),
    "another shape": ("table", {"inputs": [[1, 2]]}, "the shape is [1, 2]; expected rows of 3 values, e.g. [1, 3]"),
    "nothing": ("table", {"inputs": []}, "the request is empty; send rows of 3 values"),
    "far away": (
        "table",
        {"inputs": [[1e30, 1e30, 1e30]]},
        "is not finite; these inputs are too far from the training",
    ),
    "not a number": ("table", b'{"inputs": [[NaN, 1, 2]]}', "rows 0: values are missing, NaN or infinite"),
    "text": ("table", {"inputs": [["x", "y", "z"]]}, "the values are not an array of numbers"),
    "colours in [0, 1]": ("images", {"inputs": [[[[0.5] * 28] * 28]]}, "pixels must be whole numbers from 0 to 255"),
    "another size": ("images", {"inputs": [[[[5] * 27] * 27]]}, "expected rows of 1 x 28 x 28 pixels"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence(addresses: dict[str, str], mistake: str) -> None:
    name, body, sentence = MISTAKES[mistake]
    status, answer = ask(addresses[name], body)
    assert status == 400 and sentence in answer["message"]
    assert "\n" not in answer["message"] and len(answer["message"]) < 250


@pytest.mark.slow
def test_a_huge_request_is_refused_before_it_is_parsed(addresses: dict[str, str]) -> None:
    status, answer = ask(addresses["table"], b'{"inputs": [' + b"[1,2,3]," * (9 << 20) + b"[1,2,3]]}")
    assert status == 413 and f"bytes; send at most {serve.MOST_BYTES} at a time" in answer["message"]
    assert ask(addresses["table"], {"inputs": [[1.0, 2.0, 3.0]]})[0] == 200


@pytest.mark.parametrize(("port", "problem"), [("taken", "in use"), ("70000", "from 0 to 65535"), ("x", "x is not")])
def test_a_port_that_cannot_be_had(folder: Path, port: str, problem: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        chosen = str(taken.getsockname()[1]) if port == "taken" else port
        status, said = command("serve", "yacht-mnvi", "--port", chosen)
    assert status in (1, 2) and problem in said and "Traceback" not in said


def test_a_cell_without_a_model_says_which_command_makes_it(folder: Path) -> None:
    status, said = command("serve", "yacht-mnvi")
    assert status == 1 and "run `python -m pipeline.train yacht-mnvi` first" in said
