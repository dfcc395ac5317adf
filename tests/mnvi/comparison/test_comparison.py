"""compare_with_sampling and drawn_weights, against naive references."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import mnvi
from mnvi.comparison import drawn_weights
from tests.networks import POSTERIORS, disturb_batch_norms

NOISE = mnvi.MultiplicativeNoise(prior_variance=1.0)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def convolutional() -> nn.Module:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3)
    )
    disturb_batch_norms(net)
    return net


def drawn_by_hand(net: nn.Module, bayesian: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """The state of the deterministic network with one draw of its weights, layer by layer."""
    state = dict(net.state_dict())
    for name, layer in bayesian.named_modules():
        if isinstance(layer, mnvi.layers.BayesianLayer):
            noise = torch.randn(layer.weight.shape, generator=generator)
            state[f"{name}.weight"] = layer.weight.detach() + layer.weight_variance().detach().sqrt() * noise
            if (spread := layer.bias_variance()) is not None:
                noise = torch.randn(spread.shape, generator=generator)
                state[f"{name}.bias"] = layer.bias.detach() + spread.detach().sqrt() * noise
    return state


@pytest.mark.parametrize("posterior", POSTERIORS.values(), ids=POSTERIORS)
def test_drawn_weights_give_the_deterministic_network_with_these_weights(posterior: mnvi.Posterior) -> None:
    net, x = convolutional().eval(), torch.randn(5, 2, 6, 6)
    bayesian = mnvi.convert(net, posterior)
    with drawn_weights(bayesian, seeded()):
        out = bayesian(x)
    expected = functional_call(net, drawn_by_hand(net, bayesian, seeded()), (x,))
    assert torch.allclose(out, expected, atol=1e-5)


def test_tied_weights_have_one_draw() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    bayesian = mnvi.convert(net, NOISE)
    with drawn_weights(bayesian):
        assert torch.equal(bayesian[0].posterior.weight, bayesian[1].posterior.weight)
        assert not torch.equal(bayesian[0].posterior.weight, net[0].weight)


class Conv1D(nn.Module):
    """Looks like Hugging Face's layer, which stores its weight as [in, out]."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def test_computed_weights_that_are_tied_have_one_draw() -> None:
    net = nn.Sequential(Conv1D(3, 3), Conv1D(3, 3))
    net[1].weight = net[0].weight
    bayesian = mnvi.convert(net, NOISE)
    with drawn_weights(bayesian):
        assert torch.equal(bayesian[0].posterior.weight, bayesian[1].posterior.weight)
        assert not torch.equal(bayesian[0].posterior.weight, net[0].weight.T)


def test_a_gaussian_meets_no_drawn_weights() -> None:
    layer = mnvi.convert(nn.Linear(3, 2), NOISE)
    with drawn_weights(layer), pytest.raises(TypeError, match="got a Gaussian"):
        layer(mnvi.Gaussian(torch.zeros(1, 3), torch.ones(1, 3)))


def test_means_deviations_and_their_errors_are_those_of_stored_samples() -> None:
    net, x = convolutional().eval(), torch.randn(4, 2, 6, 6)
    bayesian = mnvi.convert(net, NOISE)
    output = mnvi.compare_with_sampling(bayesian, x, 50, generator=seeded()).output
    generator = seeded()
    samples = torch.stack(
        [functional_call(net, drawn_by_hand(net, bayesian, generator), (x,)).double() for _ in range(50)]
    )
    variance = samples.var(0)
    fourth = (samples - samples.mean(0)).pow(4).mean(0)
    variance_error = ((fourth - samples.var(0, correction=0).square()) / 50).sqrt()
    for found, expected in (
        (output.predicted_mean, bayesian(x).mean.double()),
        (output.predicted_std, bayesian(x).std.double()),
        (output.sampled_mean, samples.mean(0)),
        (output.sampled_std, variance.sqrt()),
        (output.mean_error, (variance / 50).sqrt()),
        (output.std_error, variance_error / (2 * variance.sqrt())),
    ):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_the_moments_of_one_layer_are_those_of_samples() -> None:
    compared = mnvi.compare_with_sampling(mnvi.convert(nn.Linear(20, 10), NOISE).eval(), torch.randn(4, 20), 1000)
    output = compared.output
    assert not compared.layers
    assert ((output.predicted_mean - output.sampled_mean).abs() < 5 * output.mean_error).all()
    assert ((output.predicted_std - output.sampled_std).abs() < 5 * output.std_error).all()
    assert torch.allclose(output.std_error, output.sampled_std / 2000**0.5, rtol=0.3)  # the value for Gaussians
    row = output.row()
    assert abs(row["std_ratio_median"] - 1) < 0.05 and 0.5 < row["mean_off_errors"] < 1.5


