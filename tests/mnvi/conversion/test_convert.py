"""Model in, Bayesian model out: what is converted, what is kept, what is refused."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import mnvi
from mnvi.layers.base import BayesianLayer

NOISE = mnvi.MultiplicativeNoise(prior_variance=0.1)
FIELD = mnvi.MeanField(prior_variance=0.1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2, bias=False)})

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(2).sum(-1)
        return self.heads["a"](x) + self.heads["b"](x)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def names_of_bayesian(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, BayesianLayer)]


def test_given_model_is_left_as_it_was() -> None:
    net = Block().train()
    before = copy.deepcopy(net.state_dict())
    identities = {name: id(p) for name, p in net.named_parameters()}
    converted = mnvi.convert(net, NOISE)
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.add_(1)
    converted(torch.randn(2, 3, 5, 5))
    assert {name: id(p) for name, p in net.named_parameters()} == identities
    assert net.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not names_of_bayesian(net) and type(net.conv) is nn.Conv2d and net.training


def test_nested_containers_are_converted_with_their_values_and_names() -> None:
    net = nn.ModuleDict({"list": nn.ModuleList([Block(), nn.Sequential(nn.Sequential(nn.Linear(2, 2)))])})
    converted = mnvi.convert(net, NOISE)
    assert names_of_bayesian(converted) == ["list.0.conv", "list.0.heads.a", "list.0.heads.b", "list.1.0.0"]
    state = converted.state_dict()
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    extra = set(state) - set(net.state_dict())
    assert extra == {f"{name}.rho" for name in names_of_bayesian(converted)}


def test_converted_model_runs_and_has_gradients_everywhere() -> None:
    for posterior in (NOISE, FIELD, mnvi.SharedMeanField(0.1)):
        converted = mnvi.convert(Block(), posterior)
        out = converted(torch.randn(2, 3, 5, 5))
        (out.mean.square().sum() + out.var.sum() + mnvi.kl_divergence(converted)).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in converted.parameters())


def test_single_layer_is_a_model() -> None:
    layer = mnvi.convert(nn.Linear(3, 2), NOISE)
    assert type(layer) is mnvi.layers.Linear and isinstance(layer, nn.Linear)
    assert layer(torch.ones(1, 3)).shape == (1, 2)


def test_all_kinds_become_their_own_kind() -> None:
    for name in ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"):
        layer = mnvi.convert(getattr(nn, name)(2, 2, 1), NOISE)
        assert type(layer) is getattr(mnvi.layers, name)


def test_mode_hooks_and_other_attributes_are_kept_on_the_copy() -> None:
    net = mlp().eval()
    net[0].note = "kept"
    seen = []
    net[2].register_forward_hook(lambda module, args, out: seen.append(type(out).__name__))
    net[2].register_forward_pre_hook(lambda module, args: seen.append(type(module).__name__))
    converted = mnvi.convert(net, NOISE)
    assert not converted.training and not converted[0].training and converted[0].note == "kept"
    converted(torch.ones(1, 3))
    assert seen == ["Linear", "Gaussian"]


def test_mode_may_differ_from_module_to_module() -> None:
    net = mlp().train()
    net[2].eval()
    converted = mnvi.convert(net, NOISE)
    assert [module.training for module in converted] == [True, True, False, True, True]


def test_new_parameters_follow_the_weights_dtype_and_device() -> None:
    for posterior in (NOISE, FIELD, mnvi.SharedMeanField(0.1)):
        for options in ({"dtype": torch.float64}, {"dtype": torch.bfloat16}, {"device": "meta"}):
            layer = mnvi.convert(nn.Linear(3, 2, **options), posterior)
            assert len({(p.dtype, p.device) for p in layer.parameters()}) == 1


def test_frozen_weights_stay_frozen_and_the_posterior_can_be_learnt() -> None:
    net = mlp().requires_grad_(False)
    converted = mnvi.convert(net, NOISE)
    trainable = {name for name, p in converted.named_parameters() if p.requires_grad}
    assert trainable == {"0.rho", "2.rho", "4.rho"}
    out = converted(torch.ones(1, 3))
    (out.var.sum() + mnvi.kl_divergence(converted)).backward()
    assert converted[0].rho.grad is not None and converted[0].weight.grad is None


def test_module_used_twice_is_converted_once() -> None:
    shared = nn.Linear(3, 3)
    converted = mnvi.convert(nn.Sequential(shared, nn.ReLU(), shared), NOISE)
    assert converted[0] is converted[2] and len(mnvi.bayesian_layers(converted)) == 1
    assert converted(torch.ones(1, 3)).shape == (1, 3)


@pytest.mark.parametrize("posterior", [NOISE, mnvi.SharedMeanField(0.1)], ids=["noise", "shared"])
def test_tied_weights_share_the_posterior_and_keep_their_own_biases(posterior: mnvi.Posterior) -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    converted = mnvi.convert(nn.Sequential(first, second), posterior)
    name = "rho" if posterior is NOISE else "log_var"
    assert converted[0].weight is converted[1].weight
    assert getattr(converted[0], name) is getattr(converted[1], name)
    assert converted[0].bias is not converted[1].bias
    assert len(list(converted.parameters())) == 4


def test_tied_weights_and_biases_share_a_mean_field() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight, second.bias = first.weight, first.bias
    converted = mnvi.convert(nn.Sequential(first, second), FIELD)
    assert converted[0].log_var is converted[1].log_var and converted[0].bias_log_var is converted[1].bias_log_var
    one = mnvi.convert(first, FIELD)
    torch.testing.assert_close(mnvi.kl_divergence(converted), mnvi.kl_divergence(one))


def test_tied_weights_with_separate_biases_are_refused_for_mean_field() -> None:
    for bias in (True, False):
        first, second = nn.Linear(3, 3), nn.Linear(3, 3, bias=bias)
        second.weight = first.weight
        with pytest.raises(ValueError, match="layer '1' shares its weight but not its bias"):
            mnvi.convert(nn.Sequential(first, second), FIELD)


def test_tied_weights_have_one_posterior() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    with pytest.raises(ValueError, match="layer '1' shares its weight with a layer of another kind or posterior"):
        mnvi.convert(nn.Sequential(first, second), {"0": NOISE, "1": FIELD})


def test_tied_weight_beside_a_deterministic_layer_stays_tied() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    converted = mnvi.convert(nn.Sequential(first, second), NOISE, skip="1")
    assert converted[0].weight is converted[1].weight and not isinstance(converted[1], BayesianLayer)
    assert converted(torch.ones(1, 3)).shape == (1, 3)


SELECTIONS: dict[str, tuple[dict, list[str]]] = {
    "only a name": ({"only": "conv"}, ["conv"]),
    "only a pattern": ({"only": "heads.*"}, ["heads.a", "heads.b"]),
    "only a class": ({"only": nn.Conv2d}, ["conv"]),
    "only a function": ({"only": lambda name, module: module.bias is None}, ["heads.b"]),
    "only several": ({"only": ["conv", lambda name, module: name.endswith("b")]}, ["conv", "heads.b"]),
    "only a tuple": ({"only": (nn.Conv2d, "heads.a")}, ["conv", "heads.a"]),
    "skip a name": ({"skip": "conv"}, ["heads.a", "heads.b"]),
    "skip a class": ({"skip": nn.Linear}, ["conv"]),
    "skip several": ({"skip": ["conv", "*.b"]}, ["heads.a"]),
    "skip wins": ({"only": "heads.*", "skip": "*.a"}, ["heads.b"]),
}


@pytest.mark.parametrize("selection", list(SELECTIONS.values()), ids=list(SELECTIONS))
def test_selection(selection: tuple[dict, list[str]]) -> None:
    arguments, expected = selection
    converted = mnvi.convert(Block(), NOISE, **arguments)
    assert names_of_bayesian(converted) == expected
    assert converted(torch.randn(2, 3, 5, 5)).shape == (2, 2)


def test_posterior_by_pattern_first_match_counts_and_no_match_stays_deterministic() -> None:
    net = mlp()
    mixed = mnvi.convert(net, {"4": FIELD, "[24]": NOISE})
    assert names_of_bayesian(mixed) == ["2", "4"]
    assert (mixed[2].posterior, mixed[4].posterior) == (NOISE, FIELD)
    assert type(mixed[0]) is nn.Linear
    assert mnvi.convert(net, {"*": NOISE, "4": FIELD})[4].posterior == NOISE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": "layer9"}, "only='layer9' matches none"),
        ({"skip": ["0", "layer9.*"]}, r"skip='layer9\.\*' matches none"),
        ({"only": nn.Conv2d}, "only=<class 'torch.nn.modules.conv.Conv2d'> matches none"),
        ({"posterior": {"0": NOISE, "head": FIELD}}, "posterior='head' matches none"),
    ],
)
def test_pattern_that_matches_nothing_is_named_with_the_layers_there_are(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        mnvi.convert(mlp(), **{"posterior": NOISE, **arguments})
    assert "'0', '2', '4'" in str(caught.value)


@pytest.mark.parametrize("arguments", [{"skip": "*"}, {"only": []}, {"only": "0", "skip": "0"}])
def test_selection_that_leaves_nothing_is_refused(arguments: dict) -> None:
    with pytest.raises(ValueError, match="there is no layer to convert"):
        mnvi.convert(mlp(), NOISE, **arguments)


def test_model_without_convertible_layers_is_refused() -> None:
    for net in (nn.ReLU(), nn.Sequential(nn.BatchNorm2d(3)), nn.EmbeddingBag(3, 4)):
        with pytest.raises(ValueError, match="there is no layer to convert; layers must be Linear, Conv1d"):
            mnvi.convert(net, NOISE)


def hooked(apply: Callable[[nn.Module], nn.Module]) -> nn.Sequential:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates the older of the two
        return nn.Sequential(nn.Linear(3, 3), apply(nn.Linear(3, 2)))


class Custom(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight.abs(), self.bias)


REFUSED = {
    "old spectral norm": (lambda: hooked(nn.utils.spectral_norm), "computes its weight in a hook"),
    "lazy": (lambda: nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(2)), "has no weights yet"),
    "subclass": (lambda: nn.Sequential(nn.Linear(3, 3), Custom(3, 2)), "in a forward of its own"),
    "converted": (lambda: nn.Sequential(nn.Linear(3, 3), mnvi.convert(nn.Linear(3, 2), NOISE)), "posterior already"),
}


@pytest.mark.parametrize(("build", "message"), list(REFUSED.values()), ids=list(REFUSED))
def test_layer_that_cannot_be_converted_is_named(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        mnvi.convert(build(), NOISE)
    assert "layer '1'" in str(caught.value)


@pytest.mark.parametrize("name", ["old spectral norm", "subclass", "converted"])
def test_layer_that_cannot_be_converted_can_be_skipped(name: str) -> None:
    converted = mnvi.convert(REFUSED[name][0](), NOISE, skip="1")
    assert isinstance(converted[0], BayesianLayer)
    assert converted[0](torch.ones(1, 3)).var.min() > 0


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        return self.last


@pytest.mark.parametrize("use", [lambda net: mnvi.convert(net, NOISE), mnvi.optimize_for_inference])
def test_a_tensor_that_stands_in_the_way_of_a_copy_is_named(use) -> None:
    net = nn.Sequential(Remembering())
    net(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"cannot be copied; 0\.last was computed and holds a gradient graph"):
        use(net)


def test_pruned_layer_is_refused_until_pruning_is_final() -> None:
    net = mlp()
    prune.l1_unstructured(net[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"layer '0' \(Linear\) is pruned; .*prune\.remove"):
        mnvi.convert(net, NOISE)
    prune.remove(net[0], "weight")
    assert (mnvi.convert(net, NOISE)[0].weight == 0).any()


def test_layer_with_a_patched_forward_is_refused() -> None:
    net = mlp()
    net[2].forward = lambda x: x
    with pytest.raises(ValueError, match=r"layer '2' .* in a forward of its own"):
        mnvi.convert(net, NOISE)


def test_lazy_layer_converts_after_its_first_call() -> None:
    net = nn.Sequential(nn.LazyLinear(2))
    net(torch.ones(1, 3))
    assert mnvi.convert(net, NOISE)(torch.ones(1, 3)).shape == (1, 2)


def test_removed_weight_norm_converts() -> None:
    net = hooked(nn.utils.weight_norm)
    nn.utils.remove_weight_norm(net[1])
    x = torch.randn(2, 3)
    torch.testing.assert_close(mnvi.convert(net, NOISE)(x).mean, net(x))


def test_arguments_of_a_wrong_type_are_named() -> None:
    with pytest.raises(TypeError, match=r"convert: model must be a torch.nn.Module, got function"):
        mnvi.convert(lambda x: x, NOISE)
    for wrong in (3, "noise", mnvi.MeanField, None):
        with pytest.raises(TypeError, match="convert: posterior must be"):
            mnvi.convert(mlp(), wrong)
    with pytest.raises(TypeError, match=r"convert: posterior\['2'\] must be .* got 1\.0"):
        mnvi.convert(mlp(), {"*": NOISE, "2": 1.0})


def test_converted_model_can_be_copied_and_pickled() -> None:
    converted = mnvi.convert(Block(), {"conv": NOISE, "*": FIELD}).eval()
    x = torch.randn(2, 3, 5, 5)
    out = converted(x)
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert torch.equal(other(x).mean, out.mean) and torch.equal(other(x).var, out.var)
        assert torch.equal(mnvi.kl_divergence(other), mnvi.kl_divergence(converted))
        assert not {id(p) for p in other.parameters()} & {id(p) for p in converted.parameters()}


def test_copy_keeps_tied_weights_tied() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    converted = mnvi.convert(nn.Sequential(first, second), NOISE)
    for other in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert other[0].weight is other[1].weight and other[0].rho is other[1].rho


def test_deterministic_checkpoint_loads_into_the_converted_model() -> None:
    trained, converted = Block(), mnvi.convert(Block(), NOISE)
    report = converted.load_state_dict(trained.state_dict(), strict=False)
    assert set(report.missing_keys) == {"conv.rho", "heads.a.rho", "heads.b.rho"} and not report.unexpected_keys
    assert torch.equal(converted.conv.weight, trained.conv.weight)


def test_zero_noise_is_the_given_model() -> None:
    net = Block().eval()
    converted = mnvi.convert(net, mnvi.MultiplicativeNoise(1.0, init_rho=-200.0))
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(converted(x).mean, net(x))
    assert converted(x).var.max() <= 1e-12


def test_divergence_of_a_deterministic_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no layer of this model has a posterior; give it one with mnvi.convert"):
        mnvi.kl_divergence(mlp())


def test_layers_after_conversion_follow_to() -> None:
    converted = mnvi.convert(mlp(), FIELD).double()
    assert {p.dtype for p in converted.parameters()} == {torch.float64}
    assert converted(torch.ones(1, 3, dtype=torch.float64)).dtype == torch.float64
