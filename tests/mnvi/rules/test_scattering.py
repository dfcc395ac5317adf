"""Scatter, index and sparse products: the moments of samples, gradients, and what has no meaning."""

import math

import pytest
import torch
import torch.nn.functional as F
from rule_checks import (
    assert_gradients_are_right,
    assert_half_precision_keeps_the_variance,
    assert_moments_are_those_of_samples,
    assert_zero_variance_is_deterministic,
    gaussian,
)

import mnvi
from mnvi.moments.sparse import squared

INDEX = torch.tensor([[0, 2, 2, 1], [1, 1, 0, 0], [2, 2, 2, 2]])
ROWS = torch.tensor([2, 0, 2, 1, 0])
EDGES = torch.tensor([[0, 1, 2, 2, 3, 0], [1, 0, 0, 3, 2, 2]])  # from, to


def aggregated(x, reduce: str):
    """One round of message passing: nodes [nodes, features] send along the edges to a zero tensor."""
    index = EDGES[1][:, None].expand(-1, x.shape[1])
    return torch.zeros(4, x.shape[1], dtype=x.dtype).scatter_reduce(0, index, x[EDGES[0]], reduce, include_self=False)


KNOWN = torch.randn(100, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def fixed(*shape: int) -> torch.Tensor:
    return KNOWN[: math.prod(shape)].view(shape)


CASES = {
    "scatter": lambda x: torch.scatter(x, 1, INDEX[:, :1], fixed(3, 2)),
    "scatter into a tensor": lambda x: torch.scatter(fixed(3, 4), 1, INDEX[:, :1], x[:, :1]),
    "scatter a number": lambda x: x.scatter(1, INDEX[:, :2], 2.0),
    "scatter_add": lambda x: x.scatter_add(1, INDEX, fixed(3, 4)),
    "scatter_add into a tensor": lambda x: torch.scatter_add(fixed(3, 4), 1, INDEX, x),
    "scatter sum": lambda x: torch.scatter_reduce(fixed(3, 4), 0, INDEX, x, "sum"),
    "scatter sum without self": lambda x: torch.scatter_reduce(fixed(3, 4), 0, INDEX, x, "sum", include_self=False),
    "scatter mean": lambda x: x.scatter_reduce(0, INDEX, fixed(3, 4), "mean"),
    "scatter mean without self": lambda x: torch.scatter_reduce(fixed(3, 4), 0, INDEX, x, "mean", include_self=False),
    "index_add": lambda x: torch.index_add(fixed(3, 4), 0, torch.tensor([2, 0, 2]), x, alpha=-1.5),
    "index_add to a Gaussian": lambda x: x.index_add(1, torch.tensor([3, 3]), fixed(3, 2)),
    "index_copy": lambda x: torch.index_copy(fixed(5, 4), 0, torch.tensor([4, 0, 2]), x),
    "index_put": lambda x: torch.index_put(fixed(5, 4), (torch.tensor([4, 0, 2]),), x),
    "index_put, added": lambda x: fixed(5, 4).index_put((torch.tensor([4, 0, 4]),), x, accumulate=True),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0, 2]), 3.0),
    "select_scatter": lambda x: torch.select_scatter(fixed(2, 3, 4), x, 0, 1),
    "slice_scatter": lambda x: torch.slice_scatter(x, fixed(3, 2), 1, 1, 3),
    "gather": lambda x: torch.gather(x, 1, INDEX[:, :3]),
}


@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_samples(name):
    assert_moments_are_those_of_samples(CASES[name], gaussian(3, 4))


@pytest.mark.parametrize("name", CASES)
def test_zero_variance_and_gradients(name):
    assert_zero_variance_is_deterministic(CASES[name], gaussian(3, 4))
    assert_gradients_are_right(CASES[name], gaussian(3, 4))


@pytest.mark.parametrize(
    "call",
    [lambda x, y: x.masked_scatter(INDEX > 1, y), lambda x, y: torch.put(x, torch.tensor([1, 2, 8]), y.view(-1)[:3])],
)
def test_entries_written_by_a_mask_or_by_number_bring_their_variance(call):
    x, y = gaussian(3, 4), gaussian(3, 4, seed=1)
    out = call(x, y)
    assert torch.equal(out.mean, call(x.mean, y.mean)) and torch.equal(out.var, call(x.var, y.var))
    assert torch.equal(call(x, y.mean).var, call(x.var, torch.zeros(3, 4).double()))
    assert_gradients_are_right(call, x, y)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_message_passing_has_the_moments_of_samples(reduce):
    assert_moments_are_those_of_samples(lambda x: aggregated(x, reduce), gaussian(4, 3))
    assert_gradients_are_right(lambda x: aggregated(x, reduce), gaussian(4, 3))


@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_extremes_are_those_of_samples_where_the_order_is_sure(reduce, include_self):
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0)).double().view(2, 12)
    x, y = (mnvi.Gaussian(20 * half.view(3, 4), gaussian(3, 4).var) for half in order)

    def reduced(x, y):
        return torch.scatter_reduce(y, 0, INDEX, x, reduce, include_self=include_self)

    assert_moments_are_those_of_samples(reduced, x, y)
    assert_gradients_are_right(reduced, x, y)


def test_in_place_forms_change_a_gaussian_and_refuse_a_tensor():
    x, source = gaussian(3, 4), gaussian(3, 4, seed=1)
    expected = x.index_add(0, torch.tensor([1, 1, 0]), source)
    assert x.index_add_(0, torch.tensor([1, 1, 0]), source) is x
    assert torch.equal(x.var, expected.var)
    with pytest.raises(RuntimeError, match=r"y = x\.scatter_add\("):
        torch.zeros(3, 4).double().scatter_add_(1, INDEX, source)


