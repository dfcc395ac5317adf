"""Turns the reStructuredText of docstrings into Markdown: equations and references to other names.

``:func:`mnvi.convert``` becomes a link if the reference page has that name, else plain code.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

from tools.website import reference

BLOCK = re.compile(r"^( *)\.\. math::[ ]*(.*(?:\n(?:\1 +\S.*))*)", re.MULTILINE)
EXAMPLE = re.compile(r"(?<=\n)Example:(?=\n)")  # the plural makes the parser set doctests as code
MATHS = re.compile(r":math:`([^`]+)`")
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`([^`]+)`")


class RestructuredText(griffe.Extension):
    def __init__(self) -> None:
        self.listed = {name for room in reference.names().values() for name in room}

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value, self.listed)


def markdown(text: str, listed: set[str]) -> str:
    """A docstring in Markdown; ``listed`` has the names that can be linked."""
    text = EXAMPLE.sub("Examples:", BLOCK.sub(_equation, text))
    text = MATHS.sub(lambda found: f"${' '.join(found[1].split())}$", text)
    return ROLE.sub(lambda found: _reference(found[1].lstrip("~."), listed), text)


def _equation(found: re.Match[str]) -> str:
    lines = textwrap.indent(textwrap.dedent(found[2]).strip(), found[1])
    return f"\n{found[1]}$$\n{lines}\n{found[1]}$$\n"


def _reference(name: str, listed: set[str]) -> str:
    full = name if name in listed else f"mnvi.{name}"
    return f"[`{name}`][{full}]" if full in listed else f"`{name}`"
