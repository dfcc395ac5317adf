"""Positions share weights: against sampled weights, through networks, compiled, in training and in pickles."""

import copy
import io

import pytest
import torch
from torch import nn

import mnvi
from mnvi.moments import position_weights
from mnvi.rules.fallbacks import listening

POSTERIORS = {
    "multiplicative": mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=-3.0),
    "mean field": mnvi.MeanField(prior_variance=1.0, init_log_var=-6.0),
    "shared mean field": mnvi.SharedMeanField(prior_variance=1.0, init_log_var=-6.0),
}


def sampled_variance(model: nn.Module, plain: nn.Module, x: torch.Tensor, num_samples: int) -> torch.Tensor:
    """Variance of a network's output over weights drawn from the posterior."""
    generator = torch.Generator().manual_seed(0)
    net = copy.deepcopy(plain).eval()
    modules = dict(net.named_modules())
    layers = [(modules[n], m) for n, m in model.named_modules() if isinstance(m, mnvi.layers.BayesianLayer)]
    outs = []
    with torch.no_grad():
        for _ in range(num_samples):
            for target, layer in layers:
                noise = torch.randn(layer.weight.shape, generator=generator, dtype=layer.weight.dtype)
                target.weight.copy_(layer.weight + layer.weight_variance().sqrt() * noise)
                if (spread := layer.bias_variance()) is not None:
                    noise = torch.randn(layer.bias.shape, generator=generator, dtype=layer.bias.dtype)
                    target.bias.copy_(layer.bias + spread.sqrt() * noise)
            outs.append(net(x))
    return torch.stack(outs).double().var(0)


def all_convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32),
        nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 5, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def images(size: int = 12) -> torch.Tensor:
    coarse = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    return nn.functional.interpolate(coarse, size=size, mode="bilinear") + 0.5


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_variance_of_an_average_agrees_with_sampled_weights(posterior):
    net, x = all_convolutional().eval(), images()
    model = mnvi.convert(net, POSTERIORS[posterior]).eval()
    expected = sampled_variance(model, net, x, 2000)
    with torch.no_grad():
        independent = (model(x).var.double() / expected).median()
        with mnvi.options(spatial="shared_weights"):
            shared = (model(x).var.double() / expected).median()
    assert independent < 0.3
    assert 0.85 < shared < 1.15


def test_the_default_stays_independent():
    model = mnvi.convert(nn.Conv2d(2, 3, 3), POSTERIORS["multiplicative"])
    assert model(images()).shared is None


def test_a_network_that_adds_no_positions_of_a_channel_does_not_change():
    """Neither an average nor a kernel sees two random entries of one channel."""
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(200, 3)
    )
    net, x = mnvi.convert(plain, POSTERIORS["multiplicative"]).eval(), images()
    with torch.no_grad():
        out = net(x)
        with mnvi.options(spatial="shared_weights"):
            shared = net(x)
    torch.testing.assert_close(shared.mean, out.mean)
    torch.testing.assert_close(shared.var, out.var)


def test_a_compiled_network_gives_the_same_without_graph_breaks():
    model = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).eval()
    x = images()
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(compiled.var, model(x).var)


def test_every_parameter_gets_a_gradient():
    model = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).train()
    with mnvi.options(spatial="shared_weights"):
        model(images()).var.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model[:-3].parameters())


def test_a_pickle_keeps_the_covariance():
    x = mnvi.Gaussian.trusted(torch.zeros(1, 2, 3), torch.ones(1, 2, 3), torch.ones(1, 2, 1))
    file = io.BytesIO()
    torch.save(x, file)
    again = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert torch.equal(again.shared, x.shared)
    assert torch.equal(copy.deepcopy(x).shared, x.shared)


def test_functions_that_fall_back_are_reported():
    x = mnvi.Gaussian.trusted(torch.zeros(1, 2, 3), torch.ones(1, 2, 3), torch.ones(1, 2, 1))
    names: list[str] = []
    with mnvi.options(spatial="shared_weights"), listening(names.append):
        torch.relu(x)
        torch.cumsum(x, -1)
    assert names == ["torch.cumsum"]


