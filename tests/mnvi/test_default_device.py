"""Networks on the CPU work whatever torch's default device is: here one whose tensors have no values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mnvi
from mnvi.moments import outer_products
from mnvi.moments.activations import logistic, rectifiers
from mnvi.moments.activations.tabulated import Table
from mnvi.moments.affine import Affine
from mnvi.moments.quadrature import gauss_hermite

LIKELIHOOD = mnvi.CategoricalLikelihood(num_samples=8)


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    return mnvi.convert(plain, mnvi.MultiplicativeNoise(prior_variance=1e-2)).eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(6, 1, 6, 6)


@pytest.fixture
def elsewhere(net: nn.Module, x: torch.Tensor) -> Iterator[None]:
    """Another default device, set after network and data are made."""
    with torch.device("meta"):
        yield


@pytest.mark.usefixtures("elsewhere")
def test_predictions_do_not_change(net: nn.Module, x: torch.Tensor) -> None:
    with mnvi.options(spatial="shared_weights"):
        found = mnvi.predict(net, x, likelihood=LIKELIHOOD, refer=0.5)
        with torch.device("cpu"):
            expected = mnvi.predict(net, x, likelihood=LIKELIHOOD, refer=0.5)
    assert torch.equal(found.probs, expected.probs)
    assert torch.equal(found.refer, expected.refer)


@pytest.mark.usefixtures("elsewhere")
def test_fit_trains(net: nn.Module, x: torch.Tensor) -> None:
    targets = torch.zeros(6, dtype=torch.long, device="cpu")
    fitted = mnvi.fit(net, (x, targets), likelihood=LIKELIHOOD, epochs=1, batch_size=3, progress=False)
    assert mnvi.predict(fitted, x).probs.isfinite().all()


@pytest.mark.usefixtures("elsewhere")
def test_exported_files_hold_the_noise(net: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    mnvi.export(net, tmp_path / "net.pt2", x, likelihood=LIKELIHOOD)
    with torch.device("cpu"):
        probs = torch.export.load(tmp_path / "net.pt2").module()(x)[2]
    torch.testing.assert_close(probs, mnvi.predict(net, x, likelihood=LIKELIHOOD).probs)


@pytest.mark.usefixtures("elsewhere")
def test_sums_over_copies_warn(net: nn.Module, x: torch.Tensor) -> None:
    value = mnvi.Gaussian(x, x.square())
    with pytest.warns(mnvi.DependenceWarning):
        torch.cat([value, torch.relu(value), x.relu()], 1).sum(1)


@pytest.mark.usefixtures("elsewhere")
def test_writing_to_a_view_reaches_the_value(net: nn.Module, x: torch.Tensor) -> None:
    value = mnvi.Gaussian(x.clone(), x.square())
    value[0].mul_(2)
    assert torch.equal(value.mean[0], 2 * x[0])


@pytest.mark.usefixtures("elsewhere")
def test_tables_and_nodes_have_values(net: nn.Module, x: torch.Tensor) -> None:
    table = Table(F.silu, logistic.silu.reference, degree=1)  # type: ignore[attr-defined]
    assert table.channels(x.device).isfinite().all()
    assert all(torch.isfinite(moment).all() for moment in rectifiers.softplus.reference(x, x.square()))  # type: ignore[attr-defined]
    assert sum(weight for _, weight in gauss_hermite(5)) == pytest.approx(1)


@pytest.mark.usefixtures("elsewhere")
def test_squared_weights_are_factored(net: nn.Module, x: torch.Tensor) -> None:
    matrix = torch.eye(4, device="cpu") + 0.1
    assert outer_products.miss(Affine(), matrix, outer_products.few_terms(Affine(), matrix)) < 1
