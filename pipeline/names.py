"""The error for an unknown name: it lists the known names and suggests the nearest."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from pipeline.errors import StudyError


def unknown(path: str, name: Any, known: Collection[str], what: str) -> StudyError:
    return StudyError(f"{path}: {not_known(name, known, what)}")


def not_known(name: Any, known: Collection[str], what: str) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    to_do = f"did you mean {near[0]}?" if near else "use one of them"
    return f"{name!r} is not {what} ({', '.join(known) or 'there are none'}); {to_do}"
