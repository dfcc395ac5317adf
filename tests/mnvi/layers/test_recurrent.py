"""Recurrent layers and cells: torch's results, sampling by step and with shared weights, state, inference."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mnvi
from mnvi.layers.recurrent import take_over
from mnvi.layers.recurrent_steps import interpolated

NOISE, FIELD, SHARED = mnvi.MultiplicativeNoise(0.3), mnvi.MeanField(0.3, -4.0), mnvi.SharedMeanField(0.3, -4.0)
QUIET = mnvi.MultiplicativeNoise(0.3, init_rho=-200.0)
KINDS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
CELLS = {"RNNCell": nn.RNNCell, "LSTMCell": nn.LSTMCell, "GRUCell": nn.GRUCell}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first, no bias": {"batch_first": True, "bias": False},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
    "three layers, dropout": {"num_layers": 3, "dropout": 0.5},
}
EACH_KIND = pytest.mark.parametrize("kind", list(KINDS))
EACH_CELL = pytest.mark.parametrize("kind", list(CELLS))


def built(kind: str, **arguments: Any) -> Any:
    torch.manual_seed(0)
    return {**KINDS, **CELLS}[kind](3, 4, **arguments)


def flat(out: Any) -> list[Any]:
    """All values of a nested output."""
    return [part for value in out for part in flat(value)] if isinstance(out, tuple) else [out]


def assert_same_means(ours: Any, theirs: Any) -> None:
    for one, other in zip(flat(ours), flat(theirs), strict=True):
        torch.testing.assert_close(one.mean if isinstance(one, mnvi.Gaussian) else one, other)


@EACH_KIND
@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("batched", [True, False])
def test_without_noise_the_result_is_torchs(kind: str, variant: str, batched: bool) -> None:
    plain = built(kind, **VARIANTS[variant]).eval()
    layer = mnvi.convert(plain, QUIET)
    x = torch.randn(5, 2, 3) if batched else torch.randn(5, 3)
    out = layer(x)
    assert isinstance(layer, type(plain)) and type(out[0]) is mnvi.Gaussian
    assert_same_means(out, plain(x))
    assert max(value.var.max() for value in flat(out)) < 1e-12
    states = flat(plain(x))[1:]
    given = tuple(torch.randn_like(state) for state in states)
    hx = given if kind == "LSTM" else given[0]
    assert_same_means(layer(x, hx), plain(x, hx))


@EACH_CELL
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_without_noise_a_cell_gives_torchs_result(kind: str, bias: bool, batched: bool) -> None:
    plain = built(kind, bias=bias)
    layer = mnvi.convert(plain, QUIET)
    x, h = (torch.randn(2, 3), torch.randn(2, 4)) if batched else (torch.randn(3), torch.randn(4))
    assert_same_means(layer(x), plain(x))
    hx = (h, h + 1) if kind == "LSTMCell" else h
    assert_same_means(layer(x, hx), plain(x, hx))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_relu_and_projections() -> None:
    x = torch.randn(5, 2, 3)
    for plain in (built("RNN", nonlinearity="relu"), built("LSTM", proj_size=2, num_layers=2, bidirectional=True)):
        layer = mnvi.convert(plain, QUIET)
        assert_same_means(layer(x), plain(x))
    assert "hr_l0.rho" in layer.state_dict() and "weight_hr_l0" in layer.state_dict()
    cell = built("RNNCell", nonlinearity="relu")
    assert_same_means(mnvi.convert(cell, QUIET)(x[0]), cell(x[0]))


@EACH_KIND
@pytest.mark.parametrize("posterior", [NOISE, FIELD, SHARED], ids=lambda p: type(p).__name__)
@torch.no_grad()
def test_standard_deviations_are_those_of_a_new_draw_at_each_step(kind: str, posterior: mnvi.Posterior) -> None:
    """4,000 draws give a standard deviation to 1.1 %; the rest is left to correlations that the moments neglect."""
    layer = mnvi.convert(built(kind), posterior)
    x = torch.randn(6, 1, 3)
    out = layer(x)[0][:, 0]
    sampling = copy.deepcopy(layer)
    for part in mnvi.bayesian_layers(sampling):
        part.posterior = mnvi.Sampled(part.posterior)
    drawn = sampling(x.expand(6, 4000, 3))[0]
    ratio = out.std / drawn.std(1)
    assert (ratio.median() - 1).abs() < 0.05 and (ratio - 1).abs().max() < 0.25
    assert ((out.mean - drawn.mean(1)).abs() / drawn.std(1)).max() < 5 / 4000**0.5 + 0.05


@EACH_KIND
@torch.no_grad()
def test_standard_deviations_against_weights_shared_by_all_steps(kind: str) -> None:
    """One draw for all steps, 1,000 times: the module's docstring says how far independent steps may be off."""
    plain = built(kind)
    layer = mnvi.convert(plain, NOISE)
    x = torch.randn(6, 1, 3)
    out, draws = layer(x)[0][-1, 0], []
    parts = {name: layer.get_submodule(name) for name in ("ih_l0", "hh_l0")}
    for _ in range(1000):
        for name, part in parts.items():
            spread = part.weight_variance().sqrt()
            getattr(plain, f"weight_{name}").copy_(part.weight + spread * torch.randn_like(spread))
        draws.append(plain(x)[0][-1, 0])
    ratio = (out.std / torch.stack(draws).std(0)).median()
    assert 0.5 < ratio < 1.5


