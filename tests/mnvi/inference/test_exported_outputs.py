"""Exported files that return predictions, take images of any size, or come from a network with several outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from networks import POSTERIORS, trained
from test_exporting import run_onnx
from torch import Tensor, nn

import mnvi


@pytest.fixture(scope="module")
def pooled() -> nn.Module:
    """A network for images of any size."""
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), *pool, nn.Linear(6, 4))
    return trained(net, POSTERIORS["multiplicative"], (2, 8, 8)).eval()


@pytest.mark.slow
def test_a_file_with_probabilities_takes_images_of_any_size(pooled: nn.Module, tmp_path: Path) -> None:
    likelihood = mnvi.CategoricalLikelihood()
    mnvi.export(pooled, tmp_path / "net.onnx", torch.randn(1, 2, 8, 8), likelihood=likelihood, free_size=True)
    x = torch.randn(3, 2, 11, 6)
    found = run_onnx(tmp_path / "net.onnx", x)
    assert list(found) == ["mean", "variance", "probs"]
    torch.testing.assert_close(
        found["probs"], mnvi.predict(pooled, x, likelihood=likelihood).probs, rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(found["variance"], pooled(x).var.detach(), rtol=1e-4, atol=1e-6)


def read(path: Path, x: Tensor) -> list[Tensor]:
    return [value.detach() for value in torch.export.load(path).module()(x)]


@pytest.mark.parametrize("approximation", ["probit", "second_order"])
def test_probabilities_without_sampling(approximation: str, tmp_path: Path) -> None:
    net = trained(nn.Sequential(nn.Linear(3, 4)), POSTERIORS["multiplicative"], (3,)).eval()
    likelihood = mnvi.CategoricalLikelihood(approximation=approximation)
    mnvi.export(net, tmp_path / "net.pt2", torch.randn(2, 3), likelihood=likelihood)
    x = torch.randn(5, 3)
    torch.testing.assert_close(read(tmp_path / "net.pt2", x)[2], likelihood.predictive(net(x)).probs.detach())


def test_numbers_get_mean_and_standard_deviation_of_the_prediction(tmp_path: Path) -> None:
    net = trained(mnvi.models.mlp(3, hidden=4), POSTERIORS["multiplicative"], (3,)).eval()
    for _ in range(2):  # the first time torch itself may switch off the checks of its distributions, for good
        torch.distributions.Distribution.set_default_validate_args(True)
        mnvi.export(net, tmp_path / "net.pt2", torch.randn(2, 3), likelihood=mnvi.GaussianLikelihood())
    x = torch.randn(5, 3)
    predicted = mnvi.GaussianLikelihood().predictive(net(x))
    torch.testing.assert_close(read(tmp_path / "net.pt2", x)[2:], [predicted.mean.detach(), predicted.stddev.detach()])
    with pytest.raises(ValueError):
        torch.distributions.Normal(0.0, -1.0)  # torch checks its distributions as before


def test_a_dictionary_gets_moments_for_each_key(tmp_path: Path) -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 5)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": self.first(x), "aux": self.second(x)}

    net = mnvi.convert(TwoHeads(), mnvi.MultiplicativeNoise(1.0)).eval()
    mnvi.export(net, tmp_path / "net.onnx", torch.randn(2, 3))
    x = torch.randn(4, 3)
    found = run_onnx(tmp_path / "net.onnx", x)
    assert list(found) == ["out_mean", "out_variance", "aux_mean", "aux_variance"]
    torch.testing.assert_close(found["aux_variance"], net(x)["aux"].var.detach(), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    flat = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 2))
    with pytest.raises(ValueError, match="free_size=True, but the network works with one image size only"):
        mnvi.export(flat, tmp_path / "net.pt2", torch.zeros(2, 1, 4, 4), free_size=True)
    with pytest.raises(ValueError, match="free_size=True is for images"):
        mnvi.export(nn.Linear(2, 2), tmp_path / "net.pt2", torch.zeros(2, 2), free_size=True)
    with pytest.raises(TypeError, match="likelihood is a PoissonLikelihood; expected a CategoricalLikelihood or"):
        mnvi.export(nn.Linear(2, 1), tmp_path / "net.pt2", torch.zeros(2, 2), likelihood=mnvi.PoissonLikelihood())
    assert not list(tmp_path.iterdir())
