"""torch's private names, and the questions about how torch runs operations.

The library uses private names only through this module, each with its reason. It also asks only here whether torch
compiles, transforms or differentiates what runs, so that each question has one name and one meaning.

The module lives here because all rooms may import ``moments``, and ``moments`` imports nothing but torch and itself.
Private *attributes* of torch's classes stay where a subclass or a copy of such a class handles them;
``PRIVATE_ATTRIBUTES`` lists them with their reasons.

Which question to ask:

==============================  ======================================================================================
``is_compiling()``              before code reads a context variable, a frame or a weak reference
``values_can_be_read(x)``       before code branches on values of ``x``
``is_fused()``                  to choose the formula that the compiler turns into the fastest code
``is_traced()``                 to choose between plain operations and a hand-written backward pass
``taking_forward_derivatives``  before a hand-written backward pass that has no forward mode
``is_wrapped(x)``               before code looks at the memory of ``x``
``in_dynamo()``                 only where Dynamo itself changes what is called; otherwise ``is_compiling()``
==============================  ======================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.distributions import Distribution
from torch.nn.modules.conv import _ConvNd as ConvNd  # the only common bases of torch's convolutions,
from torch.nn.modules.conv import _ConvTransposeNd as ConvTransposeNd
from torch.nn.modules.dropout import _DropoutNd as DropoutNd  # and of its dropouts
from torch.utils import _pytree as pytree  # the registry that torch.export and torch.func read; it has no public name

from mnvi.moments.tracing import Destination

__all__ = [
    "NATIVE_FUNCTIONS",
    "ConvNd",
    "ConvTransposeNd",
    "PRIVATE_ATTRIBUTES",
    "DropoutNd",
    "OpOverload",
    "OpOverloadPacket",
    "compiled_call",
    "compiler_options",
    "differentiation_levels",
    "distributions_are_checked",
    "each",
    "in_dynamo",
    "is_compiling",
    "is_fused",
    "is_traced",
    "is_wrapped",
    "let_dynamo_dispatch",
    "outside_of_traces",
    "plain_call",
    "pytree",
    "set_compiled_call",
    "share_memory",
    "taking_forward_derivatives",
    "values_can_be_read",
]

NATIVE_FUNCTIONS = torch._C._nn  # where torch's pooling modules and activations find the functions that they call
# Operators as graphs hold them.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket

PRIVATE_ATTRIBUTES = {
    "_apply": "overridden: torch's recurrent layers would flatten parameters that a layer no longer has",
    "_buffers": "a module's own buffers, without access to what a parametrisation computes",
    "_extended_shape": "the shape of samples: what torch asks subclasses of Distribution to call",
    "_flat_weight_refs": "emptied in a recurrent layer whose weights have a posterior",
    "_flat_weights": "emptied in a recurrent layer whose weights have a posterior",
    "_flat_weights_names": "emptied in a recurrent layer whose weights have a posterior",
    "_forward_hooks": "a model's hooks, to find or remove ours",
    "_forward_hooks_always_called": "removed together with a hook of ours",
    "_forward_pre_hooks": "a model's hooks, to find or remove ours",
    "_get_checked_instance": "Distribution.expand: torch's own subclasses begin with it",
    "_load_from_state_dict": "overridden, to read files with torch's names of weights",
    "_modules": "a module's own children, to replace a layer by its Bayesian form",
    "_non_persistent_buffers_set": "the buffers that are no part of a state",
    "_orig_mod": "the module inside of what torch.compile returns",
    "_output_padding": "of transposed convolutions: what output_size asks for",
    "_parameters": "a module's own parameters, without access to what a parametrisation computes",
    "_qkv_same_embed_dim": "whether torch's attention keeps one weight or three",
    "_reversed_padding_repeated_twice": "of convolutions with a padding_mode: the arguments of F.pad",
    "_save_to_state_dict": "overridden, to write torch's names of weights",
    "_schema": "arguments of an operator in a graph",
    "_unsafe_view": "an operator that graphs have",
    "_validate_args": "whether a distribution checks its arguments: torch's own subclasses read it",
    "_validate_sample": "what Distribution.log_prob calls to check its argument",
    "_version": "of a tensor: how often it was written to, so that what was computed from it can be kept until then",
}
"""The attributes of torch's classes that other modules of the library use or override, with the reason of each."""