@torch.no_grad()
def test_interpolation_is_exact_for_independent_values() -> None:
    torch.manual_seed(0)
    z, new, old = (mnvi.Gaussian(torch.randn(3), torch.rand(3)) for _ in range(3))
    out = interpolated(z, new, old)
    s_z, s_new, s_old = (value.sample(200_000).double() for value in (z, new, old))
    drawn = (1 - s_z) * s_new + s_z * s_old
    centred = drawn - out.mean
    var = centred.square().mean(0)
    assert (centred.mean(0).abs() <= 5 * (var / 200_000).sqrt()).all()
    assert ((var - out.var).abs() <= 5 * ((centred.pow(4).mean(0) - var.square()) / 200_000).sqrt()).all()
    known = interpolated(z.mean, new.mean, old.mean)
    torch.testing.assert_close(known, out.mean)


@EACH_KIND
def test_names_are_torchs_and_checkpoints_go_both_ways(kind: str) -> None:
    plain = built(kind, num_layers=2, bidirectional=True)
    net = nn.Sequential()
    net.add_module("rnn", plain)
    layer = mnvi.convert(net, NOISE)
    state = layer.state_dict()
    assert [name for name in state if not name.endswith("rho")] and set(net.state_dict()) <= set(state)
    assert {name for name in state if name.endswith("rho")} == {
        f"rnn.{part}_l{i}{end}.rho" for part in ("ih", "hh") for i in (0, 1) for end in ("", "_reverse")
    }
    other = mnvi.convert(nn.Sequential(KINDS[kind](3, 4, num_layers=2, bidirectional=True)), NOISE)[0]
    report = other.load_state_dict(plain.state_dict(), strict=False)
    assert not report.unexpected_keys and all(name.endswith("rho") for name in report.missing_keys)
    other.load_state_dict(layer.rnn.state_dict())
    x = torch.randn(5, 2, 3)
    for same in (other, copy.deepcopy(layer.rnn), pickle.loads(pickle.dumps(layer.rnn))):
        torch.testing.assert_close(same(x)[0].var, layer.rnn(x)[0].var)
    back = KINDS[kind](3, 4, num_layers=2, bidirectional=True)
    back.load_state_dict({name: value for name, value in layer.rnn.state_dict().items() if not name.endswith("rho")})
    torch.testing.assert_close(back(x)[0], plain(x)[0])


@pytest.mark.parametrize("kind", [*KINDS, *CELLS])
def test_gradients_and_precision(kind: str) -> None:
    layer = mnvi.convert(built(kind), NOISE)
    x = torch.randn(2, 3) if kind in CELLS else torch.randn(3, 2, 3)
    precise = copy.deepcopy(layer).double()
    assert next(precise.parameters()).dtype == torch.float64
    exact = flat(precise(x.double()))[0]
    torch.testing.assert_close(flat(layer(x))[0].var.double(), exact.var, rtol=1e-3, atol=1e-6)  # tables in float32
    names, values = zip(*precise.named_parameters(), strict=True)

    def moments(*parameters: Tensor) -> tuple[Tensor, ...]:
        out = torch.func.functional_call(precise, dict(zip(names, parameters, strict=True)), (x.double(),))
        return tuple(t for value in flat(out) for t in (value.mean, value.var))

    assert torch.autograd.gradcheck(moments, [v.detach().requires_grad_() for v in values], fast_mode=True)


@EACH_KIND
def test_dropout_between_layers_in_training(kind: str) -> None:
    layer = mnvi.convert(built(kind, num_layers=2, dropout=0.5), NOISE)
    x = torch.randn(5, 2, 3)
    assert (layer.train()(x)[0].var > layer.eval()(x)[0].var).float().mean() > 0.9


@EACH_KIND
def test_inference_and_export(kind: str) -> None:
    layer = mnvi.convert(built(kind), NOISE).eval()
    x = torch.randn(2, 2, 3)
    out = layer(x)[0]
    fast = mnvi.optimize_for_inference(layer, compile=False)
    torch.testing.assert_close(fast(x)[0].var, out.var)
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x)[0].var, out.var)


def test_a_random_input_and_a_deterministic_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 4))
    converted = mnvi.convert(net, NOISE, only="0")
    out, _ = converted(torch.randn(5, 2, 3))
    assert out.var.min() > 0 and len(mnvi.bayesian_layers(converted)) == 1


def test_a_whole_network_with_embedding_and_lstm_trains() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm, self.head = nn.Embedding(7, 3), nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.lstm(self.embedding(tokens))[0][:, -1])

    torch.manual_seed(0)
    net = mnvi.convert(Reader(), NOISE)
    objective = mnvi.Objective(net, mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=32, kappa=0.01))
    tokens = torch.randint(7, (32, 6))
    labels = (tokens[:, -1] > 3).long()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        terms = objective(tokens, labels)
        optimizer.zero_grad()
        terms.loss.backward()
        optimizer.step()
        losses.append(terms.nll.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert [row.name for row in mnvi.summary(net) if row.bayesian] == ["embedding", "lstm.ih_l0", "lstm.hh_l0", "head"]


def test_what_is_not_supported_is_named() -> None:
    layer = mnvi.convert(built("LSTM"), NOISE)
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    with pytest.raises(TypeError, match="a PackedSequence is not supported"):
        layer(packed)
    with pytest.raises(ValueError, match="expected an input of 2 or 3 dimensions, got 4"):
        layer(torch.randn(1, 2, 3, 3))
    with pytest.raises(ValueError, match="expected an input of 1 or 2 dimensions, got 3"):
        mnvi.convert(built("GRUCell"), NOISE)(torch.randn(2, 2, 3))


def test_the_given_layer_stays_torchs() -> None:
    plain = built("LSTM")
    mnvi.convert(plain, NOISE)
    assert type(plain) is nn.LSTM and len(plain.all_weights[0]) == 4
    other = copy.deepcopy(plain)
    take_over(other)
    assert [len(weights) for weights in other.all_weights] == [2, 2]
    other.flatten_parameters()
