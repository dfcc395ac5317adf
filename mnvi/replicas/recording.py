"""Runs a function of tensors once, records it as a list of plain operations, and replays the list.

Replaying skips what torch.func spends on every call: transforms, dispatch and autograd. Shapes and all decisions that
the function made in Python are fixed. Random numbers are drawn anew, with one generator for every entry of the first
dimension.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from mnvi.moments._torch import OpOverload
from mnvi.moments.tracing import for_compiler

aten = torch.ops.aten

Generators = list[torch.Generator]
_SHAPE_ONLY = (aten.ones_like.default, aten.zeros_like.default, aten.new_zeros.default, aten.new_ones.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default)
_COPIES = (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
_NEUTRAL = {
    aten.mul.Scalar: 1, aten.mul.Tensor: 1, aten.div.Scalar: 1, aten.div.Tensor: 1, aten.pow.Tensor_Scalar: 1,
    aten.add.Tensor: 0, aten.sub.Tensor: 0,
}  # fmt: skip
# Positions of arguments that an operation writes to without declaring it: batch norm's running statistics.
_SILENT_WRITES: dict[Any, tuple[int, ...]] = {
    aten.native_batch_norm.default: (3, 4), aten.cudnn_batch_norm.default: (3, 4),
    aten.miopen_batch_norm.default: (3, 4),
}  # fmt: skip
_TALL = 3  # a product with this many times more rows than columns is faster as its transpose


class Recording:
    """``function(*args)`` as plain operations.

    Args:
        function: takes tensors, or dictionaries and lists of tensors.
        args: example arguments; later calls must have the same shapes.
        generators: sources of random operations, the k-th one for entry k of their first dimension; the list may get
            other generators between calls.
        compile: let torch's compiler fuse the operations, which costs the first call about ten seconds.

    Example:
        >>> import torch
        >>> squares = Recording(lambda x: x**2 + torch.randn_like(x), (torch.ones(2, 3),), [torch.Generator()] * 2)
        >>> squares(torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(self, function: Callable, args: tuple, generators: Generators, compile: bool = False) -> None:
        self.generators = generators
        with for_compiler(compile):
            self.module = make_fx(lambda *given: function(*given))(*args)
        _simplify(self.module)
        _widen_products(self.module.graph)
        self.noise = [_hoisted(self.module, node) for node in self.module.graph.nodes if _is_random(node)]
        self.module.graph.lint()
        self.module.recompile()
        self._replay = torch.compile(self.module, dynamic=False) if compile else self.module

    def __call__(self, *args: Any) -> Any:
        for noise in self.noise:
            noise.draw(self.generators)
        with torch.no_grad():
            return self._replay(*args)

    def captured(self) -> list[Tensor]:
        """Tensors that the function used but did not get as arguments; every call reads their current values."""
        read = self.module.graph.find_nodes(op="get_attr")
        return [getattr(self.module, str(node.target)) for node in read]

    def working_set(self) -> int:
        """Largest number of bytes alive at once."""
        last_use: dict[fx.Node, fx.Node] = {}
        for node in self.module.graph.nodes:
            for used in node.all_input_nodes:
                last_use[used] = node
        alive = peak = 0
        for node in self.module.graph.nodes:
            alive += _bytes(node)
            peak = max(peak, alive)
            alive -= sum(_bytes(used) for used in node.all_input_nodes if last_use[used] is node)
        return peak


def _bytes(node: fx.Node) -> int:
    if not isinstance(node.target, OpOverload) or node.target.is_view:
        return 0
    values = node.meta.get("val")
    tensors = values if isinstance(values, tuple | list) else [values]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def _simplify(module: fx.GraphModule) -> None:
    """Drop operations without effect, repeated ones, and those with the same result in every call."""
    graph = module.graph
    changed = {base for node in graph.nodes for base in _changed(node)}  # at any time
    constants: dict[fx.Node, Any] = {}
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if now := _changed(node):
            seen = {key: old for key, old in seen.items() if now.isdisjoint(map(_base, old.all_input_nodes))}
        if node.op != "call_function" or _is_in_place(node) or _is_random(node) or _base(node) in changed:
            continue
        same = _without_effect(node)
        if same is not None and _base(same) not in changed:
            node.replace_all_uses_with(same)
            continue
        if node.target in _SHAPE_ONLY or all(argument in constants for argument in node.all_input_nodes):
            constants[node] = _value(node, constants)
        key = _key(node)
        if key in seen:
            node.replace_all_uses_with(seen[key])
        else:
            seen[key] = node
    _inline(module, constants)
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or _is_in_place(node))


def _widen_products(graph: fx.Graph) -> None:
    """Compute a tall AB as (BᵀAᵀ)ᵀ: batched products of small matrices are faster when wide."""
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        _, rows, columns = node.meta["val"].shape
        if rows < _TALL * columns:
            continue
        with graph.inserting_before(node):
            a, b = (graph.call_function(aten.transpose.int, (operand, 1, 2)) for operand in node.args)
            wide = graph.call_function(aten.bmm.default, (b, a))
            tall = graph.call_function(aten.transpose.int, (wide, 1, 2))
            tall = graph.call_function(aten.clone.default, (tall,), {"memory_format": torch.contiguous_format})
        wide.meta["val"] = tall.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(tall)
        graph.erase_node(node)