def shared_value(*shape: int, positions: tuple[int, ...], correlation: float = 0.5) -> mnvi.Gaussian:
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(shape, generator=generator).double()
    index = tuple(slice(1) if d in positions else slice(None) for d in range(len(shape)))
    var = torch.rand(mean[index].shape, generator=generator).double() + 0.5
    return mnvi.Gaussian.trusted(mean, var.expand(shape).clone(), correlation * var)


def drawn(x: mnvi.Gaussian, num_samples: int = 20_000) -> torch.Tensor:
    """Samples in which the positions of a channel have the covariance ``x.shared``."""
    assert x.shared is not None
    generator = torch.Generator().manual_seed(3)
    own = torch.randn(num_samples, *x.shape, generator=generator).double()
    common = torch.randn(num_samples, *x.shared.shape, generator=generator).double()
    return x.mean + (x.var - x.shared).sqrt() * own + x.shared.sqrt() * common


def covariance(samples: torch.Tensor, positions: tuple[int, ...]) -> torch.Tensor:
    """Mean covariance between two positions, for every other entry."""
    dims = tuple(d + 1 for d in positions)
    count = samples[0].numel() // samples[0].sum(positions).numel()
    return (samples.sum(dims).var(0) - samples.var(0).sum(positions)) / (count * (count - 1))


# name: (function, shape of the input, positions of the input, positions of the output)
RULES = {
    "batch norm": (nn.BatchNorm2d(3).double().eval(), (2, 3, 4, 4), (2, 3), (2, 3)),
    "sum with itself": (lambda x: x + x, (2, 3, 4, 4), (2, 3), (2, 3)),
    "known factor": (lambda x: x * torch.tensor([1.0, -2.0, 0.5]).view(3, 1, 1), (2, 3, 4, 4), (2, 3), (2, 3)),
    "negative": (lambda x: -x, (2, 3, 4), (2,), (2,)),
    "quotient": (lambda x: x / 2, (2, 3, 4), (2,), (2,)),
    "known matrix": (nn.Linear(3, 2).double(), (2, 5, 3), (1,), (1,)),
    "joined channels": (lambda x: torch.cat([x, 3 * x.detach()], 1), (2, 3, 4), (2,), (2,)),
    "half of the channels": (lambda x: x.chunk(2, 1)[1], (2, 4, 3), (2,), (2,)),
    "some positions": (lambda x: x[:, :, 1:3], (2, 3, 4), (2,), (2,)),
    "as tokens": (lambda x: x.flatten(2).transpose(1, 2), (2, 3, 4, 4), (2, 3), (1,)),
    "channels last": (lambda x: x.permute(0, 2, 3, 1), (2, 3, 4, 4), (2, 3), (1, 2)),
    "in heads": (lambda x: x.unflatten(-1, (2, 2)).transpose(1, 2), (2, 5, 4), (1,), (2,)),
    "half of the rows averaged": (lambda x: torch.mean(x, 2), (2, 3, 4, 4), (2, 3), (2,)),
    "padded with zeros": (lambda x: nn.functional.pad(x, (1, 1)), (2, 3, 6), (2,), (2,)),
}
AVERAGES = {
    "all positions": lambda x: torch.mean(x, (2, 3)),
    "sum": lambda x: torch.sum(x, (2, 3), keepdim=True),
    "positions and channels": lambda x: torch.mean(x, (1, 2, 3)),
    "rows": lambda x: torch.mean(x, -2),
    "windows": nn.AvgPool2d(2),
    "overlapping padded windows": nn.AvgPool2d(3, 2, padding=1),
    "adaptive": nn.AdaptiveAvgPool2d((3, 2)),
    "interpolated": lambda x: nn.functional.interpolate(x, size=(3, 7), mode="bilinear"),
    "attention": lambda x: torch.matmul(ATTENTION, x.flatten(2).transpose(1, 2)),
}
ATTENTION = torch.softmax(torch.randn(6, 16, generator=torch.Generator().manual_seed(5)), -1).double()


@pytest.mark.parametrize("name", RULES)
def test_the_covariance_of_linear_functions_agrees_with_samples(name):
    function, shape, before, after = RULES[name]
    x = shared_value(*shape, positions=before)
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        out = function(x)
        expected = covariance(torch.stack([function(s) for s in drawn(x, 4000)]), after)
    found = out.shared.squeeze(after)
    assert abs(found.mean() / expected.mean() - 1) < 0.1  # four standard errors
    assert ((found - expected).abs() < 0.1 * out.var.mean()).all()


