"""Whole training steps under torch.compile: in one graph, with the losses and gradients of eager mode."""

import pytest
import torch
from torch import nn

import mnvi
from mnvi.models._resnet import BasicBlock

POSTERIORS = {
    "multiplicative": mnvi.MultiplicativeNoise(prior_variance=1e-2),
    "mean field": mnvi.MeanField(prior_variance=1e-2),
    "shared": mnvi.SharedMeanField(prior_variance=1e-2),
}


def small_resnet() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(
        stem, BasicBlock(4, 4), BasicBlock(4, 8, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )


def tiny() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


NETWORKS = {"lenet": (mnvi.models.lenet, (1, 28, 28)), "small resnet": (small_resnet, (3, 8, 8))}


def training_step(model: nn.Module, likelihood: mnvi.Likelihood):
    elbo = mnvi.ELBO(likelihood, num_data=1000, kappa=0.1)

    def step(x, y):
        return elbo(model(x), y, mnvi.kl_divergence(model)).loss

    return step


def loss_and_gradients(step, model, x, y):
    torch.manual_seed(1)  # of the logit samples
    model.zero_grad()
    loss = step(x, y)
    loss.backward()
    return {"loss": loss.detach()} | {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_compiled_step_equals_eager(network, shape, posterior, backend, batch=6, dtype=torch.float32, error=2e-5):
    model = mnvi.convert(network, posterior).to(dtype).train()
    step = training_step(model, mnvi.CategoricalLikelihood(num_samples=8))
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    x, y = torch.randn(batch, *shape, dtype=dtype), torch.arange(batch)
    expected = loss_and_gradients(step, model, x, y)
    actual = loss_and_gradients(compiled, model, x, y)
    for name, value in expected.items():  # relative to the largest entry: sums are taken in another order
        torch.testing.assert_close(actual[name], value, rtol=0, atol=error * value.abs().max().item(), msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "posterior"),
    [*(("lenet", posterior) for posterior in POSTERIORS), ("small resnet", "multiplicative")],
)
def test_training_step_is_one_graph_with_the_losses_and_gradients_of_eager_mode(network, posterior):
    factory, shape = NETWORKS[network]
    assert_compiled_step_equals_eager(factory(), shape, POSTERIORS[posterior], backend="aot_eager")


PAPER = {
    "all_cnn": (mnvi.models.all_cnn, (3, 16, 16)),
    "resnet18": (lambda: mnvi.models.resnet18(10, stem="cifar"), (3, 16, 16)),
}


@pytest.mark.slow
@pytest.mark.parametrize("network", PAPER)
def test_training_step_of_the_papers_networks_is_one_graph_with_the_gradients_of_eager_mode(network):
    factory, shape = PAPER[network]
    assert_compiled_step_equals_eager(
        factory(), shape, POSTERIORS["multiplicative"], "aot_eager", batch=2, dtype=torch.float64, error=1e-9
    )


@pytest.mark.slow
def test_training_step_through_inductor_gives_the_losses_and_gradients_of_eager_mode():
    with torch._inductor.config.patch(fallback_random=True):  # draws the samples that eager mode draws
        assert_compiled_step_equals_eager(tiny(), (3, 8, 8), POSTERIORS["multiplicative"], backend="inductor")


def test_training_step_recompiles_for_a_new_kind_of_batch_only():
    factory, shape = NETWORKS["small resnet"]
    model = mnvi.convert(factory(), POSTERIORS["multiplicative"]).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(
        training_step(model, mnvi.CategoricalLikelihood(num_samples=8)), fullgraph=True, backend=counting
    )
    for batch in (8, 8, 8, 5, 7, 8):  # steps in between change the weights; 5 is the last batch of an epoch
        step(torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(graphs) == 2  # one for the first size, one for all others


def test_evaluation_after_training_needs_one_more_graph():
    factory, shape = NETWORKS["small resnet"]
    model = mnvi.convert(factory(), POSTERIORS["multiplicative"])
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=counting)
    x = torch.randn(4, *shape)
    for _ in range(3):
        compiled.train()(x)
        with torch.no_grad():
            compiled.eval()(x)
    assert len(graphs) == 2


def test_options_are_followed_by_a_compiled_model():
    model = mnvi.convert(mnvi.models.mlp(3), POSTERIORS["multiplicative"]).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    x = torch.randn(4, 3)
    with torch.no_grad():
        before = compiled(x).var
        with mnvi.options(relu_floor=10.0):
            torch.testing.assert_close(compiled(x).var, model(x).var)
            assert (compiled(x).var > before).all()
        torch.testing.assert_close(compiled(x).var, before)


def test_compiled_relu_is_as_accurate_as_the_eager_one():
    # The compiled formula takes the Gaussian tail from a polynomial; measured: 9e-8 and 2e-7 of the scale.
    ratio, sigma = torch.meshgrid(torch.linspace(-50, 50, 2001), torch.tensor([1e-6, 1.0, 1e3]), indexing="ij")
    x = mnvi.Gaussian(ratio * sigma, sigma.square())
    exact = torch.relu(mnvi.Gaussian(x.mean.double(), x.var.double()))
    compiled = torch.compile(lambda x: torch.relu(x), fullgraph=True, backend="aot_eager")(x)
    scale = torch.maximum(sigma, exact.mean)
    assert ((compiled.mean - exact.mean).abs() / scale).max() < 5e-7
    assert ((compiled.var - exact.var).abs() / x.var).max() < 5e-7
    in_the_tail = (ratio > -5) & (ratio < -1)
    torch.testing.assert_close(compiled.mean[in_the_tail].double(), exact.mean[in_the_tail], rtol=1e-4, atol=0)
    torch.testing.assert_close(compiled.var[in_the_tail].double(), exact.var[in_the_tail], rtol=1e-3, atol=0)