def _inline(module: fx.GraphModule, constants: dict[fx.Node, Any]) -> None:
    for index, (node, value) in enumerate(constants.items()):
        if isinstance(value, Tensor) and any(user not in constants for user in node.users):
            module.register_buffer(f"constant_{index}", value)
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"constant_{index}"))


def _value(node: fx.Node, constants: dict[fx.Node, Any]) -> Any:
    if node.target in _SHAPE_ONLY:
        example = node.meta["val"]
        fill = torch.ones if node.target in (aten.ones_like.default, aten.new_ones.default) else torch.zeros
        return fill(example.shape, dtype=example.dtype, device=example.device)
    args, kwargs = fx.map_arg((node.args, node.kwargs), constants.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _without_effect(node: fx.Node) -> fx.Node | None:
    """The argument that the node returns unchanged, if any."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node):
        return None
    if node.target in _COPIES:
        return source
    if node.target is aten.transpose.int and source.target is aten.transpose.int and source.args[1:] == node.args[1:]:
        return source.args[0]  # type: ignore[return-value]
    same_form = _form(source) is not None and _form(source) == _form(node)
    if node.target in _RESHAPES and same_form and not (node.target is aten.permute.default and _permutes(node)):
        return source
    if node.target in _NEUTRAL and same_form and len(node.args) == 2 and not node.kwargs:
        factor = node.args[1]
        return source if isinstance(factor, int | float) and factor == _NEUTRAL[node.target] else None
    return None


def _permutes(node: fx.Node) -> bool:
    order = node.args[1]
    return list(order) != list(range(len(order)))  # type: ignore[arg-type]


def _form(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return (value.shape, value.dtype) if isinstance(value, Tensor) else None


def _key(node: fx.Node) -> Any:
    """Equal for nodes that compute the same."""
    return str(node.target), repr(node.args), repr(sorted(node.kwargs.items()))


def _base(node: fx.Node) -> fx.Node:
    """The node that owns the memory of a node's result: views and in-place operations own none."""
    while shared := _shared(node):
        node = shared[0]
    return node


def _shared(node: fx.Node) -> list[fx.Node]:
    """Arguments that share memory with a node's result."""
    if node.target in (operator.getitem, aten._unsafe_view.default):
        return node.all_input_nodes[:1]
    return [argument for argument, _ in _aliases(node)]


def _changed(node: fx.Node) -> set[fx.Node]:
    """The nodes that a node writes to."""
    written = [argument for argument, is_written in _aliases(node) if is_written]
    for index in _SILENT_WRITES.get(node.target, ()):
        written += _nodes(node.args[index])
    return set(map(_base, written))


def _aliases(node: fx.Node) -> list[tuple[fx.Node, bool]]:
    """Arguments that, as the operation declares, share memory with its result, and whether it writes to them."""
    if not isinstance(node.target, OpOverload):
        return []
    found = []
    for index, declared in enumerate(node.target._schema.arguments):
        if declared.alias_info is not None:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(declared.name)
            found += [(argument, declared.alias_info.is_write) for argument in _nodes(value)]
    return found


def _nodes(argument: Any) -> list[fx.Node]:
    nodes: list[fx.Node] = []
    fx.map_arg(argument, nodes.append)
    return nodes


def _is_in_place(node: fx.Node) -> bool:
    declared = isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    return declared or node.target in _SILENT_WRITES


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


class _Noise(NamedTuple):
    """Random numbers that a recording reads; each replica's come from its own generator."""

    values: Tensor
    fill: Callable[..., Any]
    arguments: tuple

    def draw(self, generators: Generators) -> None:
        for part, generator in zip(self.values.unbind(), generators, strict=True):
            self.fill(part, *self.arguments, generator=generator)


def _hoisted(module: fx.GraphModule, node: fx.Node) -> _Noise:
    """Replace a random operation by numbers drawn before each replay."""
    operation: Any = node.target
    if operation not in _FILLS:
        known = ", ".join(sorted(str(known).removeprefix("aten.") for known in _FILLS))
        raise NotImplementedError(
            f"{operation}: replicas cannot each draw from it with their own generator; supported: {known}"
        )
    example = node.meta["val"]
    noise = _Noise(
        torch.empty(example.shape, dtype=example.dtype, device=example.device), _FILLS[operation], node.args[1:]
    )
    module.register_buffer(f"noise_{node.name}", noise.values)
    with module.graph.inserting_before(node):
        values = module.graph.get_attr(f"noise_{node.name}")
        if _is_in_place(node):
            values = module.graph.call_function(aten.copy_.default, (node.args[0], values))
    node.replace_all_uses_with(values)
    module.graph.erase_node(node)
    return noise


_FILLS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: Tensor.bernoulli_,
    aten.bernoulli.p: Tensor.bernoulli_,
    aten.randn.default: Tensor.normal_,
    aten.randn_like.default: Tensor.normal_,
    aten.normal_.default: Tensor.normal_,
    aten.rand.default: Tensor.uniform_,
    aten.rand_like.default: Tensor.uniform_,
    aten.uniform_.default: Tensor.uniform_,
}