def test_all_positions_have_the_same_drawn_weights() -> None:
    net = nn.Sequential(nn.Conv2d(1, 8, 1), nn.AdaptiveAvgPool2d(1))
    bayesian = mnvi.convert(net, NOISE).eval()
    compared = mnvi.compare_with_sampling(bayesian, torch.ones(2, 1, 4, 4), generator=seeded())
    assert abs(compared["0"].row()["std_ratio_median"] - 1) < 0.1
    # Equal inputs give equal outputs at all 16 positions, so the true deviation of their mean is that of one of them.
    assert torch.allclose(compared.output.sampled_std.flatten(1), compared["0"].sampled_std[..., 0, 0], rtol=1e-4)


def test_rows_are_the_modules_in_the_order_in_which_they_run_each_once() -> None:
    bayesian = mnvi.convert(nn.Sequential(convolutional(), nn.Softmax(-1)), NOISE).eval()
    compared = mnvi.compare_with_sampling(bayesian, torch.randn(2, 2, 6, 6), 3)
    # dropout in evaluation mode and the inner Sequential return what they got
    assert [layer.name for layer in compared.compared] == ["0.0", "0.1", "0.2", "0.4", "0.5", "1", "output"]
    assert [layer.kind for layer in compared.compared][1:3] == ["BatchNorm2d", "ReLU"]
    assert (compared["0.2"].sampled_mean >= 0).all() and (compared["0.1"].sampled_mean < 0).any()


def test_a_module_that_runs_twice_has_two_rows() -> None:
    relu = nn.ReLU()
    bayesian = mnvi.convert(nn.Sequential(nn.Linear(3, 3), relu, nn.Linear(3, 3), relu), NOISE).eval()
    names = [layer.name for layer in mnvi.compare_with_sampling(bayesian, torch.randn(2, 3), 3).layers]
    assert names == ["0", "1", "2", "1 (call 2)"]


def test_chunks_of_examples_do_not_change_the_result() -> None:
    bayesian, x = mnvi.convert(convolutional(), NOISE).eval(), torch.randn(5, 2, 6, 6)
    whole = mnvi.compare_with_sampling(bayesian, x, 20, generator=seeded())
    parts = mnvi.compare_with_sampling(bayesian, x, 20, chunk=2, generator=seeded())
    for one, other in zip(whole.compared, parts.compared, strict=True):
        assert one.name == other.name and one.shape == other.shape == one.sampled_std.shape
        assert torch.allclose(one.sampled_std, other.sampled_std, rtol=1e-4, atol=1e-6)
        assert torch.allclose(one.predicted_mean, other.predicted_mean, rtol=1e-4, atol=1e-6)


def test_large_outputs_are_watched_at_some_entries() -> None:
    bayesian, x = mnvi.convert(convolutional(), NOISE).eval(), torch.randn(5, 2, 6, 6)
    compared = mnvi.compare_with_sampling(bayesian, x, 20, max_entries=30, generator=seeded())
    assert compared["0"].sampled_mean.shape == (30,) and compared["0"].shape == (5, 4, 4, 4)
    everything = bayesian[0](x).mean.flatten().double()
    assert torch.isin(compared["0"].predicted_mean, everything).all()
    assert ((compared["0"].predicted_mean - compared["0"].sampled_mean).abs() < 6 * compared["0"].mean_error).all()
    assert compared.output.sampled_mean.shape == (5, 3)