# torch's own functions under our names. A function of ours around them would be wrong where Dynamo gives a frame up:
# the frame runs in eager mode, but Dynamo compiles the function that it calls, which then answers yes.
is_compiling = torch.compiler.is_compiling
"""Whether ``torch.compile`` or ``torch.export`` turns the operations into a graph, so that Python runs only once.

Context variables, frames and values cannot be read here, and operations written for eager mode do not help.
"""
in_dynamo = torch.compiler.is_dynamo_compiling
"""Whether Dynamo interprets the Python code: always for ``torch.compile``, not always for ``torch.export``."""


def is_fused() -> bool:
    """Whether torch's compiler will generate code from these operations: ``torch.compile``, or a recording for it.

    ``torch.export`` also compiles, but keeps the operations as they are, for whoever reads the file. torch 2.11 says
    that it exports whenever it compiles, so the answer there is yes for recordings alone. The answer chooses
    between formulas that are both right in eager mode, where it may be yes too if Dynamo gave the calling frame up.
    """
    return Destination.compiler or (is_compiling() and not torch.compiler.is_exporting())


def is_traced() -> bool:
    """Whether operations are compiled or transformed by ``torch.func``, instead of running one by one under autograd.

    Both do their own bookkeeping, better than a hand-written backward pass. As for :func:`is_fused`, both answers are
    right in eager mode.
    """
    return is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def is_wrapped(tensor: Tensor) -> bool:
    """Whether a tensor is a wrapper, inside ``torch.func``, of another tensor or of a batch."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def differentiation_levels(tensor: Tensor) -> set[int]:
    """Levels of the nested ``torch.func`` gradients taken through a tensor; -1 is autograd below all of them."""
    levels = set()
    while True:
        if tensor.requires_grad:
            levels.add(torch._C._functorch.maybe_get_level(tensor))
        if not is_wrapped(tensor):
            return levels
        tensor = torch._C._functorch.get_unwrapped(tensor)


def taking_forward_derivatives() -> bool:
    """Whether forward-mode derivatives are on: ``torch.func.jvp``, ``jacfwd``, ``torch.autograd.forward_ad``."""
    return forward_ad._current_level >= 0


def values_can_be_read(tensor: Tensor) -> bool:
    """False while tracing or inside ``torch.func.vmap``, where code cannot branch on values."""
    return not (
        is_compiling() or tensor.device.type == "meta" or is_wrapped(tensor) or type(tensor).__name__ == "FakeTensor"
    )


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are views of one memory; wrappers of ``torch.func`` have none to compare."""
    if is_wrapped(a) or is_wrapped(b):
        return False
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


class each:
    """One operation on every tensor of a list, launched once for all of them: torch has it only under private names."""

    add_ = torch._foreach_add_
    mul = torch._foreach_mul
    mul_ = torch._foreach_mul_
    neg = torch._foreach_neg
    neg_ = torch._foreach_neg_
    reciprocal_ = torch._foreach_reciprocal_


def outside_of_traces() -> AbstractContextManager[Any]:
    """Inside the block, operations run at once and on real tensors, whatever else records or fakes them."""
    return torch.utils._python_dispatch._disable_current_modes()


def let_dynamo_dispatch(*functions: Callable) -> None:
    """Tell ``torch.compile`` that these functions dispatch to ``__torch_function__`` of their arguments.

    They do, but torch's list says otherwise, and the compiler believes the list.
    """
    torch.overrides.get_ignored_functions().difference_update(functions)
    if dynamo := sys.modules.get("torch._dynamo.variables.torch"):  # a copy of the list, once dynamo is loaded
        dynamo.get_overridable_functions().update(functions)


def compiler_options() -> dict[str, Any] | None:
    """Options for ``torch.compile``: on a CPU a product and a sum become one instruction, which rounds once.

    The compiler's default forbids this, so that its results have the last digit of eager mode. Pointwise kernels of a
    training step of ResNet20 take up to an eighth less time with it. None if the compiler does not know the option.
    """
    import torch._inductor  # here, because it takes longer than the rest of the library

    name = "cpp.enable_floating_point_contract_flag"
    return {name: "fast"} if name in torch._inductor.list_options() else None


def compiled_call(module: nn.Module) -> Any:
    """What a compiled ``module(x)`` runs in place of its ``forward``; None if it is not compiled."""
    return module._compiled_call_impl


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Compile, or with None uncompile, a module in place.

    ``module.compile()`` does the former, but leaves torch's own containers (``nn.Sequential``) in pieces; nothing
    public does the latter.
    """
    module._compiled_call_impl = call


def plain_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """``module(*args, **kwargs)``, hooks included, whether or not it is compiled."""
    return module._call_impl(*args, **kwargs)


def distributions_are_checked() -> bool:
    """Whether torch's distributions check their arguments. torch lets one set this, but not read it."""
    return bool(Distribution._validate_args)
