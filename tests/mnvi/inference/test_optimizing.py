import copy
import io
import logging
import pickle

import pytest
import torch
from networks import MODELS, POSTERIORS, disturb_batch_norms, trained
from torch import nn

import mnvi
from mnvi.inference.folding import FoldedBatchNorm

RTOL = 1e-5  # of the largest entry: float32 sums in another order, through up to 21 layers


def batch_norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def assert_same(actual, expected, rtol=RTOL):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * expected.detach().abs().max().item())
    else:
        assert type(actual) is type(expected)
        assert_same(actual.mean, expected.mean, rtol)
        assert_same(actual.var, expected.var, rtol)


def assert_optimised_equals_plain(model, x, **settings):
    with torch.no_grad():
        fast = mnvi.optimize_for_inference(model, compile=False, **settings)
        assert_same(fast(x), model.eval()(x))
    return fast


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("name", MODELS)
def test_optimised_model_gives_the_same_moments(name, posterior):
    factory, shape = MODELS[name]
    model = trained(factory(), POSTERIORS[posterior], shape)
    x = torch.randn(3, *shape)
    assert_optimised_equals_plain(model, x)
    fast = assert_optimised_equals_plain(model, x, channels_last=True)
    assert batch_norms(fast) == 0
    for layer in mnvi.bayesian_layers(fast):
        if layer.weight.dim() == 4:
            square = layer.squared_weight if posterior == "mean field" else layer.second_moment
            assert square.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_optimised_model_takes_a_gaussian(posterior):
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    model = trained(net, POSTERIORS[posterior], (2, 5, 5))
    assert_optimised_equals_plain(model, mnvi.Gaussian(torch.randn(3, 2, 5, 5), torch.rand(3, 2, 5, 5)))


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), nn.BatchNorm1d, (6,)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), nn.BatchNorm1d, (6,)),
    "conv1d": (lambda: nn.Conv1d(6, 4, 3, groups=2, dilation=2), nn.BatchNorm1d, (6, 9)),
    "conv2d": (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d, (6, 5, 5)),
    "conv2d reflecting": (lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d, (6, 5, 5)),
    "conv2d same": (lambda: nn.Conv2d(6, 4, (1, 3), padding="same"), nn.BatchNorm2d, (6, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(6, 4, 2, bias=False), nn.BatchNorm3d, (6, 3, 3, 3)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(6, 4, 3, groups=2), nn.BatchNorm1d, (6, 4)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), nn.BatchNorm2d, (6, 4, 4)),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(6, 4, 2, output_padding=0), nn.BatchNorm3d, (6, 3, 3, 3)),
}


@pytest.mark.parametrize("posterior", [*POSTERIORS, None])
@pytest.mark.parametrize("kind", LAYERS)
def test_batch_norm_folds_into_every_kind_of_layer(kind, posterior):
    layer, norm, shape = LAYERS[kind]
    net = nn.Sequential(layer(), norm(4), nn.ReLU(), nn.Flatten())
    model = net if posterior is None else trained(net, POSTERIORS[posterior], shape)
    disturb_batch_norms(model)
    fast = assert_optimised_equals_plain(model.eval(), torch.randn(3, *shape), channels_last=True)
    assert isinstance(fast[1], FoldedBatchNorm)
    if posterior is not None:
        assert_optimised_equals_plain(model, mnvi.Gaussian(torch.randn(3, *shape), torch.rand(3, *shape)))


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kind", LAYERS)
def test_optimised_layer_still_knows_its_weight_variance(kind, posterior):
    layer, norm, shape = LAYERS[kind]
    model = trained(nn.Sequential(layer(), norm(4)), POSTERIORS[posterior], shape)
    scale = model[1].weight / (model[1].running_var + model[1].eps).sqrt()
    frozen = mnvi.optimize_for_inference(model, compile=False)[0]
    unscaled = frozen.weight / model[0].weight  # the scale of each weight's output
    assert_same(frozen.weight_variance(), (model[0].weight_variance() * unscaled.square()).detach())
    if model[0].bias_variance() is not None:
        assert_same(frozen.bias_variance(), (model[0].bias_variance() * scale.square()).detach())


