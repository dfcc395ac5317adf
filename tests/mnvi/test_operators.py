"""How many operators an eager training step launches: each costs microseconds, however small its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import mnvi

# They change how a tensor is seen, or reserve memory, but compute nothing.
NO_WORK = {
    "_local_scalar_dense", "alias", "as_strided", "detach", "empty", "empty_like", "expand", "permute", "scalar_tensor",
    "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unsqueeze", "view",
}  # fmt: skip
CONVOLUTIONS = 20


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launched: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = operator.name().removeprefix("aten::").partition(".")[0]
        if name not in NO_WORK:
            self.launched[name] += 1
        return operator(*args, **(kwargs or {}))


def _launched(step: Callable[[], Any]) -> Counter[str]:
    with _Counting() as counting:
        step()
    return counting.launched


@pytest.mark.parametrize(("options", "most"), [({}, 10.55), (mnvi.options.PAPER, 10.35)], ids=["default", "paper"])
def test_training_step_of_resnet18_launches_a_bounded_multiple_of_the_plain_operators(
    options: dict, most: float
) -> None:
    torch.manual_seed(0)
    plain = mnvi.models.resnet18(10)
    net = mnvi.convert(plain, mnvi.MultiplicativeNoise(1e-4))
    objective = mnvi.Objective(net, mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=50_000))
    x, y = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    without_noise = sum(_launched(lambda: F.cross_entropy(plain(x), y).backward()).values())
    with mnvi.options(**options):
        launched = _launched(lambda: objective(x, y).loss.backward())
    assert launched["convolution"] == launched["convolution_backward"] == 2 * CONVOLUTIONS
    assert sum(launched.values()) <= most * without_noise


def test_divergence_of_resnet18_shares_operators_among_layers() -> None:
    net = mnvi.convert(mnvi.models.resnet18(10), mnvi.MultiplicativeNoise(1e-4))
    together = sum(_launched(lambda: mnvi.kl_divergence(net).backward()).values())
    net.zero_grad()
    one_by_one = sum(_launched(lambda: sum(x.kl_divergence() for x in mnvi.bayesian_layers(net)).backward()).values())
    assert together <= 200 < 600 < one_by_one
