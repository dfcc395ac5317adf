"""How the study's networks propagate means and variances: as in the paper, except where a method changes it."""

from __future__ import annotations

from typing import Any

import mnvi
from pipeline.registry.methods import Method


def settings(method: Method) -> dict[str, Any]:
    """Arguments of :class:`mnvi.options` for a method, as JSON values; the KL rounds as in the recorded tables."""
    return {**mnvi.options.PAPER, "kl": "by_layer", **method.options}


def options(method: Method) -> mnvi.options:
    return mnvi.options(**settings(method))
