"""The summary of a model: its rows, its totals, and what one pass on an example tells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import mnvi
from mnvi.rules.fallbacks import fell_back
from mnvi.rules.table import RULES

NOISE = mnvi.MultiplicativeNoise(prior_variance=1.0)
IMAGES = torch.zeros(2, 1, 5, 5)


class Unknown(nn.Module):
    """A layer that is none of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.kernel)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.unknown, self.head = Unknown(), nn.Linear(8, 3)
        self.unused = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(2).sum(-1)
        return self.scale * self.head(self.unknown(x))


def test_rows_name_every_layer_with_parameters_its_posterior_or_the_reason() -> None:
    table = mnvi.summary(mnvi.convert(Net(), {"conv": NOISE, "unused": mnvi.MeanField(1.0)}))
    assert {row.name: (row.kind, row.bayesian, row.why) for row in table} == {
        "": ("Net", False, "scales and shifts only"),
        "conv": ("Conv2d", True, "MultiplicativeNoise"),
        "norm": ("BatchNorm2d", False, "scales and shifts only"),
        "unknown": ("Unknown", False, "unknown class; see mnvi.register_layer"),
        "head": ("Linear", False, "not converted"),
        "unused": ("Linear", True, "MeanField"),
    }
    assert len(table) == 6 and table[1] is table["conv"]
    with pytest.raises(KeyError, match="no layer is called 'cone'"):
        table["cone"]


def test_parameters_and_noise_add_up() -> None:
    net = mnvi.convert(Net(), NOISE)
    table = mnvi.summary(net)
    assert table.parameters == sum(p.numel() for p in net.parameters())
    assert table.noise == sum(p.numel() for name, p in net.named_parameters() if name.endswith("rho")) == 1 + 8 + 3
    assert (table["conv"].parameters, table["conv"].noise) == (8 * 9 + 8 + 1, 1)
    own = sum(p.numel() for p in Net().parameters())
    assert table.bayesian_share == pytest.approx((8 * 9 + 8 + 27 + 12) / own)


def test_tied_parameters_count_once() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    net = mnvi.convert(nn.Sequential(first, second), NOISE)
    table = mnvi.summary(net)
    assert table.parameters == sum(p.numel() for p in net.parameters())
    assert (table[1].parameters, table[1].noise) == (3, 0)


def test_norms_that_fold_are_those_that_optimising_folds() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)).eval()
    bayesian = mnvi.convert(net, NOISE)
    assert [row.folds_into for row in mnvi.summary(bayesian)] == [None, "0", None]
    fast = mnvi.optimize_for_inference(bayesian, compile=False)
    assert [type(fast[i]).__name__ for i in (1, 3)] == ["FoldedBatchNorm", "BatchNorm2d"]


@pytest.mark.parametrize("wrap", ["mc_dropout", "ensemble"])
def test_norms_inside_a_method_fold(wrap: str) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1))

    model = mnvi.methods.build(wrap, network)
    folded = {row.name: row.folds_into for row in mnvi.summary(model) if row.folds_into is not None}
    inside = ["net"] if wrap == "mc_dropout" else [f"members.{i}" for i in range(5)]
    assert folded == {f"{part}.1": f"{part}.0" for part in inside}


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) if x.sum() > 0 else x


def test_a_model_that_cannot_be_traced_folds_nothing() -> None:
    table = mnvi.summary(mnvi.convert(Branching(), NOISE))
    assert table["norm"].folds_into is None and table["norm"].remarks == "does not fold"
    reason = (
        "Branching cannot be traced by torch.fx (TraceError: symbolically traced variables cannot be used as inputs"
    )
    assert table["norm"].unfolded.startswith(reason)
    assert f"no batch norm folds: {reason}" in str(table)


def test_an_example_finds_layers_that_are_not_called() -> None:
    net = mnvi.convert(Net(), NOISE)
    assert mnvi.summary(net)["unused"].called is None
    table = mnvi.summary(net, IMAGES)
    assert [row.name for row in table if not row.called] == ["unused"]
    assert table["unused"].remarks == "not called: its noise is unused" and not table["head"].remarks


@pytest.fixture
def falling_back() -> Iterator[None]:
    """torch.relu reports that it falls back."""
    original = RULES._rules[torch.relu]

    def rule(x: mnvi.Gaussian) -> mnvi.Gaussian:
        fell_back("torch.relu")
        return original(x)

    mnvi.rule(torch.relu)(rule)
    yield
    mnvi.rule(torch.relu)(original)


def test_functions_that_fall_back_are_listed_where_they_are_called(falling_back: None) -> None:
    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.relu(x))

    net = mnvi.convert(nn.Sequential(nn.Linear(3, 3), Block(), nn.Linear(3, 2)), NOISE)
    assert [row.fallbacks for row in mnvi.summary(net)] == [(), ()]
    table = mnvi.summary(net, torch.ones(1, 3))
    assert table["1"].fallbacks == ("torch.relu",) and table["1"].parameters == 0
    assert "falls back: torch.relu" in str(table)


@pytest.mark.parametrize("example", [torch.ones(2, 3), (torch.ones(2, 3),), {"x": torch.ones(2, 3)}])
def test_an_example_is_an_input_a_tuple_or_keywords(example: object) -> None:
    assert mnvi.summary(mnvi.convert(Branching(), NOISE), example)["norm"].called


def test_the_model_stays_as_it_was() -> None:
    net = mnvi.convert(Net(), NOISE).train()
    net.norm.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in net.children()]
    mnvi.summary(net, IMAGES)
    assert net.training and net.conv.training and not net.norm.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in net.children()] == hooks


def test_an_error_of_the_model_comes_through_and_leaves_no_hooks() -> None:
    net = mnvi.convert(Net(), NOISE)
    with pytest.raises(ValueError, match="expected 1 input units"):
        mnvi.summary(net, torch.zeros(2, 3, 5, 5))
    assert not net.conv._forward_hooks and not net.conv._forward_pre_hooks


def test_a_deterministic_model_is_not_converted() -> None:
    table = mnvi.summary(mnvi.models.mlp(4))
    assert {row.why for row in table} == {"not converted"} and table.bayesian_share == 0


def test_the_printed_table_has_aligned_columns_and_totals() -> None:
    lines = str(mnvi.summary(mnvi.convert(Net(), NOISE), IMAGES)).splitlines()
    assert lines[0].split()[:3] == ["layer", "kind", "Bayesian"] and set(lines[1]) == {"-"}
    start = lines[0].index("posterior")
    assert all(line[start - 2 : start] == "  " and line[start] != " " for line in lines[2:-1])
    assert lines[-1].startswith("3 of 6 layers are Bayesian, with ")


def test_a_wrong_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"summary: model must be a torch\.nn\.Module, got Tensor"):
        mnvi.summary(torch.ones(1))


def test_layers_with_factored_variances_are_marked():
    net = nn.Sequential(nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 30))
    table = mnvi.summary(mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, variance="factored")))
    assert 0.1 < table["0"].missed < 0.3
    assert f"variances factored, off by {table['0'].missed:.2f}" in str(table)
    assert table["2"].missed is None and table["4"].missed is None  # few inputs; the last layer
    assert mnvi.summary(mnvi.convert(net, mnvi.MultiplicativeNoise(1.0)))["0"].missed is None
