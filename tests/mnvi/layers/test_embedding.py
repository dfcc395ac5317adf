"""The embedding layer: moments, padding, tied output layers, state, inference."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import mnvi

NOISE, FIELD, SHARED = mnvi.MultiplicativeNoise(0.3), mnvi.MeanField(0.3, -2.0), mnvi.SharedMeanField(0.3, -2.0)
WITH_EACH = pytest.mark.parametrize("posterior", [NOISE, FIELD, SHARED], ids=lambda p: type(p).__name__)
TOKENS = torch.tensor([[3, 0, 3], [1, 2, 4]])


def layer_of(posterior: mnvi.Posterior, **arguments: int) -> mnvi.layers.Embedding:
    torch.manual_seed(0)
    layer = mnvi.convert(nn.Embedding(5, 4, **arguments), posterior)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name not in layer.own_names:
                parameter.uniform_(-3.0, 0.0)
    return layer


@WITH_EACH
def test_moments_are_those_of_a_linear_layer_on_one_hot_vectors(posterior: mnvi.Posterior) -> None:
    layer = layer_of(posterior)
    linear = mnvi.convert(nn.Linear(5, 4, bias=False), posterior)
    with torch.no_grad():
        linear.weight.copy_(layer.weight.T)
        for name in ("rho", "log_var"):
            if hasattr(layer, name):
                value = getattr(layer, name)
                getattr(linear, name).copy_(value if value.dim() == 1 else value.T)
    one_hot = nn.functional.one_hot(TOKENS, 5).float()
    out, expected = layer(TOKENS), linear(one_hot)
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.var, expected.var)
    torch.testing.assert_close(mnvi.kl_divergence(layer), mnvi.kl_divergence(linear))


@WITH_EACH
def test_zero_variance_is_the_deterministic_layer(posterior: mnvi.Posterior) -> None:
    plain = nn.Embedding(5, 4)
    layer = mnvi.convert(plain, posterior)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name not in layer.own_names:
                parameter.fill_(-200.0)
    assert torch.equal(layer(TOKENS).mean, plain(TOKENS)) and layer(TOKENS).var.max() == 0


@WITH_EACH
def test_padding_is_known_and_gets_no_gradient(posterior: mnvi.Posterior) -> None:
    layer = layer_of(posterior, padding_idx=0)
    out = layer(TOKENS)
    assert out.var[0, 1].max() == 0 and out.var[0, 0].min() > 0
    (out.mean.sum() + out.var.sum()).backward()
    assert layer.weight.grad[0].abs().max() == 0 and layer.weight.grad[3].abs().max() > 0


@WITH_EACH
def test_precision_gradients_and_state(posterior: mnvi.Posterior) -> None:
    layer = layer_of(posterior)
    out = layer(TOKENS)
    precise = copy.deepcopy(layer).double()
    torch.testing.assert_close(out.var.double(), precise(TOKENS).var, rtol=1e-5, atol=0.0)
    assert layer_of(posterior).bfloat16()(TOKENS).var.dtype == torch.float32
    names, values = zip(*precise.named_parameters(), strict=True)

    def moments(*parameters: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.func.functional_call(precise, dict(zip(names, parameters, strict=True)), (TOKENS,))
        return out.mean, out.var

    assert torch.autograd.gradcheck(moments, [v.detach().requires_grad_() for v in values])
    assert set(layer.state_dict()) == {"weight", "rho" if posterior is NOISE else "log_var"}
    fresh = mnvi.convert(nn.Embedding(5, 4), posterior)
    fresh.load_state_dict(layer.state_dict())
    fast = mnvi.optimize_for_inference(layer, compile=False, variance="factored")
    exported = torch.export.export(layer, (TOKENS,)).module()
    for other in (fresh, pickle.loads(pickle.dumps(layer)), fast, exported):
        torch.testing.assert_close(other(TOKENS).mean, out.mean)
        torch.testing.assert_close(other(TOKENS).var, out.var)


class Language(nn.Module):
    """An embedding whose weight is also that of the output layer."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=bias)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.embedding(tokens)))


@WITH_EACH
@pytest.mark.parametrize("bias", [True, False])
def test_a_tied_output_layer_shares_its_posterior(posterior: mnvi.Posterior, bias: bool) -> None:
    net = mnvi.convert(Language(bias), posterior)
    name = "rho" if posterior is NOISE else "log_var"
    assert net.embedding.weight is net.head.weight
    assert getattr(net.embedding, name) is getattr(net.head, name)
    torch.testing.assert_close(net.embedding.weight_variance(), net.head.weight_variance())
    torch.testing.assert_close(net.embedding(TOKENS).var, net.head.weight_variance()[TOKENS])
    torch.testing.assert_close(mnvi.kl_divergence(net), net.head.kl_divergence())
    out = net(TOKENS)
    (out.mean.sum() + out.var.sum() + mnvi.kl_divergence(net)).backward()
    assert all(p.grad is not None for p in net.parameters())
    fast = mnvi.optimize_for_inference(net, compile=False)
    torch.testing.assert_close(fast(TOKENS).var, out.var)
    torch.testing.assert_close(copy.deepcopy(net)(TOKENS).var, out.var)


def test_only_the_output_layer_can_be_chosen() -> None:
    net = mnvi.convert(Language(True), NOISE, only="head")
    assert type(net.embedding) is nn.Embedding and net.embedding.weight is net.head.weight


def test_subclasses_that_change_tokens_or_vectors_keep_doing_so() -> None:
    class Scaled(nn.Embedding):
        def forward(self, tokens: Tensor) -> Tensor:
            return 2.0 * super().forward(tokens + 1)

    plain = Scaled(6, 4)
    layer = mnvi.convert(plain, NOISE)
    torch.testing.assert_close(layer(TOKENS).mean, plain(TOKENS))
    torch.testing.assert_close(layer(TOKENS).var, 4 * layer.weight_variance()[TOKENS + 1])


def test_a_table_that_returns_a_part_of_itself_stays_deterministic() -> None:
    class Positions(nn.Embedding):
        def forward(self, tokens: Tensor) -> Tensor:
            return self.weight[: tokens.shape[1]]

    net = mnvi.convert(nn.ModuleList([nn.Embedding(5, 4), Positions(6, 4), nn.Linear(4, 8)]), NOISE)
    assert type(net[1]) is Positions and len(mnvi.bayesian_layers(net)) == 2
    assert mnvi.summary(net)["1"].why == "unknown class; see mnvi.register_layer"


def test_what_is_not_supported_is_named() -> None:
    with pytest.raises(ValueError, match=r"has max_norm=1\.0"):
        mnvi.convert(nn.Embedding(5, 4, max_norm=1.0), NOISE)
    with pytest.raises(TypeError, match="must be a tensor of indices, got Gaussian"):
        layer_of(NOISE)(mnvi.Gaussian(torch.zeros(2), torch.ones(2)))


def test_sampled_gives_tensors() -> None:
    assert isinstance(mnvi.convert(nn.Embedding(5, 4), mnvi.Sampled(NOISE))(TOKENS), Tensor)


def test_one_draw_of_the_weights_is_used_for_every_occurrence_and_by_a_tied_layer() -> None:
    net = mnvi.convert(Language(False), NOISE)
    with mnvi.comparison.drawn_weights(net):
        vectors = net.embedding(TOKENS)
        assert torch.equal(vectors[0, 0], vectors[0, 2]) and not torch.equal(vectors[0, 0], net.embedding.weight[3])
        torch.testing.assert_close(net.head(torch.eye(4)).T[TOKENS], vectors)
