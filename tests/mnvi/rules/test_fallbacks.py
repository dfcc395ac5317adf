"""Whoever listens hears of every fallback, and nobody else."""

from __future__ import annotations

import pytest

from mnvi.rules.fallbacks import fell_back, listening


def test_the_innermost_listener_hears_and_nobody_after_the_block() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with listening(outer.append):
        fell_back("a")
        with listening(inner.append):
            fell_back("b")
        fell_back("c")
    fell_back("d")
    assert (outer, inner) == (["a", "c"], ["b"])


def test_an_error_ends_the_listening() -> None:
    heard: list[str] = []
    with pytest.raises(ZeroDivisionError), listening(heard.append):
        raise ZeroDivisionError
    fell_back("a")
    assert heard == []
