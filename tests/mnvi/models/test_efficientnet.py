"""EfficientNet-lite0: the released weights fit in their order, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import mnvi
from mnvi.models import efficientnet_lite0


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A network, and its weights under other names, as the package has them."""
    torch.manual_seed(0)
    net = efficientnet_lite0()
    file = tmp_path_factory.mktemp("weights") / "released.pth"
    torch.save({f"_{index}": value for index, value in enumerate(net.state_dict().values())}, file)
    return net, file


def test_weights_are_loaded_in_the_order_of_the_layers(released: tuple[nn.Module, Path]) -> None:
    net, file = released
    loaded = efficientnet_lite0(weights=file).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in net.state_dict().items())


def test_with_other_classes_the_last_layer_alone_stays_random(released: tuple[nn.Module, Path]) -> None:
    net, file = released
    loaded = efficientnet_lite0(num_classes=7, weights=file)
    assert loaded.fc.weight.shape == (7, 1280)
    assert torch.equal(loaded.head[0].weight, net.head[0].weight)


def test_weights_of_another_network_are_refused(released: tuple[nn.Module, Path], tmp_path: Path) -> None:
    torch.save(mnvi.models.resnet20().state_dict(), tmp_path / "resnet20.pth")
    with pytest.raises(ValueError, match=r"resnet20.pth: holds \d+ tensors; expected the 296 of EfficientNet-lite0"):
        efficientnet_lite0(weights=tmp_path / "resnet20.pth")
    with pytest.raises(ValueError, match=r"the tensor for stem.1.weight has the shape \(32, 3, 3, 3\)"):
        efficientnet_lite0(in_channels=1, weights=released[1])


@pytest.mark.parametrize("side", [64, 96])
def test_layers_pad_as_tensorflow_does(side: int) -> None:
    """TensorFlow's "same": as many zeros as give ceil(size / stride) outputs, and an odd one at the end."""
    net = efficientnet_lite0().eval()
    pads = [layer for layer in net.modules() if isinstance(layer, nn.ZeroPad2d)]
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d) and layer.kernel_size[0] > 1]
    sizes: dict[nn.Module, int] = {}
    for pad in pads:
        pad.register_forward_hook(lambda module, inputs, _: sizes.update({module: inputs[0].shape[-1]}))
    with torch.no_grad():
        net(torch.zeros(1, 3, side, side))
    assert len(pads) == 17  # of the stem and of each block
    for pad, layer in zip(pads, convolutions, strict=True):
        size, stride, kernel = sizes[pad], layer.stride[0], layer.kernel_size[0]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        assert tuple(pad.padding) == (total // 2, total - total // 2) * 2


def test_little_noise_keeps_the_classes(released: tuple[nn.Module, Path]) -> None:
    net = released[0].eval()
    x = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=-20.0)).eval()
    with torch.no_grad():
        out = bayesian(x)
        assert torch.allclose(out.mean, net(x), atol=1e-4)
    assert (out.var > 0).all()