@pytest.mark.parametrize("name", AVERAGES)
def test_the_variance_of_averages_agrees_with_samples(name):
    x = shared_value(2, 3, 4, 4, positions=(2, 3))
    function = AVERAGES[name]
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        out = function(x)
    expected = torch.stack([function(s) for s in drawn(x, 5000)]).var(0)
    assert ((out.var / expected - 1).abs() < 5 * (2 / 5000) ** 0.5).all()


# name: (makes a layer, shape of the input)
CONVOLUTIONS = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 5, padding=2), (2, 3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 5, 5)),
    "padded": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 4, 4)),
    "strided": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 6, 6)),
    "dilated": (lambda: nn.Conv2d(3, 4, 3, dilation=2), (2, 3, 7, 7)),
    "in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (2, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 3, 3, 3)),
    "circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 4, 4)),
    "as large as the input": (lambda: nn.Conv2d(3, 4, (3, 5), padding="same"), (2, 3, 6, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1), (2, 3, 4, 4)),
    "transposed in groups": (lambda: nn.ConvTranspose1d(4, 4, 4, stride=2, groups=2), (2, 4, 6)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_variance_of_convolutions_agrees_with_sampled_weights(name):
    torch.manual_seed(0)
    make, shape = CONVOLUTIONS[name]
    plain = make().double()
    with torch.no_grad():
        plain.weight.add_(0.1)  # taps that point the same way, as trained ones do
    layer = mnvi.convert(nn.Sequential(plain), POSTERIORS["multiplicative"]).double()[0]
    x = shared_value(*shape, positions=tuple(range(2, len(shape))))
    num_samples = 4000
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        out, independent = layer(x), mnvi.Gaussian(x.mean, x.var)
        alone = layer(independent).var.mean((0, *range(2, len(shape))))
        weight, std = layer.weight.clone(), layer.weight_variance().sqrt()
        outs = []
        for sample in drawn(x, num_samples):
            plain.weight.copy_(weight + std * torch.randn_like(weight))
            outs.append(plain(sample))
    # Positions of an image go together, images do not: 2 * 4000 values for each channel.
    dims = (0, *range(2, len(shape)))
    found, expected = out.var.mean(dims), torch.stack(outs).var(0).mean(dims)
    error = (2 / (2 * num_samples)) ** 0.5
    assert ((found / expected - 1).abs() < 4 * error).all()
    assert ((alone / expected - 1).abs() > 4 * error).any()


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_known_kernels_agree_with_samples(name):
    torch.manual_seed(0)
    make, shape = CONVOLUTIONS[name]
    plain = make().double()
    dims = tuple(range(2, len(shape)))
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        plain.weight.add_(0.1)
        out = plain(shared_value(*shape, positions=dims))
        samples = torch.stack([plain(sample) for sample in drawn(shared_value(*shape, positions=dims), 4000)])
    found, expected = (v.mean(dims) for v in (out.var, samples.var(0)))
    assert ((found / expected - 1).abs() < 4 * (2 / 4000) ** 0.5).all()
    # 0.03 of the variance at borders, where the rule is approximate, and four standard errors
    apart = (out.shared.squeeze(dims) - covariance(samples, dims)).abs()
    assert (apart < (0.03 + 4 / 4000**0.5) * expected).all()


@pytest.mark.parametrize("name", AVERAGES)
def test_variances_of_averages_are_never_negative(name):
    x = shared_value(2, 3, 4, 4, positions=(2, 3), correlation=-0.3)  # no 16 values can have this
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        assert (AVERAGES[name](x).var > -1e-12).all()


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(24), nn.GroupNorm(2, 24), nn.GroupNorm(24, 24), nn.InstanceNorm2d(24)],
    ids=["layer norm", "group norm", "group norm of one channel", "instance norm"],
)
def test_norms_agree_with_samples(norm):
    torch.manual_seed(0)
    layer = isinstance(norm, nn.LayerNorm)
    shape, dims = ((2, 16, 24), (1,)) if layer else ((2, 24, 4, 4), (2, 3))
    x = shared_value(*shape, positions=dims)
    norm = norm.double()
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        out = norm(x)
        values = torch.stack([norm(s) for s in drawn(x, 2000)])
    found = torch.zeros(()) if out.shared is None else out.shared
    assert abs(out.var.mean() / values.var(0).mean() - 1) < 0.1
    # entries that add up to 0 have the covariance -v / (n - 1), which counts as 0 here
    assert abs(found.mean() - covariance(values, dims).mean()) < 0.07 * out.var.mean()


