"""Subclasses of torch's layers: those around super().forward keep theirs, the others are refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi
from mnvi._torchvision import torchvision
from mnvi.conversion.subclasses import bayesian_class

NOISE = mnvi.MultiplicativeNoise(prior_variance=0.1)
X = torch.linspace(-1, 1, 24).view(2, 3, 4)


class Renamed(nn.Linear):
    kept = "a class attribute"

    def method(self) -> int:
        return self.in_features


class Around(nn.Linear):
    """Changes input and output, and has a parameter of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, input: Tensor, offset: float = 1.0) -> Tensor:
        position = torch.zeros(1, device=self.weight.device, dtype=self.weight.dtype)
        return self.scale * super().forward(2 * input) + position + offset


class Causal(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (self.kernel_size[0] - 1, 0)))


class Averaged(nn.Linear):
    """Calls x.mean, so that conversion rewrites its class first."""

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        return out - out.mean(-1, keepdim=True)


class Grandchild(Around):
    def forward(self, input: Tensor) -> Tensor:
        return -super().forward(input, offset=0.0)


LAYERS = {
    "renamed": lambda: Renamed(4, 5),
    "around": lambda: Around(4, 5),
    "causal": lambda: Causal(3, 5, 3),
    "averaged": lambda: Averaged(4, 5),
    "grandchild": lambda: Grandchild(4, 5),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_a_subclass_keeps_its_class_its_forward_and_its_values(name: str) -> None:
    plain = LAYERS[name]()
    layer = mnvi.convert(plain, NOISE)
    assert isinstance(layer, type(plain)) and isinstance(layer, mnvi.layers.BayesianLayer)
    torch.testing.assert_close(layer(X).mean, plain(X))
    assert layer(X).var.min() > 0
    assert set(layer.state_dict()) == {*plain.state_dict(), "rho"}
    quiet = mnvi.convert(plain, mnvi.MultiplicativeNoise(0.1, init_rho=-200.0))
    assert quiet(X).var.max() == 0


@pytest.mark.parametrize("name", list(LAYERS))
def test_it_can_be_copied_and_pickled_and_optimised(name: str) -> None:
    layer = mnvi.convert(LAYERS[name](), NOISE)
    out = layer(X)
    fast = mnvi.optimize_for_inference(layer, compile=False)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fast):
        torch.testing.assert_close(other(X).mean, out.mean)
        torch.testing.assert_close(other(X).var, out.var)


def test_moments_pass_through_what_the_subclass_adds() -> None:
    plain = Around(4, 5)
    layer = mnvi.convert(plain, NOISE)
    inner = mnvi.convert(nn.Linear(4, 5), NOISE)
    inner.load_state_dict({name: value for name, value in layer.state_dict().items() if name != "scale"})
    torch.testing.assert_close(layer(X, offset=2.0).mean, 3 * inner(2 * X).mean + 2)
    torch.testing.assert_close(layer(X).var, 9 * inner(2 * X).var)


def test_methods_and_class_attributes_stay() -> None:
    layer = mnvi.convert(Renamed(4, 5), NOISE)
    assert layer.kept == "a class attribute" and layer.method() == 4


def test_classes_are_made_once() -> None:
    assert type(mnvi.convert(Renamed(4, 5), NOISE)) is type(mnvi.convert(Renamed(2, 1), NOISE))


def test_a_batch_norm_folds_into_a_subclass_only_if_its_output_is_that_of_the_weights() -> None:
    net = nn.Sequential(Renamed(4, 5), nn.BatchNorm1d(5), Around(5, 3), nn.BatchNorm1d(3)).eval()
    fast = mnvi.optimize_for_inference(mnvi.convert(net, NOISE), compile=False)
    x = torch.randn(6, 4)
    assert [type(fast[i]).__name__ for i in (1, 3)] == ["FoldedBatchNorm", "BatchNorm1d"]
    torch.testing.assert_close(fast(x).mean, mnvi.convert(net, NOISE)(x).mean)


class ByHand(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)


class Both(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.weight.sum()


class OtherConvolution(nn.Conv1d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight.abs(), bias)


@pytest.mark.parametrize("layer", [ByHand(4, 5), Both(4, 5), OtherConvolution(3, 5, 3)])
def test_a_subclass_that_computes_with_its_weight_is_refused(layer: nn.Module) -> None:
    assert bayesian_class(type(layer)) is None
    with pytest.raises(ValueError, match=r"in a forward of its own.*super\(\)\.forward.*mnvi\.register_layer"):
        mnvi.convert(layer, NOISE)


@pytest.mark.parametrize("kind", ["Conv3DSimple", "Conv3DNoTemporal"])
def test_convolutions_of_torchvisions_video_networks(kind: str) -> None:
    plain = getattr(torchvision.models.video.resnet, kind)(2, 3)
    layer = mnvi.convert(plain, NOISE)
    x = torch.randn(1, 2, 4, 6, 6)
    assert type(layer).get_downsample_stride(2) == type(plain).get_downsample_stride(2)
    torch.testing.assert_close(layer(x).mean, plain(x))
