"""Pretrained weights: the mirror's file or the package's, and only the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

import mnvi
from pipeline import files
from pipeline.data import released_weights
from pipeline.data.sources import MIRROR, Unavailable
from pipeline.errors import StudyError
from pipeline.registry.pretrained import PRETRAINED

NAME = "efficientnet-lite0"


@pytest.mark.slow
def test_a_package_has_the_weights_and_the_network_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR, raising=False)
    found = released_weights.find(NAME, tmp_path)
    assert files.sha256(found) == PRETRAINED[NAME].sha256
    net = mnvi.models.efficientnet_lite0(weights=found)
    assert abs(float(net.fc.weight.detach().std()) - 0.05) < 0.03  # trained: torch's initialisation has 0.016
    monkeypatch.setattr(released_weights, "first", None)  # the second time nothing is fetched
    assert released_weights.find(NAME, tmp_path) == found


def test_without_a_source_the_error_says_where_to_put_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object) -> bytes:
        raise Unavailable("no network")

    monkeypatch.delenv(MIRROR, raising=False)
    monkeypatch.setattr(released_weights, "_packaged", offline)
    with pytest.raises(
        StudyError, match=r"^weights: efficientnet-lite0: no source (.|\n)*weights/efficientnet-lite0-.*pth$"
    ):
        released_weights.find(NAME, tmp_path)


def test_a_damaged_file_in_the_mirror_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/efficientnet-lite0-57934424.pth").write_bytes(b"damaged")
    monkeypatch.setenv(MIRROR, str(tmp_path))
    with pytest.raises(StudyError, match=r"its SHA-256 is .*, expected .*Replace it"):
        released_weights.find(NAME, tmp_path / "cache")
