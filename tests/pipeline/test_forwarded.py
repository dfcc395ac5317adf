"""Which variables reach the processes on a cluster."""

from __future__ import annotations

import pytest

from pipeline import forwarded
from pipeline.errors import StudyError


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in forwarded.variables():
        monkeypatch.delenv(name)


def test_how_workers_talk_is_forwarded_and_keys_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_DEBUG": "INFO", "GLOO_SOCKET_IFNAME": "eth0", "FI_PROVIDER": "efa"}
    for name, value in {**talk, "AWS_REGION": "eu-central-1", "AWS_SECRET_ACCESS_KEY": "k", "HOME": "/"}.items():
        monkeypatch.setenv(name, value)
    assert forwarded.variables() == {**talk, "AWS_REGION": "eu-central-1"}


def test_further_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("MNVI_FORWARD", "CUBLAS_WORKSPACE_CONFIG, ")
    assert forwarded.variables() == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ("WANDB_TOKEN", "WANDB_TOKEN looks like a secret, which Ray's dashboard would show"),
        ("NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_secret_or_missing_one_is_named(monkeypatch: pytest.MonkeyPatch, names: str, complaint: str) -> None:
    monkeypatch.setenv("WANDB_TOKEN", "0123")
    monkeypatch.setenv("MNVI_FORWARD", names)
    with pytest.raises(StudyError, match=complaint) as error:
        forwarded.variables()
    assert "0123" not in str(error.value)