def test_batch_norm_without_affine_parameters_folds():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, affine=False))
    disturb_batch_norms(net)
    assert batch_norms(assert_optimised_equals_plain(net.eval(), torch.randn(2, 2, 5, 5))) == 0


def test_torchvision_resnet18_folds_all_batch_norms():
    from mnvi._torchvision import torchvision

    model = trained(torchvision.models.resnet18(num_classes=4), POSTERIORS["multiplicative"], (3, 32, 32))
    assert batch_norms(model) == 20
    assert batch_norms(assert_optimised_equals_plain(model, torch.randn(2, 3, 32, 32))) == 0


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x):
        x = self.conv(x)
        return self.norm(x) + x


class ConvTwice(TwoReaders):
    def forward(self, x):
        return self.norm(self.conv(self.conv(x)))


class NormTwice(TwoReaders):
    def forward(self, x):
        return self.norm(self.norm(self.conv(x)))


class WeightUsedElsewhere(TwoReaders):
    def forward(self, x):
        return self.norm(self.conv(x)) * self.conv.weight.sum()


class PairTwice(TwoReaders):
    def forward(self, x):
        return self.norm(self.conv(self.norm(self.conv(x)).relu()))


class OptionalArgument(TwoReaders):
    def forward(self, x, mask=None, scale=2.0):
        x = self.conv(x)
        return self.norm(x) * scale if mask is None else x * mask


@pytest.mark.parametrize("compile", [False, True])
def test_arguments_that_the_folding_was_not_made_for_are_refused(compile):
    net, x = mnvi.convert(OptionalArgument(), mnvi.MultiplicativeNoise(1.0)).eval(), torch.randn(2, 2, 4, 4)
    disturb_batch_norms(net)
    fast = mnvi.optimize_for_inference(net, compile=compile)
    assert batch_norms(fast) == 0
    for arguments in ((x,), (x, None), (x, None, 2.0)):
        assert_same(fast(*arguments), net(*arguments))
    assert_same(copy.deepcopy(fast)(x, mask=None), net(x))
    for given in ({"mask": torch.ones(4)}, {"scale": 3.0}):
        with pytest.raises(ValueError, match=rf"batch norms were folded for {next(iter(given))}="):
            fast(x, **given)


class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu())


class TwiceAsMuch(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * 2


@pytest.mark.parametrize("network", [TwoReaders, ConvTwice, NormTwice, WeightUsedElsewhere])
def test_batch_norm_stays_where_its_layer_serves_something_else_too(network, caplog):
    net = network()
    disturb_batch_norms(net)
    with caplog.at_level(logging.INFO, "mnvi"):
        fast = assert_optimised_equals_plain(net.eval(), torch.randn(2, 2, 3, 3))
    assert batch_norms(fast) == 1
    assert "1 of 1 batch norms could not be folded: norm" in caplog.text


@pytest.mark.parametrize("network", [PairTwice, OptionalArgument, TiedWeights])
def test_batch_norm_folds_where_every_use_is_the_pair(network):
    model = trained(network(), POSTERIORS["mean field"], (2, 3, 3))
    assert batch_norms(assert_optimised_equals_plain(model, torch.randn(2, 2, 3, 3))) == 0


def test_batch_norm_stays_behind_a_layer_with_a_forward_of_its_own():
    net = nn.Sequential(TwiceAsMuch(2, 3, 1), nn.BatchNorm2d(3))
    disturb_batch_norms(net)
    assert batch_norms(assert_optimised_equals_plain(net.eval(), torch.randn(2, 2, 3, 3))) == 1


def test_batch_norm_stays_behind_a_layer_with_a_hook():
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    net[0].register_forward_hook(lambda module, inputs, output: output.abs())
    disturb_batch_norms(net)
    assert batch_norms(assert_optimised_equals_plain(net.eval(), torch.randn(2, 2, 3, 3))) == 1


def test_batch_norm_without_running_statistics_stays():
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)).eval()
    assert batch_norms(assert_optimised_equals_plain(net, torch.randn(2, 2, 3, 3))) == 1


