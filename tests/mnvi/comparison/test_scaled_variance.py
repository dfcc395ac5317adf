"""scale_variance: one factor that sampled weights give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import mnvi

NOISE = mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=-3.0)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def pooled() -> nn.Module:
    """A network whose predicted variances are far too small, because its positions share weights."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return mnvi.convert(net, NOISE).eval()


def images(count: int = 16) -> torch.Tensor:
    return torch.rand(count, 2, 8, 8, generator=seeded())


def test_variances_agree_with_sampled_weights_on_other_inputs() -> None:
    net, draws = pooled(), 400
    before = mnvi.compare_with_sampling(net, images(), draws, generator=seeded()).output.row()
    assert before["std_ratio_median"] < 0.6
    scaled = mnvi.scale_variance(net, images(), draws, generator=seeded())
    others = 0.5 + 0.5 * torch.rand(16, 2, 8, 8, generator=seeded())
    after = mnvi.compare_with_sampling(scaled, others, draws, generator=seeded().manual_seed(4)).output.row()
    # both factors are off by 1/sqrt(2 S) of a standard deviation, 0.035
    assert after["std_ratio_median"] == pytest.approx(1.0, abs=4 * 2**0.5 * (2 * draws) ** -0.5)


def test_means_and_the_model_stay_as_they_are() -> None:
    net = pooled()
    expected = net(images())
    scaled = mnvi.scale_variance(net, images(), 20, generator=seeded())
    assert torch.equal(scaled(images()).mean, expected.mean)
    assert torch.equal(net(images()).var, expected.var)
    torch.testing.assert_close(scaled(images()).var, scaled.factor * expected.var)


def test_layer_whose_variance_is_exact_gets_a_factor_near_one() -> None:
    net = mnvi.convert(nn.Linear(30, 40), NOISE).eval()
    scaled = mnvi.scale_variance(net, torch.randn(8, 30, generator=seeded()), 400, generator=seeded())
    low, high = scaled.spread
    assert 0.9 < low < float(scaled.factor) < high < 1.1


def test_every_output_of_a_dictionary_is_scaled_and_tensors_pass() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> dict:
            return {"one": self.one(x), "two": [self.two(x)], "input": x}

    net = mnvi.convert(Heads(), NOISE).eval()
    x = torch.randn(6, 4, generator=seeded())
    scaled = mnvi.scale_variance(net, x, 30, generator=seeded())
    out, plain = scaled(x), net(x)
    torch.testing.assert_close(out["one"].var, scaled.factor * plain["one"].var)
    torch.testing.assert_close(out["two"][0].var, scaled.factor * plain["two"][0].var)
    assert out["input"] is x


def test_state_dict_brings_the_factor_back() -> None:
    scaled = mnvi.scale_variance(pooled(), images(), 20, generator=seeded())
    again = mnvi.ScaledVariance(pooled(), 1.0, scaled.spread)
    again.load_state_dict(scaled.state_dict())
    assert torch.equal(again(images()).var, scaled(images()).var)


def test_scaled_network_is_folded_and_exported(tmp_path: Path) -> None:
    scaled = mnvi.scale_variance(pooled(), images(), 20, generator=seeded())
    expected = scaled(images())
    fast = mnvi.optimize_for_inference(scaled, compile=False)
    torch.testing.assert_close(fast(images()).var, expected.var)
    mnvi.export(scaled, tmp_path / "scaled.pt2", images())
    loaded = torch.export.load(tmp_path / "scaled.pt2").module()
    torch.testing.assert_close(loaded(images())[1], expected.var)


def test_network_that_predicts_no_variance_is_refused() -> None:
    net = mnvi.convert(nn.Linear(4, 3), NOISE).eval()
    with torch.no_grad():
        net.rho.fill_(-torch.inf)
    with pytest.raises(ValueError, match=r"variance of zero for every output.*mnvi.summary"):
        mnvi.scale_variance(net, torch.randn(5, 4), 20)


def test_network_in_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"call model.eval\(\) first"):
        mnvi.scale_variance(pooled().train(), images(), 20)