def test_a_generator_repeats_the_result_and_leaves_the_global_one_alone() -> None:
    bayesian, x = mnvi.convert(nn.Linear(3, 2), NOISE).eval(), torch.randn(2, 3)
    state = torch.get_rng_state()
    one, same = (mnvi.compare_with_sampling(bayesian, x, 5, generator=seeded()).output for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one.sampled_mean, same.sampled_mean)
    assert not torch.equal(one.sampled_mean, mnvi.compare_with_sampling(bayesian, x, 5).output.sampled_mean)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any, *, y: Any) -> dict[str, Any]:
        return {"sum": self.first(x) + self.second(y), "rest": [x, self.first(x)]}


def test_inputs_by_keyword_and_outputs_in_containers() -> None:
    bayesian = mnvi.convert(Several(), NOISE).eval()
    compared = mnvi.compare_with_sampling(bayesian, {"x": torch.randn(4, 3), "y": torch.randn(4, 3)}, 5, chunk=2)
    assert [layer.name for layer in compared.outputs] == ["output['sum']", "output['rest'][1]"]
    assert compared.output.sampled_std.shape == (4, 2)


def test_random_inputs_are_drawn() -> None:
    net = mnvi.convert(nn.Linear(3, 200, bias=False), mnvi.MultiplicativeNoise(1.0, init_rho=-20.0)).eval()
    x = mnvi.Gaussian(torch.randn(2, 3), torch.full((2, 3), 0.5))
    output = mnvi.compare_with_sampling(net, x, 1000).output
    assert ((output.predicted_std - output.sampled_std).abs() < 5 * output.std_error).all()


@pytest.mark.parametrize("wrapped", ["dvi", "optimised", "compiled"])
def test_wrapped_models(wrapped: str) -> None:
    bayesian, x = mnvi.convert(mnvi.models.mlp(4), NOISE).eval(), torch.randn(6, 4)
    model = {
        "dvi": lambda: mnvi.DVI(bayesian).eval(),
        "optimised": lambda: mnvi.optimize_for_inference(bayesian, compile=False),
        "compiled": lambda: torch.compile(bayesian, backend="eager"),
    }[wrapped]()
    plain = mnvi.compare_with_sampling(bayesian, x, 30, generator=seeded())
    compared = mnvi.compare_with_sampling(model, x, 30, generator=seeded())
    assert [layer.name for layer in compared.compared] == [layer.name for layer in plain.compared]
    assert torch.allclose(compared.output.sampled_std, plain.output.sampled_std, rtol=1e-4)
    assert torch.allclose(compared.output.predicted_std, model(x).std.double(), rtol=1e-4)


def test_attention_with_drawn_weights() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    compared = mnvi.compare_with_sampling(mnvi.convert(encoder, NOISE).eval(), torch.randn(2, 4, 8), generator=seeded())
    names = [layer.name for layer in compared.layers]
    assert names.count("self_attn.in_proj") == 1 and "self_attn.in_proj (call 2)" not in names
    assert 0.8 < compared.output.row()["std_ratio_overall"] < 1.2


def test_the_model_stays_as_it_is_even_if_a_pass_fails() -> None:
    bayesian = mnvi.convert(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), NOISE).eval()
    before = {name: value.clone() for name, value in bayesian.state_dict().items()}
    mnvi.compare_with_sampling(bayesian, torch.randn(2, 3), 3)
    with pytest.raises(ValueError):
        mnvi.compare_with_sampling(bayesian, torch.randn(2, 5), 3)
    with pytest.raises(ValueError), drawn_weights(bayesian):
        bayesian(torch.randn(2, 5))
    assert all(layer.posterior is NOISE for layer in mnvi.bayesian_layers(bayesian))
    assert not any(module._forward_hooks for module in bayesian.modules())
    assert all(torch.equal(value, before[name]) for name, value in bayesian.state_dict().items())


class DependsOnValues(nn.Module):
    """Runs its second layer only where the first gave a Gaussian."""

    def __init__(self, other: bool) -> None:
        super().__init__()
        self.first, self.second, self.other = nn.Linear(3, 3), nn.Linear(3, 3), other

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        if isinstance(x, Tensor):
            return x[:1] if self.other else x
        return self.second(x)