def test_batch_norm_over_another_dimension_than_the_units_is_not_passed_over():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()  # [batch, 3, 4]: the norm's channels are not units
    fast = mnvi.optimize_for_inference(net, compile=False)
    net(torch.randn(2, 3, 4))
    with pytest.raises(ValueError, match="2-dimensional values"):
        fast(torch.randn(2, 3, 4))


class Untraceable(TwoReaders):
    def forward(self, x):
        x = self.norm(self.conv(x))
        return x if x.shape[0] > 100 else x * 2


def test_model_that_cannot_be_traced_keeps_its_batch_norms_and_says_so(caplog):
    model = trained(Untraceable(), POSTERIORS["multiplicative"], (2, 3, 3))
    with caplog.at_level(logging.WARNING, "mnvi"):
        fast = assert_optimised_equals_plain(model, torch.randn(2, 2, 3, 3))
    assert batch_norms(fast) == 1
    assert "none of the 1 batch norms was folded: Untraceable cannot be traced" in caplog.text
    assert "noise" in fast.conv.state_dict()  # steps that need no graph still run


def test_nothing_is_said_about_a_model_that_folds_completely(caplog):
    with caplog.at_level(logging.DEBUG, "mnvi"):
        mnvi.optimize_for_inference(mnvi.models.resnet18(), compile=False)
    assert not caplog.records


@pytest.mark.parametrize(
    "uncertain",
    [
        mnvi.tune_noise,
        mnvi.methods.scale_temperature,
        lambda net, data: mnvi.methods.last_layer_laplace(net, data, prior_precision=1.0),
    ],
    ids=["tuned noise", "temperature", "laplace"],
)
def test_batch_norms_of_a_trained_network_fold_whatever_method_it_got(uncertain, caplog):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    disturb_batch_norms(net)
    x = torch.randn(40, 1, 4, 4)
    model = uncertain(net.eval(), (x, torch.randint(3, (40,))))
    with caplog.at_level(logging.INFO, logger="mnvi"):
        fast = mnvi.optimize_for_inference(model, compile=False)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules()) and not caplog.messages
    for out, expected in zip(moments(fast(x)), moments(model(x)), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-6)


def moments(out: mnvi.Gaussian | torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (out,) if isinstance(out, torch.Tensor) else (out.mean, out.var)


def test_given_model_is_left_as_it_was():
    model = trained(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)), POSTERIORS["mean field"], (2, 4, 4)).train()
    before = copy.deepcopy(model.state_dict())
    mnvi.optimize_for_inference(model, compile=False, channels_last=True)
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_optimised_model_asks_for_no_gradient_but_passes_the_inputs():
    model = trained(mnvi.models.mlp(3), POSTERIORS["multiplicative"], (3,))
    fast = mnvi.optimize_for_inference(model.train(), compile=False)
    assert not fast.training and not any(parameter.requires_grad for parameter in fast.parameters())
    x = torch.randn(4, 3, requires_grad=True)
    (ours,) = torch.autograd.grad(fast(x).var.sum(), x)
    (plain,) = torch.autograd.grad(model.eval()(x).var.sum(), x)
    assert_same(ours, plain)


def test_posterior_of_a_users_own_is_left_alone():
    class Own(mnvi.MultiplicativeNoise):
        pass

    model = trained(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)), Own(1.0), (2, 4, 4))
    fast = assert_optimised_equals_plain(model, torch.randn(2, 2, 4, 4))
    assert type(fast[0].posterior) is Own and batch_norms(fast) == 1


def test_kl_of_an_optimised_model_is_refused():
    fast = mnvi.optimize_for_inference(trained(mnvi.models.mlp(3), POSTERIORS["mean field"], (3,)), compile=False)
    with pytest.raises(TypeError, match="has no priors"):
        mnvi.kl_divergence(fast)


def test_what_is_not_a_module_is_refused():
    with pytest.raises(TypeError, match="Module, got function"):
        mnvi.optimize_for_inference(lambda x: x)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("compile", [False, True])
