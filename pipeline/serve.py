"""Serves a study's registered model over HTTP, with MLflow's model server.

python -m pipeline.serve prices-mnvi
python -m pipeline.serve lenet-mnist-mnvi --port 8080
curl http://127.0.0.1:5001/invocations -H 'Content-Type: application/json' \\
    -d '{"dataframe_split": {"columns": ["rooms", "area"], "data": [[3, 71.5]]}}'
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pipeline import console, params
from pipeline.console import say
from pipeline.errors import StudyError
from pipeline.tracking import registered

MOST_BYTES = 64 << 20  # of one request; parsed JSON takes a multiple of it

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI application, such as MLflow's server."""


def main() -> None:
    parser = console.parser("pipeline.serve", __doc__)
    parser.add_argument("cell", help="a cell of the study, as `python -m pipeline.params show` lists them")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=5001, help="default: %(default)s")
    parser.add_argument("--params", default="params.yaml", help="the study's settings (default: %(default)s)")
    arguments = parser.parse_args()
    cell = params.load(arguments.params).cell(arguments.cell)
    name = registered.name_of(cell)
    with listening(arguments.host, arguments.port) as listener:
        say(f"{name}: loading")
        model = registered.load(name, f"python -m pipeline.train {cell.name}")
        # Here: they take seconds to import, and mistakes should be answered before.
        import uvicorn
        from mlflow.pyfunc import scoring_server

        app = bounded(scoring_server.init(model.inner))
        address = f"http://{arguments.host}:{arguments.port}/invocations"
        say(f"{name}: {address} takes {request(model.settings)}; Ctrl-C ends it")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def _port(text: str) -> int:
    if not (text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 65535")
    return int(text)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens on this address. Clients wait until the model is loaded."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise StudyError(f"cannot listen on {host}:{port} ({error}); choose another --port or --host") from error


def bounded(app: App, most: int = MOST_BYTES) -> App:
    """The same application, for requests of at most ``most`` bytes. It reads longer ones without keeping them."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        parts, length, more = list[bytes](), 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the client is gone
                return None
            length += len(message.get("body", b""))
            parts.append(message.get("body", b""))
            if length > most:
                parts.clear()
            more = message.get("more_body", False)
        if length > most:
            return await _refuse(send, f"the request has {length} bytes; send at most {most} at a time")
        kept: list[Message] = [{"type": "http.request", "body": b"".join(parts)}]
        return await app(scope, lambda: _next(kept, receive), send)

    return answer


async def _next(kept: list[Message], receive: Receive) -> Message:
    return kept.pop() if kept else await receive()


async def _refuse(send: Send, sentence: str) -> None:
    body = json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def request(settings: dict[str, Any]) -> str:
    """An example of what to send, as JSON."""
    if settings.get("columns"):
        rows = [[0.0] * len(settings["columns"])]
        return json.dumps({"dataframe_split": {"columns": settings["columns"], "data": rows}})
    kind = "pixels from 0 to 255" if settings["kind"] == "classification" else "numbers"
    shape = f" of the shape {[1, *settings['shape']]}" if "shape" in settings else ""
    return f'{{"inputs": …}} with an array of {kind}{shape}'


if __name__ == "__main__":
    console.run(main)
