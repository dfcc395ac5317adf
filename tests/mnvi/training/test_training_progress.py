"""What a person sees while a network trains."""

from __future__ import annotations

import sys

import pytest
import torch

import mnvi


def train(**settings: object) -> None:
    x = torch.randn(20, 3)
    mnvi.fit(mnvi.models.mlp(3), (x, x[:, 0]), validation=(x, x[:, 0]), epochs=2, **settings)  # type: ignore[arg-type]


def test_a_bar_shows_epochs_and_scores(capfd: pytest.CaptureFixture[str]) -> None:
    train()
    shown = capfd.readouterr().err
    assert "epoch 2/2: 100%" in shown and "rmse=" in shown


def test_without_tqdm_each_epoch_has_a_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    train()
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"] and "rmse" in lines[0]


def test_progress_can_be_switched_off(capfd: pytest.CaptureFixture[str]) -> None:
    train(progress=False)
    assert capfd.readouterr().err == ""


def test_a_word_says_from_where_it_goes_on(capfd: pytest.CaptureFixture[str], tmp_path: object) -> None:
    x = torch.randn(20, 3)
    for epochs in (1, 2):
        mnvi.fit(mnvi.models.mlp(3), (x, x[:, 0]), epochs=epochs, checkpoint=f"{tmp_path}/state.pt")
    assert "fit: resuming after epoch 1 from" in capfd.readouterr().err
