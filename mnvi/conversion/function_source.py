"""What the source and the bytecode of a function say about it."""

from __future__ import annotations

import ast
import dis
import inspect
import sys
from collections.abc import Collection, Iterator
from types import CodeType, ModuleType
from typing import Any


def definition(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    """The syntax tree that code was compiled from, without decorators; None if it cannot be read or is ambiguous."""
    try:
        lines, first = inspect.getsourcelines(code)
        indented = lines[0][:1].isspace()
        tree = ast.parse("if True:\n" * indented + "".join(lines))
    except (OSError, SyntaxError, IndexError):
        return None
    ast.increment_lineno(tree, first - 1 - indented)
    if code.co_name == "<lambda>":
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        return lambdas[0] if len(lambdas) == 1 else None
    block: Any = tree.body[0]
    found = block.body[0] if indented else block
    if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) or found.name != code.co_name:
        return None
    found.decorator_list, found.returns = [], None
    if sys.version_info >= (3, 12):
        found.type_params = []
    return found


def with_nested(code: CodeType) -> Iterator[CodeType]:
    """The code and the code of lambdas, comprehensions and functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_nested(constant)


def calls_method(code: CodeType, methods: Collection[str], names: dict[str, Any]) -> bool:
    """Whether bytecode calls one of these methods; a module's function such as ``torch.mean`` does not count.

    Args:
        code: the bytecode.
        methods: names of methods.
        names: the global names that the code sees.
    """
    instructions = list(dis.get_instructions(code))
    for i, load in enumerate(instructions):
        if load.opname not in ("LOAD_METHOD", "LOAD_ATTR") or load.argval not in methods:
            continue
        before = instructions[i - 1]
        if before.opname == "LOAD_GLOBAL" and isinstance(names.get(before.argval), ModuleType):
            continue
        # Python 3.12 has one instruction for both; its lowest bit says that a call follows.
        if load.opname == "LOAD_METHOD" or (sys.version_info >= (3, 12) and (load.arg or 0) & 1):
            return True
        if _unpacks_into(instructions[i + 1 :]):
            return True
    return False


def _unpacks_into(following: list[dis.Instruction]) -> bool:
    """Whether the top of the stack is called as in ``f(*args)``, which loads a method like any other value."""
    above = 0
    for instruction in following:
        effect = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        # The call takes the function, a NULL (above it since Python 3.13) and the arguments, and leaves a result.
        if instruction.opname == "CALL_FUNCTION_EX" and above == -effect - (sys.version_info < (3, 13)):
            return True
        above += effect
        if above < 0:
            return False
    return False