def test_the_product_with_a_gate_agrees_with_samples():
    x = shared_value(2, 3, 4, 4, positions=(2, 3))
    generator = torch.Generator().manual_seed(7)
    gate = mnvi.Gaussian(*(torch.rand(2, 3, 1, 1, generator=generator).double() for _ in range(2)))
    with mnvi.options(spatial="shared_weights"):
        out = x * gate
    expected = covariance(drawn(x) * gate.sample(20_000, generator), (2, 3))
    torch.testing.assert_close(out.shared.squeeze((2, 3)).mean(), expected.mean(), rtol=0.1, atol=0.0)


@pytest.mark.parametrize("function", [nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Hardswish()], ids=str)
def test_elementwise_functions_agree_with_samples(function):
    x = shared_value(2, 8, 5, 5, positions=(2, 3), correlation=0.6)
    with mnvi.options(spatial="shared_weights"):
        out = function(x)
    expected = covariance(function(drawn(x, 8000)), (2, 3))
    assert abs(out.shared.mean() / expected.mean() - 1) < 0.1


@pytest.mark.parametrize("function", [nn.SiLU(), nn.Mish(), nn.Softplus(), nn.Sigmoid(), nn.Tanh()], ids=str)
def test_tables_give_the_covariance_of_integrals(function):
    """float32 reads expectations from tables, and their slopes are differences of what it reads."""
    exact = shared_value(2, 8, 5, 5, positions=(2, 3), correlation=0.6)
    tabulated = mnvi.Gaussian.trusted(exact.mean.float(), exact.var.float(), exact.shared.float())
    with mnvi.options(spatial="shared_weights"):
        torch.testing.assert_close(function(tabulated).shared.double(), function(exact).shared, rtol=1e-3, atol=1e-5)


def test_channels_that_drop_out_as_a_whole_covary():
    torch.manual_seed(0)
    x = shared_value(2, 3, 4, 4, positions=(2, 3))
    layer = nn.Dropout2d(0.3).train()
    with mnvi.options(spatial="shared_weights"):
        out = layer(x)
    samples = drawn(x)
    expected = covariance(torch.stack([layer(s) for s in samples]), (2, 3))
    torch.testing.assert_close(out.shared.squeeze((2, 3)).mean(), expected.mean(), rtol=0.1, atol=0.0)


