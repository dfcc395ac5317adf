"""MC Dropout reaches every kind of dropout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mnvi


class Calls(nn.Module):
    def __init__(self, drop: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), drop

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(x), 0.0, self.training) + self.drop(self.layer(x), self.training)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.attention(x, x, x)[0])


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "keyword": lambda: Calls(lambda x, training: F.dropout(x, p=0.5, training=training)),
    "by position": lambda: Calls(lambda x, training: F.dropout(x, 0.5, training, False)),
    "alpha dropout": lambda: Calls(lambda x, training: F.alpha_dropout(x, 0.5, training)),
    "attention": Attends,
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True), 2),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_samples_differ_in_evaluation(name: str) -> None:
    method = mnvi.mc_dropout(NETWORKS[name](), num_samples=8).eval()
    with torch.no_grad():
        assert (method(torch.randn(5, 3, 4)).var > 0).any()


def test_other_modules_evaluate() -> None:
    method = mnvi.mc_dropout(Attends()).eval()
    assert not method.net.norm.training and method.net.attention.training
    assert mnvi.mc_dropout(Attends()).train().net.norm.training


@pytest.mark.parametrize("name", ["keyword", "by position"])
def test_a_compiled_network_drops_too(name: str) -> None:
    method = mnvi.mc_dropout(NETWORKS[name](), num_samples=8).eval()
    with torch.no_grad():
        out = torch.compile(method, fullgraph=True, backend="eager")(torch.randn(5, 4))
    assert (out.var > 0).any()


def test_a_network_without_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no dropout module with p > 0, and its modules do not call"):
        mnvi.mc_dropout(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0)))
    with pytest.raises(ValueError, match=r"no dropout module with p > 0"):
        mnvi.mc_dropout(nn.TransformerEncoderLayer(4, 2, dropout=0.0))


def test_the_functions_rest_outside_of_its_passes() -> None:
    net = NETWORKS["keyword"]()
    mnvi.mc_dropout(net).eval()(torch.ones(2, 4))
    assert torch.equal(net.eval()(torch.ones(2, 4)), net(torch.ones(2, 4)))
