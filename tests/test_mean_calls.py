import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import mnvi
from mnvi.mean_calls import with_mean_calls


class Averaging(nn.Module):
    """Averages with the tensor's method, as many published networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(self.conv(x), keepdim=False) * torch.ones(1).mean()

    def pooled(self, x: Tensor, keepdim: bool = True) -> Tensor:
        return x.mean((2, 3), keepdim=keepdim)


class Inheriting(Averaging):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.zeros(3).mean()


class Spreading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).var(1)


@pytest.mark.parametrize("kind", [Averaging, Inheriting])
def test_a_model_that_averages_with_the_method_gives_mean_and_variance(kind: type[nn.Module]) -> None:
    net, x = kind(), torch.randn(2, 3, 8, 8)
    out = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0))(x)
    conv = mnvi.convert(net.conv, mnvi.MultiplicativeNoise(prior_variance=1.0))(x)
    torch.testing.assert_close(out.mean, net(x))
    torch.testing.assert_close(out.var, conv.var.mean((2, 3)) / 36)


def test_the_models_own_class_is_left_as_it_was() -> None:
    forward = Averaging.forward
    converted = mnvi.convert(Averaging(), mnvi.MultiplicativeNoise(prior_variance=1.0))
    assert Averaging.forward is forward
    assert isinstance(converted, Averaging)
    assert type(converted).__name__ == "Averaging"


def test_a_class_without_such_calls_stays_itself() -> None:
    assert with_mean_calls(nn.Sequential) is nn.Sequential


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_and_pickles_give_the_same_output(copied) -> None:
    net, x = mnvi.convert(Inheriting(), mnvi.MultiplicativeNoise(prior_variance=1.0)), torch.randn(2, 3, 8, 8)
    out, again = net(x), copied(net)(x)
    assert torch.equal(out.mean, again.mean) and torch.equal(out.var, again.var)


def test_a_call_without_rule_is_named() -> None:
    net = mnvi.convert(Spreading(), mnvi.MultiplicativeNoise(prior_variance=1.0))
    with pytest.raises(mnvi.NoRuleError, match=r"torch\.Tensor\.var"):
        net(torch.ones(2, 3))


def test_code_whose_source_cannot_be_read_is_refused() -> None:
    namespace: dict = {"nn": nn}
    exec("class Hidden(nn.Sequential):\n    def forward(self, x):\n        return self[0](x).mean(1)", namespace)
    with pytest.raises(ValueError, match=r"Hidden\.forward calls \.mean"):
        mnvi.convert(namespace["Hidden"](nn.Linear(2, 2)), mnvi.MultiplicativeNoise(prior_variance=1.0))