def refused(case: str) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    layer, x = nn.Linear(3, 2), torch.randn(2, 3)
    if case == "training":
        return mnvi.convert(layer, NOISE).train(), x, {}
    if case == "part in training":
        model = mnvi.convert(nn.Sequential(layer, nn.Dropout()), NOISE).eval()
        model[1].train()
        return model, x, {}
    if case == "deterministic":
        return layer.eval(), x, {}
    if case == "sampled":
        return mnvi.convert(layer, mnvi.Sampled(NOISE)).eval(), x, {}
    if case in ("other modules", "other shape"):
        return mnvi.convert(DependsOnValues(case == "other shape"), NOISE).eval(), x, {}
    return mnvi.convert(layer, NOISE).eval(), x, {"one sample": {"num_samples": 1}, "no chunk": {"chunk": 0}}[case]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("training", r"the model is in training mode.*model\.eval\(\)"),
        ("part in training", "module '1' is in training mode"),
        ("deterministic", r"no layer of the model has a posterior.*mnvi\.convert"),
        ("sampled", "the model's output is no Gaussian"),
        ("other modules", "module 'second' runs in the prediction, but in only 0 of 200"),
        ("other shape", r"module '' returns shape \(1, 3\), but its prediction has shape \(2, 3\)"),
        ("one sample", "num_samples=1 must be a whole number >= 2"),
        ("no chunk", "chunk=0 must be a whole number >= 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(case: str, message: str) -> None:
    model, x, settings = refused(case)
    with pytest.raises((ValueError, RuntimeError), match=message):
        mnvi.compare_with_sampling(model, x, **settings)


def test_chunks_need_one_number_of_examples() -> None:
    bayesian = mnvi.convert(Several(), NOISE).eval()
    with pytest.raises(ValueError, match=r"first dimensions of the inputs are \[1, 4\]; leave chunk out"):
        mnvi.compare_with_sampling(bayesian, {"x": torch.randn(4, 3), "y": torch.randn(1, 3)}, 5, chunk=2)


def test_the_table_has_a_line_for_every_row() -> None:
    bayesian = mnvi.convert(mnvi.models.mlp(4), NOISE).eval()
    compared = mnvi.compare_with_sampling(bayesian, torch.randn(6, 4), 30, generator=seeded())
    lines = str(compared).splitlines()
    assert len(lines) == 3 + len(compared.rows()) and len({len(line) for line in lines[2:]}) == 1
    assert "30 samples" in lines[0] and lines[-1].startswith("output")
    assert f"{compared.rows()[-1]['std_ratio_median']:.3f}" in lines[-1]
    assert json.loads(json.dumps(compared.rows()))[0]["layer"] == compared.layers[0].name
    with pytest.raises(KeyError, match="no module 'missing' was compared; there are"):
        compared["missing"]


def test_units_that_never_move_do_not_count() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    with torch.no_grad():
        net[0].bias.copy_(torch.tensor([-1e6, -1e6, 1e3, 1e3]))
    compared = mnvi.compare_with_sampling(mnvi.convert(net, NOISE).eval(), torch.randn(1, 3))
    assert compared.output.std_ratio.shape == (2,) and compared.output.row()["entries"] == 4
    with torch.no_grad():
        net[0].bias.fill_(-1e6)
    dead = mnvi.compare_with_sampling(mnvi.convert(net, NOISE).eval(), torch.randn(1, 3))
    assert str(dead.output.row()["std_ratio_median"]) == "nan" and "nan" in str(dead)


def test_a_figure_with_matplotlib_and_an_error_without(monkeypatch: pytest.MonkeyPatch) -> None:
    bayesian = mnvi.convert(mnvi.models.mlp(4), NOISE).eval()
    compared = mnvi.compare_with_sampling(bayesian, torch.randn(6, 4), 10)
    left, right = compared.plot().axes
    assert [label.get_text() for label in left.get_yticklabels()] == [layer.name for layer in compared.compared]
    assert right.get_xlabel() == "sampled standard deviation of the output"
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        compared.plot()