class TokenMixer(nn.Module):
    """A vision transformer with one block, whose tokens are averaged at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 16, 3, 3)
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(torch.mean(x + self.feed(x), 1))


def test_tokens_that_are_averaged_agree_with_sampled_weights():
    torch.manual_seed(0)
    net, x = TokenMixer().eval(), images()
    model = mnvi.convert(net, POSTERIORS["multiplicative"]).eval()
    generator = torch.Generator().manual_seed(0)
    layers: list = [
        (layer, layer.weight.clone(), layer.weight_variance().sqrt()) for layer in mnvi.bayesian_layers(model)
    ]
    with torch.no_grad():
        independent = model(x).var
        with mnvi.options(spatial="shared_weights"):
            shared = model(x).var
        outs = []
        for layer, _, _ in layers:
            layer.rho.fill_(-60.0)
        for _ in range(500):
            for layer, mean, std in layers:
                layer.weight.copy_(mean + std * torch.randn(mean.shape, generator=generator))
            outs.append(model(x).mean)
    expected = torch.stack(outs).var(0)
    assert (independent / expected).median() < 0.5
    assert 0.75 < (shared / expected).median() < 1.35


@pytest.mark.parametrize("variance", ["exact", "factored"])
def test_optimised_networks_keep_the_covariance(variance):
    posterior = mnvi.MultiplicativeNoise(prior_variance=1.0, variance=variance)
    model, x = mnvi.convert(all_convolutional(), posterior).eval(), images()
    fast = mnvi.optimize_for_inference(model, compile=False)
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        torch.testing.assert_close(fast(x).var, model(x).var)
        assert (fast(x).var > 0).all()


def test_optimised_networks_follow_changes_of_size_and_weights():
    """What they keep of their weights belongs to one size of the input and to these weights."""
    model, x = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).eval(), images()
    fast, larger = mnvi.optimize_for_inference(model, compile=False), images(16)
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        for size in (x, larger, x):
            torch.testing.assert_close(fast(size).var, model(size).var)
        for layer in mnvi.bayesian_layers(model):
            layer.weight.mul_(1.2)
        fast.load_state_dict(mnvi.optimize_for_inference(model, compile=False).state_dict())
        torch.testing.assert_close(fast(x).var, model(x).var)


def test_optimised_networks_sum_their_weights_once(monkeypatch):
    model, x = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).eval(), images()
    fast, compute, computed = mnvi.optimize_for_inference(model, compile=False), position_weights.tap_sums, []
    monkeypatch.setattr(position_weights, "tap_sums", lambda *args: computed.append(args) or compute(*args))
    with mnvi.options(spatial="shared_weights"):
        with torch.inference_mode():
            fast(x)
        fast(x.requires_grad_()).var.sum().backward()  # what inference mode made is no obstacle
    assert len(computed) == len(mnvi.bayesian_layers(model))


def test_factored_variances_have_the_covariance_of_exact_ones():
    net, x = all_convolutional(), images()
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        exact, factored = (
            mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0, variance=variance)).eval()(x).var
            for variance in ("exact", "factored")
        )
    assert abs((factored / exact).log().mean()) < 0.15


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(approximation="second_order"), num_data=100, kappa=0.1)
    return elbo(model(x), torch.arange(4), mnvi.kl_divergence(model)).loss


def test_a_compiled_training_step_has_the_same_gradients():
    model, x = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).double().train(), images().double()
    with mnvi.options(spatial="shared_weights"):
        expected = torch.autograd.grad(loss_of(model, x), list(model.parameters()))
        compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
        found = torch.autograd.grad(compiled(model, x), list(model.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_training_lowers_the_loss():
    model, x = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).train(), images()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    with mnvi.options(spatial="shared_weights"):
        for _ in range(10):
            optimizer.zero_grad()
            losses.append(loss_of(model, x))
            losses[-1].backward()
            optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.slow
def test_exported_networks_keep_the_covariance(tmp_path):
    model, x = mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).eval(), images()
    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        expected = model(x)
        for suffix in (".pt2", ".onnx"):
            mnvi.export(model, tmp_path / f"model{suffix}", x[:2])
    _, variance = torch.export.load(tmp_path / "model.pt2").module()(x)
    torch.testing.assert_close(variance, expected.var)
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "model.onnx")
    _, variance = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(variance), expected.var, rtol=1e-3, atol=1e-6)


def test_networks_vectorised_by_vmap_keep_the_covariance():
    nets = [mnvi.convert(all_convolutional(), POSTERIORS["multiplicative"]).eval() for _ in range(2)]
    with torch.no_grad():
        nets[1][0].weight.mul_(2)
    parameters, buffers = torch.func.stack_module_state(nets)
    x = images()

    def variance(parameters, buffers):
        return torch.func.functional_call(nets[0], (parameters, buffers), (x,)).var

    with torch.no_grad(), mnvi.options(spatial="shared_weights"):
        together = torch.func.vmap(variance)(parameters, buffers)
        torch.testing.assert_close(together, torch.stack([net(x).var for net in nets]))


def test_the_gradient_agrees_with_differences():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1))
    torch.manual_seed(0)
    model = mnvi.convert(net, POSTERIORS["multiplicative"]).double()
    x = images(6).double()[:1]

    def variance(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, {"0.weight": weight}, (x,)).var

    with mnvi.options(spatial="shared_weights"):
        assert torch.autograd.gradcheck(variance, model[0].weight.detach().clone().requires_grad_(), rtol=1e-2)
