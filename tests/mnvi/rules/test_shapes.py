"""Rearrangements and interpolation: both streams are treated alike, and no rule mis-shapes the variance."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from rule_checks import (
    assert_gradients_are_right,
    assert_moments_are_those_of_samples,
    assert_zero_variance_is_deterministic,
    gaussian,
)
from torch import Tensor, nn

import mnvi
from mnvi.moments.precision import widened
from mnvi.rules.table import RULES, NoRuleError

X = gaussian(2, 4, 6)
INDEX = torch.tensor([0, 2, 1])

REARRANGEMENTS = {
    "view": lambda x: x.view(2, -1),
    "reshape": lambda x: torch.reshape(x, (8, 6)),
    "flatten": lambda x: torch.flatten(x, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 1),
    "movedim": lambda x: torch.movedim(x, 0, -1),
    "squeeze, unsqueeze": lambda x: x.unsqueeze(0).squeeze(0).unsqueeze(-1),
    "expand": lambda x: x[:, :1].expand(-1, 3, -1),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, 2, 1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "index_select": lambda x: torch.index_select(x, 1, INDEX),
    "gather": lambda x: x.gather(1, INDEX.view(1, 3, 1).expand(2, 3, 6)),
    "flip": lambda x: torch.flip(x, [1]),
    "roll": lambda x: torch.roll(x, (1, 2), (0, 1)),
    "unfold": lambda x: F.unfold(x[:, :, None], (1, 3), padding=(0, 1)),
    "unfold, method": lambda x: x.unfold(2, 2, 2),
    "fold": lambda x: F.fold(x.reshape(2, 4, 6), (4, 3), (2, 2)),
    "diagonal": lambda x: torch.diagonal(x, 0, 1, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :, None], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x[:, :, None], 2),
    "tril": lambda x: torch.tril(x),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "indexing": lambda x: x[:, 1, ..., None],
    "slicing": lambda x: x[..., ::2],
    "advanced indexing": lambda x: x[:, INDEX],
    "pad": lambda x: F.pad(x, (1, 2)),
    "pad with a value": lambda x: F.pad(x, (1, 2), value=3.0),
    "pad, reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "pad, circular": lambda x: F.pad(x, (1, 2), mode="circular"),
    "cat": lambda x: torch.cat([x, x.flip(0)], 1),
    "cat with a tensor": lambda x: torch.cat([torch.ones(2, 1, 6, dtype=torch.float64), x], 1),
    "stack": lambda x: torch.stack([x, -x], -1),
    "stack with a tensor": lambda x: torch.stack([x, torch.ones(2, 4, 6, dtype=torch.float64)]),
    "hstack": lambda x: torch.hstack([x, x]),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: torch.split(x, [1, 3], 1)[1],
    "split, method": lambda x: x.split(2, -1)[2],
    "unbind": lambda x: torch.unbind(x, 1)[2],
    "iteration": lambda x: next(iter(x)),
    "where": lambda x: torch.where(torch.tensor([True, False]).view(2, 1, 1), x, 7.0),
    "where, method": lambda x: x.where(torch.tensor([True, False]).view(2, 1, 1), x + 1),
    "masked_fill": lambda x: x.masked_fill(torch.eye(4, 6, dtype=torch.bool), -1.0),
}
INTERPOLATIONS = {
    "nearest": (1, {"scale_factor": 2}),
    "nearest-exact": (2, {"size": (5, 3), "mode": "nearest-exact"}),
    "linear": (1, {"size": 7, "mode": "linear"}),
    "linear, corners": (1, {"size": 7, "mode": "linear", "align_corners": True}),
    "bilinear": (2, {"scale_factor": 2, "mode": "bilinear"}),
    "bilinear, uneven": (2, {"scale_factor": (1.7, 0.6), "mode": "bilinear"}),
    "bilinear, recomputed": (2, {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
    "bilinear, corners": (2, {"size": (5, 7), "mode": "bilinear", "align_corners": True}),
    "bilinear, antialias": (2, {"size": (2, 3), "mode": "bilinear", "antialias": True}),
    "bicubic": (2, {"scale_factor": 1.5, "mode": "bicubic"}),
    "bicubic, corners": (2, {"size": (7, 3), "mode": "bicubic", "align_corners": True}),
    "bicubic, antialias": (2, {"size": (2, 3), "mode": "bicubic", "antialias": True}),
    "trilinear": (3, {"size": (3, 2, 5), "mode": "trilinear"}),
    "area": (2, {"size": (3, 4), "mode": "area"}),
}


@pytest.mark.parametrize("case", REARRANGEMENTS)
def test_zero_variance_and_shape(case):
    assert_zero_variance_is_deterministic(REARRANGEMENTS[case], X)


@pytest.mark.parametrize("case", REARRANGEMENTS)
def test_moments_are_those_of_samples(case):
    """The function applied to samples one by one; entries that stay in place keep their moments exactly."""
    function, x = REARRANGEMENTS[case], X
    out = function(x)
    draws = x.sample(2_000, torch.Generator().manual_seed(0))
    values = torch.stack([function(draw) for draw in draws])
    assert ((values.mean(0) - out.mean).abs() <= 6 * (out.var / 2_000).sqrt() + 1e-12).all()
    assert ((values.var(0) / out.var - 1).abs()[out.var > 0] < 6 * (2 / 2_000) ** 0.5).all()


def test_pieces_come_as_a_tuple():
    for pieces in (X.chunk(2, 1), torch.split(X, 2, 1), X.unbind(0), torch.tensor_split(X, 3, 2)):
        assert isinstance(pieces, tuple)
        assert all(isinstance(piece, mnvi.Gaussian) for piece in pieces)


@pytest.mark.parametrize("other", [torch.float64, torch.float32, torch.int64])
@pytest.mark.parametrize("join", [torch.cat, torch.stack])
def test_joining_promotes_both_streams(join, other):
    x = gaussian(2, 3, dtype=torch.float32)
    out = join([x, torch.ones(2, 3).to(other)])
    assert out.mean.dtype == out.var.dtype == torch.promote_types(torch.float32, other)


def test_joining_half_precision_keeps_float32_variances():
    x = mnvi.Gaussian(torch.ones(2, dtype=torch.bfloat16), torch.full((2,), 1e-3))
    out = torch.cat([x, torch.ones(2, dtype=torch.bfloat16)])
    assert out.mean.dtype == torch.bfloat16
    assert out.var.dtype == torch.float32


@pytest.mark.parametrize("swapped", [False, True])
def test_where_with_a_wider_tensor_widens_both_streams(swapped):
    x, tensor = gaussian(3, dtype=torch.float32), torch.zeros(2, 3, dtype=torch.float64)
    condition = torch.tensor([True, False, True])
    out = torch.where(condition, tensor, x) if swapped else torch.where(condition, x, tensor)
    assert out.mean.shape == out.var.shape == (2, 3)
    assert out.mean.dtype == out.var.dtype == torch.float64
    assert torch.equal(out.var[0] == 0, condition if swapped else ~condition)


def exact_variance(linear, var):
    units = torch.eye(var.numel(), dtype=var.dtype).reshape(-1, *var.shape)
    weights = torch.stack([linear(unit) for unit in units])
    return (weights.square() * var.reshape(-1, *(1 for _ in weights.shape[1:]))).sum(0)


@pytest.mark.filterwarnings("ignore:The default behavior for interpolate")
@pytest.mark.parametrize("case", INTERPOLATIONS)
def test_interpolation_is_exact_in_every_mode(case):
    dims, options = INTERPOLATIONS[case]
    x = gaussian(1, 1, *(4, 5, 3)[:dims])
    out = F.interpolate(x, **options)
    torch.testing.assert_close(out.mean, F.interpolate(x.mean, **options))
    torch.testing.assert_close(out.var, exact_variance(lambda t: F.interpolate(t, **options), x.var))


def test_upsampling_modules_and_gradients():
    x = gaussian(1, 2, 3, 3)
    assert_moments_are_those_of_samples(lambda t: nn.Upsample(scale_factor=2, mode="bilinear")(t[None])[0], x[0])
    assert_gradients_are_right(F.interpolate, x, scale_factor=2, mode="bicubic")


def test_interpolation_compiles_without_graph_breaks():
    def run(x):
        return F.interpolate(F.interpolate(x, scale_factor=2), size=(5, 7), mode="bilinear")

    x = gaussian(1, 2, 3, 3)
    out = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(out.var, run(x).var)


def chain(x):
    pieces = x.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2).chunk(2, 1)
    joined = torch.cat([pieces[0], F.pad(pieces[1], (0, 1))[..., 1:], torch.ones(2, 1, 6, dtype=torch.float64)], 1)
    return torch.where(joined.mean > 0, joined, torch.roll(joined, 1, 2)).permute(2, 0, 1)[::2]


def test_compile_and_export():
    class Chain(nn.Module):
        def forward(self, x):
            return chain(x)

    for out in (
        torch.compile(chain, fullgraph=True, backend="aot_eager")(X),
        torch.export.export(Chain(), (X,)).module()(X),
    ):
        torch.testing.assert_close(out.mean, chain(X).mean)
        torch.testing.assert_close(out.var, chain(X).var)


def test_vmap():
    out = torch.func.vmap(REARRANGEMENTS["pad with a value"])(X)
    torch.testing.assert_close(out.var, REARRANGEMENTS["pad with a value"](X).var)


def attempts():
    """Arguments to try on any registered function: one Gaussian, then the usual second operands."""
    square, image, line = gaussian(4, 4), gaussian(1, 4, 4, 4), gaussian(1, 4, 6)
    tensor = torch.rand(2, 4, 4, dtype=torch.float64) + 0.5
    for x in (square, image, line):
        yield (x,)
        for second in (2, tensor, 0.5, (2, 2), -1, gaussian(2, 4, 4, seed=9)):
            yield x, second
            yield x, second, 0.5
        yield x, 0, torch.tensor([1, 0])
    yield tensor, square
    yield (2.0, square)
    yield ([square, square.mean],)


def test_no_rule_returns_a_variance_of_another_shape_than_the_mean():
    answered = 0
    for function in list(RULES._rules):
        for args in attempts():
            try:
                out = RULES.answer(function, args, {})
            except Exception:  # most arguments do not fit most functions; what fits must be right
                continue
            for value in out if isinstance(out, tuple | list) else [out]:
                if isinstance(value, mnvi.Gaussian):
                    name = getattr(function, "__name__", function)
                    assert value.mean.shape == value.var.shape, (name, args)
                    assert value.var.dtype == widened(value.mean).dtype, (name, args)
                    answered += 1
    assert answered > 500


def test_every_rule_has_arguments_that_can_be_read():
    own = [handler for handler in set(RULES._rules.values()) if (handler.__module__ or "").startswith("mnvi.")]
    assert len(own) > 100  # the others are those of examples
    for handler in own:
        assert inspect.signature(handler).parameters


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.fft.hfft, Tensor.item, Tensor.tolist, Tensor.unique])
def test_what_has_no_rule_says_so(function):
    with pytest.raises(NoRuleError):
        RULES.answer(function, (X,), {})


@pytest.mark.parametrize(
    "no_op",
    [
        lambda x: x.contiguous(),
        lambda x: x.double(),
        lambda x: x.to(torch.float64),
        lambda x: x.to("cpu"),
        lambda x: x.cpu(),
        lambda x: x.type_as(x.mean),
        lambda x: x.type(torch.float64),
    ],
)
def test_what_changes_nothing_returns_the_same_object(no_op):
    assert no_op(X) is X
    torch.testing.assert_close((X + no_op(X)).var, 4 * X.var)


def test_a_half_precision_value_is_the_same_object_after_a_cast_to_what_it_is():
    x = X.half()
    assert x.half() is x and x.to(torch.float16) is x
    assert x.float() is not x


def test_a_copy_is_another_object():
    assert X.clone() is not X and X.to(torch.float64, copy=True) is not X


SECOND = gaussian(2, 4, 4, seed=3)
IMAGE, MATRIX, VECTOR = gaussian(2, 4, 4), gaussian(3, 4), gaussian(4)
KNOWN = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
# torch's own names of all arguments, in the order in which torch takes them without names
NAMED = [
    (torch.flatten, {"input": IMAGE, "start_dim": 1}), (torch.transpose, {"input": IMAGE, "dim0": 0, "dim1": 1}),
    (torch.chunk, {"input": IMAGE, "chunks": 2}), (torch.permute, {"input": IMAGE, "dims": (1, 0, 2)}),
    (torch.reshape, {"input": IMAGE, "shape": (2, 16)}), (torch.unsqueeze, {"input": IMAGE, "dim": 0}),
    (torch.sigmoid, {"input": IMAGE}), (torch.neg, {"input": IMAGE}), (torch.square, {"input": IMAGE}),
    (torch.clamp, {"input": IMAGE, "min": 0.0}), (torch.pow, {"input": IMAGE, "exponent": 2}),
    (F.gelu, {"input": IMAGE}), (F.prelu, {"input": IMAGE, "weight": KNOWN[0, 0, :1]}),
    (F.linear, {"input": IMAGE, "weight": KNOWN[0].T, "bias": KNOWN[0, 0]}),
    (F.conv1d, {"input": IMAGE, "weight": KNOWN, "bias": KNOWN[:, 0, 0], "stride": 2}),
    (F.conv_transpose1d, {"input": IMAGE, "weight": KNOWN}), (torch.dropout, {"input": IMAGE, "p": 0.5, "train": True}),
    (torch.alpha_dropout, {"input": IMAGE, "p": 0.5, "train": True}),
    (torch.layer_norm, {"input": IMAGE, "normalized_shape": [4]}),
    (torch.group_norm, {"input": IMAGE, "num_groups": 2}),
    (torch.mm, {"input": MATRIX, "mat2": KNOWN[0]}), (torch.bmm, {"input": IMAGE, "mat2": SECOND}),
    (torch.mv, {"input": MATRIX, "vec": VECTOR}), (torch.dot, {"input": VECTOR, "tensor": KNOWN[0, :, 0]}),
    (torch.matmul, {"input": MATRIX, "other": KNOWN[0]}), (torch.inner, {"input": VECTOR, "other": KNOWN[0, :, 0]}),
    (torch.addmm, {"input": KNOWN[0, :3], "mat1": MATRIX, "mat2": KNOWN[0]}),
    (torch.baddbmm, {"input": SECOND.mean, "batch1": IMAGE, "batch2": SECOND}),
    (torch.addmv, {"input": KNOWN[0, 0], "mat": MATRIX, "vec": VECTOR}),
    (torch.maximum, {"input": IMAGE, "other": SECOND}), (torch.minimum, {"input": SECOND.mean, "other": IMAGE}),
    (torch.add, {"input": IMAGE, "other": SECOND}), (torch.mul, {"input": SECOND.mean, "other": IMAGE}),
    (torch.where, {"condition": SECOND.mean > 0, "input": IMAGE, "other": SECOND}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments"), NAMED, ids=lambda x: getattr(x, "__name__", ""))
def test_arguments_by_torchs_names_are_those_by_place(function, arguments):
    expected, out = function(*arguments.values()), function(**dict(reversed(arguments.items())))
    for one, other in zip(out, expected, strict=True) if isinstance(out, tuple) else [(out, expected)]:
        assert torch.equal(one.mean, other.mean) and torch.equal(one.var, other.var)


@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.mul, torch.div, F.linear, torch.relu])
def test_a_joint_gaussian_takes_torchs_names_too(function):
    x = mnvi.JointGaussian(torch.ones(2), torch.eye(2))
    names = {torch.relu: {}, F.linear: {"weight": torch.ones(3, 2)}}.get(function, {"other": torch.ones(2)})
    assert torch.equal(function(input=x, **names).cov, function(x, *names.values()).cov)