def test_a_value_added_to_itself_is_refused():
    x = gaussian(3, 4)
    for call in (
        lambda: x.scatter_add(1, INDEX, x),
        lambda: torch.index_add(x, 0, torch.tensor([0, 1, 2]), x),
        lambda: x.index_put((torch.tensor([0, 1, 2]),), x, True),
    ):
        with pytest.raises(TypeError, match="not independent of itself"):
            call()


def test_a_reduction_without_a_rule_names_the_known_ones():
    with pytest.raises(TypeError, match=r"reduce='prod' has no rule for a Gaussian; known: sum, mean, amax, amin"):
        torch.scatter_reduce(gaussian(3, 4), 0, INDEX, fixed(3, 4), "prod")


def adjacency(layout: str) -> torch.Tensor:
    dense = torch.zeros(4, 4, dtype=torch.float64)
    dense[EDGES[1], EDGES[0]] = fixed(6)
    if layout == "coo":  # every entry twice: they add up
        return torch.sparse_coo_tensor(
            EDGES.flip(0).repeat(1, 2), fixed(6).repeat(2) / 2, (4, 4), check_invariants=False
        )
    return dense if layout == "strided" else getattr(dense, f"to_sparse_{layout}")()


PRODUCTS = {
    "sparse.mm": torch.sparse.mm,
    "mm": torch.mm,
    "matmul": torch.matmul,
    "@": lambda a, x: a @ x,
    "addmm": lambda a, x: torch.sparse.addmm(fixed(4, 3), a, x, beta=2.0, alpha=3.0),
    "mv": lambda a, x: torch.mv(a, x[:, 0]),
}


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_sparse_matrix_gives_what_the_dense_one_gives(name, layout):
    if name == "mv" and layout == "csc":
        pytest.skip("torch has no product of this layout with a vector")
    x = gaussian(4, 3)
    out, expected = PRODUCTS[name](adjacency(layout), x), PRODUCTS[name](adjacency("strided"), x)
    torch.testing.assert_close((out.mean, out.var), (expected.mean, expected.var))


def test_a_sparse_product_has_gradients():
    matrix = adjacency("coo").coalesce()
    assert_gradients_are_right(lambda x: torch.sparse.mm(matrix, x), gaussian(4, 3))


def test_the_square_of_a_sparse_matrix_adds_repeated_entries_first():
    matrix = adjacency("coo")
    assert not matrix.is_coalesced()
    torch.testing.assert_close(squared(matrix).to_dense(), adjacency("strided").square())


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_unpooling_puts_moments_back_where_they_came_from(dims):
    pool, unpool = getattr(F, f"max_pool{dims}d"), getattr(F, f"max_unpool{dims}d")
    x = gaussian(2, 3, *[4] * dims)
    pooled, indices = pool(x, 2, return_indices=True)
    back = unpool(pooled, indices, 2)
    expected = unpool(pooled.mean, indices, 2)
    assert torch.equal(back.mean, expected) and torch.equal(back.var > 0, expected != 0)
    assert_gradients_are_right(lambda p: unpool(p, indices, 2), pooled)
    assert getattr(torch.nn, f"MaxUnpool{dims}d")(2)(pooled, indices).shape == x.shape


def test_half_precision_keeps_the_variance():
    def both(x):
        sent = torch.zeros(3, 4, dtype=x.dtype).scatter_reduce(0, INDEX, x, "mean", include_self=False)
        return sent.index_add(0, torch.tensor([1, 0, 0]), x)

    assert_half_precision_keeps_the_variance(both, gaussian(3, 4))


def test_compile_and_export_without_graph_breaks():
    class Graph(torch.nn.Module):
        def forward(self, mean, var):
            x = mnvi.Gaussian.trusted(mean, var)
            out = aggregated(x, "mean").index_add(0, torch.tensor([0, 1]), x[:2])
            return out.mean, out.var

    x = gaussian(4, 3, dtype=torch.float32)
    expected = Graph()(x.mean, x.var)
    compiled = torch.compile(Graph(), fullgraph=True, backend="aot_eager")(x.mean, x.var)
    exported = torch.export.export(Graph(), (x.mean, x.var)).module()(x.mean, x.var)
    torch.testing.assert_close(compiled, expected)
    torch.testing.assert_close(exported, expected)


WRITES = {
    "index_add_": lambda out, g: out.index_add_(0, torch.tensor([0, 0, 2]), g),
    "scatter_add_": lambda out, g: out.scatter_add_(0, torch.tensor([[0, 0], [1, 1], [0, 0]]), g),
    "__setitem__": lambda out, g: out.__setitem__(torch.tensor([2, 0, 1]), g),
    "copy_": lambda out, g: out.copy_(g),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_plain_target_is_refused_and_the_advice_of_the_message_is_right(name):
    g, out = gaussian(3, 2), torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises((RuntimeError, mnvi.NoRuleError), match=r"x = mnvi\.Gaussian\(x, torch\.zeros_like\(x\)\)"):
        WRITES[name](out, g)
    advised = mnvi.Gaussian(out, torch.zeros_like(out))
    WRITES[name](advised, g)
    mean, var = torch.zeros(3, 2).double(), torch.zeros(3, 2).double()
    WRITES[name](mean, g.mean)
    WRITES[name](var, g.var)
    torch.testing.assert_close(advised.mean, mean)
    torch.testing.assert_close(advised.var, var)
