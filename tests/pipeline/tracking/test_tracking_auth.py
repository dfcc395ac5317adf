"""A tracking server that asks for a password: it gets ours, and nobody else does."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import PATIENCE
from test_tracking_server import TRACKING, free_port, server
from tracking_cases import Cell, client, history

from pipeline import tracking
from pipeline.tracking import identity

RIGHT, WRONG = "correct horse battery", "incorrect horse"
WORK = Path("work/results/tune")


@pytest.fixture
def asking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an MLflow server with users."""
    (folder / "users.ini").write_text(
        "[mlflow]\ndefault_permission = NO_PERMISSIONS\ndatabase_uri = sqlite:///users.db\nadmin_username = admin\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(folder / "users.ini"))
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", RIGHT)
    monkeypatch.setenv("MLFLOW_FLASK_SERVER_SECRET_KEY", "of this test")
    port = free_port()
    with server(port, *TRACKING, "--app-name", "basic-auth"):
        monkeypatch.delenv("MLFLOW_AUTH_ADMIN_PASSWORD")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
        monkeypatch.setenv("MNVI_TRACKING_WAIT", f"{PATIENCE}")
        yield f"127.0.0.1:{port}"


@pytest.mark.slow
def test_a_server_with_a_password(
    asking: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{asking}/api/2.0/mlflow/experiments/get-by-name?experiment_name=toy")

    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", RIGHT)
    with tracking.run(Cell(), "tune", state=WORK / "right") as run:
        run.metrics({"loss": 1.0}, 0)
    assert history(run.id, "loss") == [(0, 1.0)]

    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", WRONG)
    monkeypatch.setenv("MNVI_TRACKING_WAIT", "1")
    with tracking.run(Cell(), "tune", state=WORK / "wrong") as kept:
        kept.metrics({"loss": 2.0}, 0)
    (complaint,) = tracking.send(Path("work"))
    said = capfd.readouterr().err
    for words in (said, complaint):
        assert "the server refuses access: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in words
    assert "they are kept in work/results/tune/wrong" in said

    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", RIGHT)
    assert tracking.send(Path("work")) == []
    assert history(kept.id, "loss") == [(0, 2.0)]

    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    monkeypatch.setenv("MNVI_TRACKING_WAIT", f"{PATIENCE}")
    address = f"http://admin:{RIGHT.replace(' ', '%20')}@{asking}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(ValueError, match="odd"), tracking.run(Cell(), "tune", state=WORK / "address") as run:
        run.params({"tracking": {"uri": address}})
        run.metrics({"loss": 3.0}, 0)
        raise ValueError(f"odd: {address}")
    deadline = time.monotonic() + PATIENCE  # a run that fails leaves soon, and its thread may still be sending
    while identity.pending(WORK / "address") and time.monotonic() < deadline:
        tracking.send(Path("work"))
    assert history(run.id, "loss") == [(0, 3.0)]
    data = client().get_run(run.id).data
    assert data.params == {"tracking.uri": f"http://***@{asking}"}
    assert data.tags["error"] == f"ValueError: odd: http://***@{asking}"

    said += capfd.readouterr().err
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert {"metrics.jsonl", "mlflow-run.json", "mlflow.db", "users.db"} <= {path.name for path in files}
    for secret in (RIGHT, RIGHT.replace(" ", "%20"), WRONG):
        assert secret not in said
        assert not [path for path in files if secret.encode() in path.read_bytes()]
