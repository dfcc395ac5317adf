"""Softmax and attention: sampling, torch's own results without variance, and no posterior that is bypassed."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from rule_checks import (
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_zero_variance_is_deterministic,
    gaussian,
    sampled,
)
from torch import nn

import mnvi
from mnvi._torchvision import torchvision
from mnvi.layers.attention import MultiheadAttention

CERTAIN = mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=-60.0)
NOISY = mnvi.MultiplicativeNoise(prior_variance=1.0, init_rho=-1.0)


# average variance of the logits: documented largest errors of mean and standard deviation
SOFTMAX_ERRORS = {0.1: (0.0014, 0.0034), 1.0: (0.046, 0.047), 4.0: (0.125, 0.091)}
LOG_SOFTMAX_ERRORS = {0.1: (0.0034, 0.017), 1.0: (0.08, 0.253), 4.0: (0.76, 1.05)}
LOGSUMEXP_ERRORS = {0.1: (0.0018, 0.005), 1.0: (0.08, 0.14), 4.0: (0.76, 0.48)}
CASES = [
    (lambda z: torch.softmax(z, -1), SOFTMAX_ERRORS),
    (lambda z: torch.log_softmax(z, -1), LOG_SOFTMAX_ERRORS),
    (lambda z: torch.logsumexp(z, -1), LOGSUMEXP_ERRORS),
]
IDS = ["softmax", "log_softmax", "logsumexp"]


@pytest.mark.parametrize(("function", "errors"), CASES, ids=IDS)
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("variance", SOFTMAX_ERRORS)
def test_moments_are_within_the_documented_error_of_samples(function, errors, classes, variance):
    generator = torch.Generator().manual_seed(classes)
    mean = 2 * torch.randn(8, classes, generator=generator, dtype=torch.float64)
    var = 2 * variance * torch.rand(8, classes, generator=generator, dtype=torch.float64)
    out = function(x := mnvi.Gaussian(mean, var))
    true_mean, mean_error, true_var, var_error = sampled(function, x)
    bound_mean, bound_std = errors[variance]
    assert ((out.mean - true_mean).abs() - 5 * mean_error).max() < bound_mean
    assert ((out.var.sqrt() - true_var.sqrt()).abs() - 5 * var_error / (2 * true_var.sqrt())).max() < bound_std


@pytest.mark.parametrize("function", [c[0] for c in CASES], ids=IDS)
def test_zero_variance_gradients_and_half_precision(function):
    assert_zero_variance_is_deterministic(function, gaussian(3, 5))
    assert_gradients_are_right(function, gaussian(3, 5))
    assert_half_precision_keeps_the_variance(function, gaussian(3, 5))


def test_log_softmax_keeps_its_digits_under_a_common_offset():
    mean, var = 5000 + torch.tensor([0.0, -9.0, -12.0, -30.0]), torch.full((4,), 1e6)
    for function in (torch.log_softmax, torch.logsumexp):
        low, high = (function(mnvi.Gaussian(mean.to(t), var.to(t)), -1) for t in (torch.float32, torch.float64))
        torch.testing.assert_close(low.mean, high.mean.float(), rtol=1e-5, atol=0)
        torch.testing.assert_close(low.var, high.var.float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("variance", [1e-12, 1.0, 1e6])
@pytest.mark.parametrize("size", [1.0, 50.0, 1e4])
def test_softmax_stays_a_probability_at_extreme_scales(size, variance):
    mean = size * torch.linspace(-1, 1, 7)[None]
    low = torch.softmax(mnvi.Gaussian(mean, torch.full_like(mean, variance)), -1)
    high = torch.softmax(mnvi.Gaussian(mean.double(), torch.full_like(mean, variance).double()), -1)
    assert low.mean.isfinite().all()
    assert low.mean.sum().item() == pytest.approx(1, abs=1e-6)
    assert (low.var <= low.mean * (1 - low.mean) + 1e-7).all()
    torch.testing.assert_close(low.mean.double(), high.mean, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(low.var.double(), high.var, rtol=1e-2, atol=1e-6)


def test_a_mean_of_minus_infinity_takes_no_part():
    x = gaussian(2, 4)
    masked = x.masked_fill(torch.tensor([False, True, False, False]), -math.inf)
    out, alone = torch.softmax(masked, -1), torch.softmax(x[:, [0, 2, 3]], -1)
    torch.testing.assert_close(out.mean[:, [0, 2, 3]], alone.mean)
    torch.testing.assert_close(out.var[:, [0, 2, 3]], alone.var)
    assert (out.mean[:, 1] == 0).all()
    assert (out.var[:, 1] == 0).all()


def test_spellings_and_dtype():
    x = gaussian(2, 3, dtype=torch.float32)
    expected = torch.softmax(x, 1)
    for out in (F.softmax(x, dim=1), x.softmax(1), nn.Softmax(1)(x), F.softmin(-x, dim=1)):
        torch.testing.assert_close(out.var, expected.var)
    double = torch.float64
    for out in (
        F.softmax(x, 1, 3, double),
        torch.softmax(x, 1, double),
        x.softmax(1, double),
        x.softmax(1, dtype=double),
    ):
        torch.testing.assert_close(out.var, torch.softmax(x.double(), 1).var, rtol=1e-12, atol=0)
    for out in (F.log_softmax(x, 1, 3, double), torch.log_softmax(x, 1, double), x.log_softmax(1, double)):
        torch.testing.assert_close(out.mean, torch.log_softmax(x.double(), 1).mean, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="dim=None"):
        F.softmax(x)


def operands(seed=0, heads=2, length=4, width=3):
    return [gaussian(2, heads, length, width, seed=seed + i, scale=0.05) for i in range(3)]


FLOAT_MASK = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
BOOL_MASK = torch.tensor([[True] * 4, [True, False, True, False], [False] * 4, [True, True, True, False]])
ATTENTIONS = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "causal": {"is_causal": True},
    "float mask": {"attn_mask": FLOAT_MASK},
    "boolean mask with an empty row": {"attn_mask": BOOL_MASK},
}


@pytest.mark.parametrize("case", ATTENTIONS)
def test_attention_without_variance_is_torchs(case):
    assert_zero_variance_is_deterministic(F.scaled_dot_product_attention, *operands(), **ATTENTIONS[case])


def test_attention_with_fewer_heads_for_keys_and_values():
    query, (_, key, value) = operands(heads=4)[0], operands(heads=2)
    assert_zero_variance_is_deterministic(F.scaled_dot_product_attention, query, key, value, enable_gqa=True)


@pytest.mark.parametrize("case", ["plain", "causal", "boolean mask with an empty row"])
def test_attention_is_within_the_documented_error_of_samples(case):
    args = operands()
    out = F.scaled_dot_product_attention(*args, **ATTENTIONS[case])
    shape, generator = (100_000, *args[0].shape), torch.Generator().manual_seed(1)
    draws = [x.sample(100_000, generator).flatten(0, 1) for x in args]
    values = F.scaled_dot_product_attention(*draws, **ATTENTIONS[case]).reshape(shape)
    mean, var = values.mean(0), values.var(0)
    assert (out.mean - mean).square().mean().sqrt() < 0.005
    varies = var > 0
    assert torch.equal(out.var > 0, varies)
    assert (out.var[varies].sqrt() / var[varies].sqrt() - 1).square().mean().sqrt() < 0.25


@pytest.mark.parametrize("random", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_attention_takes_tensors_beside_gaussians(random):
    args = [x if i in random else x.mean for i, x in enumerate(operands())]
    out = F.scaled_dot_product_attention(*args)
    none = torch.zeros(2, 2, 4, 3, dtype=torch.float64)
    same = F.scaled_dot_product_attention(*(x if i in random else mnvi.Gaussian(x, none) for i, x in enumerate(args)))
    torch.testing.assert_close(out.mean, same.mean)
    torch.testing.assert_close(out.var, same.var)


def test_a_mask_may_be_random():
    q, k, v = operands()
    bias = gaussian(4, 4)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-2, -1)) + bias
    expected = torch.matmul(torch.softmax(scores, -1), v)
    torch.testing.assert_close(out.mean, expected.mean)
    torch.testing.assert_close(out.var, expected.var)
    known = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.mean)
    assert not torch.allclose(out.var, known.var)
    alone = F.scaled_dot_product_attention(q.mean, k.mean, v.mean, attn_mask=bias)
    assert (alone.var > 0).all()


def test_attention_refuses_two_masks():
    with pytest.raises(ValueError, match="not both"):
        F.scaled_dot_product_attention(*operands(), attn_mask=BOOL_MASK, is_causal=True)


def test_attention_gradients():
    assert_gradients_are_right(F.scaled_dot_product_attention, *operands(heads=1, length=3, width=2))


def test_dropout_of_attention_adds_variance():
    without = F.scaled_dot_product_attention(*operands())
    dropped = F.scaled_dot_product_attention(*operands(), dropout_p=0.3)
    torch.testing.assert_close(dropped.mean, without.mean)
    assert (dropped.var > without.var).all()


MULTI_HEAD = {
    "plain": {},
    "batch first": {"batch_first": True},
    "other widths": {"kdim": 6, "vdim": 10},
    "added keys": {"add_bias_kv": True, "add_zero_attn": True},
    "without bias": {"bias": False},
}
PADDING = torch.tensor([[False] * 5, [False, False, False, True, True], [True] + [False] * 4])


def multi_head(case):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, **MULTI_HEAD[case]).double().eval()
    if module.in_proj_bias is not None:
        nn.init.normal_(module.in_proj_bias)
    shape = (3, 5) if module.batch_first else (5, 3)
    query, key, value = (torch.randn(*shape, n, dtype=torch.float64) for n in (8, module.kdim, module.vdim))
    return module, query, key, value


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", MULTI_HEAD)
def test_converted_attention_in_the_limit_is_torchs(case, masked, need_weights):
    module, *args = multi_head(case)
    options = {"need_weights": need_weights}
    if masked:
        options |= {"key_padding_mask": PADDING, "attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(2)}
    expected, expected_weights = module(*args, **options)
    out, weights = mnvi.convert(module, CERTAIN)(*args, **options)
    torch.testing.assert_close(out.mean, expected)
    assert out.var.max() < 1e-20
    if need_weights:
        torch.testing.assert_close(weights.mean, expected_weights)
    else:
        assert weights is None


@pytest.mark.parametrize("case", MULTI_HEAD)
def test_attention_left_deterministic_takes_gaussians(case):
    module, *args = multi_head(case)
    certain = [mnvi.Gaussian(x, torch.zeros_like(x)) for x in args]
    expected, expected_weights = module(*args, average_attn_weights=False)
    out, weights = module(*certain, average_attn_weights=False)
    torch.testing.assert_close(out.mean, expected)
    torch.testing.assert_close(weights.mean, expected_weights)
    noisy, _ = module(*(mnvi.Gaussian(x, torch.ones_like(x)) for x in args))
    assert (noisy.var > 0).all()


def test_attention_without_a_batch():
    module, query, key, value = multi_head("plain")
    converted = mnvi.convert(module, CERTAIN)
    expected, expected_weights = module(query[:, 0], key[:, 0], value[:, 0], key_padding_mask=PADDING[1])
    out, weights = converted(query[:, 0], key[:, 0], value[:, 0], key_padding_mask=PADDING[1])
    torch.testing.assert_close(out.mean, expected)
    torch.testing.assert_close(weights.mean, expected_weights)


@pytest.mark.parametrize("case", MULTI_HEAD)
def test_checkpoints_are_exchanged_with_torchs_attention(case):
    module, *args = multi_head(case)
    converted = mnvi.convert(nn.Sequential(module), CERTAIN)
    names = {f"0.{name}" for name in module.state_dict()}
    assert names < set(converted.state_dict())
    other = mnvi.convert(nn.Sequential(nn.MultiheadAttention(8, 2, **MULTI_HEAD[case]).double()), NOISY)
    missing, unexpected = other.load_state_dict(nn.Sequential(module).state_dict(), strict=False)
    assert not unexpected
    assert all(name.endswith("rho") for name in missing)
    other.load_state_dict(converted.state_dict())
    torch.testing.assert_close(other.eval()[0](*args)[0].mean, module(*args)[0])
    module.load_state_dict({k.removeprefix("0."): v for k, v in converted.state_dict().items() if k in names})


def test_every_posterior_of_attention_is_used_and_counted_once():
    module, query, key, value = multi_head("plain")
    for posterior, added in ((NOISY, 2 * 8), (mnvi.MeanField(1.0), 24 * 8 + 24 + 8 * 8 + 8)):
        converted = mnvi.convert(module, posterior)
        count = sum(p.numel() for p in converted.parameters()) - sum(p.numel() for p in module.parameters())
        assert count == added
        assert len(mnvi.bayesian_layers(converted)) == 2
        out, _ = converted(query, key, value)
        learnt = [p for name, p in converted.named_parameters() if "rho" in name or "log_var" in name]
        assert all(g.abs().sum() > 0 for g in torch.autograd.grad(out.var.sum(), learnt))


def test_in_and_out_projection_can_be_chosen_by_name():
    module, *args = multi_head("plain")
    for name in ("in_proj", "out_proj"):
        converted = mnvi.convert(module, NOISY, only=name)
        assert isinstance(converted, MultiheadAttention)
        assert len(mnvi.bayesian_layers(converted)) == 1
        assert (converted(*args)[0].var > 0).all()


def test_attention_is_copied_and_pickled():
    module, *args = multi_head("batch first")
    converted = mnvi.convert(module, NOISY)
    for twin in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        torch.testing.assert_close(twin(*args)[0].var, converted(*args)[0].var)


def test_the_given_model_keeps_its_own_attention():
    module, *_ = multi_head("plain")
    mnvi.convert(module, NOISY)
    assert type(module) is nn.MultiheadAttention
    assert "in_proj_weight" in dict(module.named_parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fused_path_of_transformers_does_not_bypass_the_posterior(norm_first, training):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).double().train(training)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = encoder(x)
        out = mnvi.convert(encoder, CERTAIN)(x)
        masked = mnvi.convert(encoder, NOISY)(x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(out.mean, expected)
    assert out.var.max() < 1e-18
    assert (masked.var > 0).all()


def test_transformer_decoders():
    torch.manual_seed(0)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).double().eval()
    x, memory = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    expected = decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)
    out = mnvi.convert(decoder, CERTAIN)(x, memory, tgt_mask=mask, tgt_is_causal=True)
    torch.testing.assert_close(out.mean, expected)


@pytest.mark.parametrize("version", ["ShiftedWindowAttention", "ShiftedWindowAttentionV2"])
@pytest.mark.parametrize(("size", "shift"), [((8, 8), [0, 0]), ((8, 12), [2, 2]), ((7, 5), [2, 2]), ((4, 4), [2, 2])])
def test_shifted_windows_are_torchvisions_in_the_limit_and_use_their_posterior(version, size, shift):
    torch.manual_seed(0)
    kind = getattr(torchvision.models.swin_transformer, version)
    module = kind(8, [4, 4], shift, num_heads=2).double().eval()
    nn.init.normal_(module.qkv.bias)
    x = torch.randn(2, *size, 8, dtype=torch.float64)
    converted = mnvi.convert(module, CERTAIN)
    out = converted(x)
    torch.testing.assert_close(out.mean, module(x))
    assert out.var.max() < 1e-18
    assert {"qkv.rho", "proj.rho"} <= set(converted.state_dict()) - set(module.state_dict())
    noisy = mnvi.convert(module, NOISY)
    out = noisy(x)
    gradients = torch.autograd.grad(out.var.sum(), [noisy.qkv.rho, noisy.proj.rho])
    assert all((g > 0).all() for g in gradients)
    twin = pickle.loads(pickle.dumps(noisy))
    torch.testing.assert_close(twin(x).var, out.var)


def test_compile_without_graph_breaks():
    module, *_ = multi_head("batch first")
    converted = mnvi.convert(module, NOISY)
    x = gaussian(3, 5, 8)

    def run(x):
        return torch.log_softmax(converted(x, x, x, need_weights=False)[0], -1)

    out = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out.mean, run(x).mean)
    torch.testing.assert_close(out.var, run(x).var)


def test_export():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = mnvi.convert(multi_head("batch first")[0], NOISY).eval()

        def forward(self, x):
            return self.attention(x, x, x)[0]

    module, x = Attends(), gaussian(3, 5, 8)
    out = torch.export.export(module, (x,)).module()(x)
    torch.testing.assert_close(out.var, module(x).var)


def test_vmap_over_examples():
    args = operands()
    out = torch.func.vmap(F.scaled_dot_product_attention)(*args)
    torch.testing.assert_close(out.var, F.scaled_dot_product_attention(*args).var)
