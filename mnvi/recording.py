"""A function of tensors, run once and written down as a list of plain operations, which are then replayed.

Replaying skips what torch.func spends on every call: transforms, dispatch and autograd. Shapes and everything that the
function decided in Python are fixed; random numbers are drawn anew, one generator for every entry of the first
dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

Generators = list[torch.Generator]
_SHAPE_ONLY = (aten.ones_like.default, aten.zeros_like.default, aten.new_zeros.default, aten.new_ones.default)
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default)
_COPIES = (aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
_NEUTRAL = {
    aten.mul.Scalar: 1, aten.mul.Tensor: 1, aten.div.Scalar: 1, aten.div.Tensor: 1, aten.pow.Tensor_Scalar: 1,
    aten.add.Tensor: 0, aten.sub.Tensor: 0,
}  # fmt: skip


class Recording:
    """``function(*args)`` as plain operations.

    Args:
        function: of tensors, or dictionaries and lists of tensors.
        args: examples; later calls must have the same shapes.
        generators: what random operations draw from, the k-th one for entry k of their first dimension; the list may
            be given other generators between calls.

    Example:
        >>> import torch
        >>> squares = Recording(lambda x: x**2 + torch.randn_like(x), (torch.ones(2, 3),), [torch.Generator()] * 2)
        >>> squares(torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(self, function: Callable, args: tuple, generators: Generators) -> None:
        self.generators = generators
        self.module = make_fx(lambda *given: function(*given))(*args)
        _simplify(self.module)
        for node in self.module.graph.nodes:
            if _is_random(node):
                self.module.add_submodule(f"draw_{node.name}", _Draw(node.target, generators))
                node.op, node.target = "call_module", f"draw_{node.name}"
        self.module.graph.lint()
        self.module.recompile()

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            return self.module(*args)

    def working_set(self) -> int:
        """Bytes that are alive at once, at most."""
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
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.is_view:
        return 0
    values = node.meta.get("val")
    tensors = values if isinstance(values, tuple | list) else [values]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def _simplify(module: fx.GraphModule) -> None:
    """Leaves out what has no effect, what was computed before, and what is the same in every call."""
    graph = module.graph
    changed_in_place = {
        argument for node in graph.nodes if _is_in_place(node) for argument in (node.args[0], *_bases(node.args[0]))
    }
    constants: dict[fx.Node, Any] = {}
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or _is_in_place(node) or _is_random(node) or node in changed_in_place:
            continue
        same = _without_effect(node)
        if same is not None and same not in changed_in_place:
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
    """The argument that the node returns unchanged."""
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


def _bases(node: Any) -> list[fx.Node]:
    """What a view looks at."""
    bases = []
    while isinstance(node, fx.Node) and isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.args[0]
        bases.append(node)
    return bases


def _is_in_place(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


class _Draw(nn.Module):
    """A random operation, drawn for every replica from its own generator."""

    def __init__(self, operation: Any, generators: Generators) -> None:
        super().__init__()
        if operation not in _DRAWINGS:
            known = ", ".join(sorted(str(known).removeprefix("aten.") for known in _DRAWINGS))
            raise NotImplementedError(
                f"{operation}: replicas cannot draw from it, each with its own generator; they can: {known}"
            )
        self.draw = _DRAWINGS[operation]
        self.generators = generators

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.draw(self.generators, *args, **kwargs)


def _bernoulli_in_place(generators: Generators, out: Tensor, p: float = 0.5, generator: None = None) -> Tensor:
    return _each(generators, out, lambda part, g: part.bernoulli_(p, generator=g))


def _bernoulli_like(generators: Generators, like: Tensor, p: float, generator: None = None) -> Tensor:
    return _bernoulli_in_place(generators, _empty(like), p)


def _bernoulli(generators: Generators, p: Tensor, generator: None = None) -> Tensor:
    return torch.stack([torch.bernoulli(part, generator=g) for part, g in zip(p, generators, strict=True)])


def _normal(generators: Generators, like: Any, **kwargs: Any) -> Tensor:
    return _each(generators, _empty(like, **kwargs), lambda part, g: part.normal_(generator=g))


def _uniform(generators: Generators, like: Any, **kwargs: Any) -> Tensor:
    return _each(generators, _empty(like, **kwargs), lambda part, g: part.uniform_(generator=g))


def _normal_in_place(
    generators: Generators, out: Tensor, mean: float = 0, std: float = 1, generator: None = None
) -> Tensor:
    return _each(generators, out, lambda part, g: part.normal_(mean, std, generator=g))


def _uniform_in_place(
    generators: Generators, out: Tensor, low: float = 0, high: float = 1, generator: None = None
) -> Tensor:
    return _each(generators, out, lambda part, g: part.uniform_(low, high, generator=g))


def _empty(like: Any, **kwargs: Any) -> Tensor:
    if isinstance(like, Tensor):
        return torch.empty(like.shape, dtype=kwargs.get("dtype") or like.dtype, device=like.device)
    return torch.empty(like, dtype=kwargs.get("dtype"), device=kwargs.get("device"))


def _each(generators: Generators, out: Tensor, fill: Callable[[Tensor, torch.Generator], Any]) -> Tensor:
    for part, generator in zip(out.unbind(), generators, strict=True):
        fill(part, generator)
    return out


_DRAWINGS: dict[Any, Callable] = {
    aten.bernoulli_.float: _bernoulli_in_place,
    aten.bernoulli.p: _bernoulli_like,
    aten.bernoulli.default: _bernoulli,
    aten.randn.default: _normal,
    aten.randn_like.default: _normal,
    aten.rand.default: _uniform,
    aten.rand_like.default: _uniform,
    aten.normal_.default: _normal_in_place,
    aten.uniform_.default: _uniform_in_place,
}