def test_copies_of_an_optimised_model_give_the_same(duplicate, compile):
    model = trained(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)), POSTERIORS["mean field"], (2, 4, 4))
    fast = mnvi.optimize_for_inference(model, compile=compile)
    x = torch.randn(2, 2, 4, 4)
    assert_same(duplicate(fast)(x), model(x))


def test_state_dict_of_an_optimised_model_loads_into_another():
    def fast(seed):
        torch.manual_seed(seed)
        model = trained(nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)), POSTERIORS["shared"], (2, 4, 4))
        return mnvi.optimize_for_inference(model)

    saved = io.BytesIO()
    first, second = fast(1), fast(2)
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second.load_state_dict(torch.load(saved, weights_only=True))
    assert list(first.state_dict()) == ["0.weight", "0.bias", "0.spread", "0.second_moment", "0.gain"]
    torch.testing.assert_close(second.state_dict(), first.state_dict(), rtol=0, atol=0)


def test_bfloat16_autocast_keeps_variances_in_float32():
    model = trained(mnvi.models.lenet(), POSTERIORS["multiplicative"], (1, 28, 28))
    fast = mnvi.optimize_for_inference(model, compile=False)
    x = torch.randn(2, 1, 28, 28)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out, plain = fast(x), model(x)
    assert out.mean.dtype == torch.bfloat16 and out.var.dtype == torch.float32
    assert_same(out.mean, plain.mean, rtol=0.05)  # bfloat16 has 8 bits
    assert_same(out.var, plain.var, rtol=0.05)


def test_optimised_network_inside_monte_carlo_and_ensembles():
    def net():
        net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
        disturb_batch_norms(net)
        return net

    x = torch.randn(2, 2, 4, 4)
    ensemble = mnvi.Ensemble([net(), net()]).eval()
    dropout = mnvi.mc_dropout(net(), num_samples=3, seed=0).eval()
    for model in (ensemble, dropout):
        fast = mnvi.optimize_for_inference(model, compile=False)
        assert batch_norms(fast) == 0
        assert_same(fast(x).values, model(x).values)


def test_optimised_sampled_posterior_draws_from_the_same_distribution():
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    model = trained(net, mnvi.Sampled(POSTERIORS["mean field"]), (2, 4, 4))
    with torch.no_grad():
        model[1].weight.abs_()  # a negative scale mirrors the draw
    fast = mnvi.optimize_for_inference(model, compile=False)
    x = torch.randn(2, 2, 4, 4)
    draws = []
    for network in (model, fast):
        torch.manual_seed(1)
        draws.append(network(x).detach())
    assert batch_norms(fast) == 0
    assert_same(draws[1], draws[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "posterior",
    [name if name == "multiplicative" else pytest.param(name, marks=pytest.mark.soak) for name in POSTERIORS],
)
def test_compiled_model_gives_the_same_for_any_batch_without_a_graph_break(posterior):
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    model = trained(net, POSTERIORS[posterior], (1, 6, 6))
    fast = mnvi.optimize_for_inference(model)
    torch._dynamo.utils.counters.clear()
    with torch.inference_mode():
        for batch in (4, 7, 9, 2):
            x = torch.randn(batch, 1, 6, 6)
            assert_same(fast(x), model(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # one size, then any size
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("settings", "last"), [({}, True), ({"compile": False}, False), ({"channels_last": False}, False)]
)
def test_channels_come_last_by_default_where_the_model_is_compiled(settings, last):
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3))
    fast = mnvi.optimize_for_inference(net, **settings)
    assert fast[0].weight.is_contiguous(memory_format=torch.channels_last) == last
    assert fast[1].weight.is_contiguous(memory_format=torch.channels_last_3d) == last


def test_what_torch_compile_returned_is_accepted():
    model = trained(mnvi.models.mlp(3), POSTERIORS["multiplicative"], (3,))
    fast = mnvi.optimize_for_inference(torch.compile(model), compile=False)
    x = torch.randn(2, 3)
    assert_same(fast(x), model(x))
