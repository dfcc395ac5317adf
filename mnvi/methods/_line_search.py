"""Searches for one number: golden sections, and the temperature with the lowest negative log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
_SHRINK = (math.sqrt(5) - 1) / 2
_REFINEMENTS = 6


def best_temperature(nll: Callable[[float], float]) -> tuple[float, float]:
    """The lowest NLL and its temperature: the best of a few, refined between its neighbours.

    Args:
        nll: negative log-likelihood as a function of the temperature.

    Example:
        >>> nll, temperature = best_temperature(lambda t: (t - 1.7) ** 2)
        >>> abs(temperature - 1.7) < 0.02
        True
    """
    found = [(nll(temperature), temperature) for temperature in TEMPERATURES]
    place = TEMPERATURES.index(min(found)[1])
    low, high = TEMPERATURES[max(place - 1, 0)], TEMPERATURES[min(place + 1, len(found) - 1)]
    refined = lowest(lambda log: nll(math.exp(log)), math.log(low), math.log(high))
    return min(min(found), (refined[0], math.exp(refined[1])))


def lowest(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Golden-section search: the lowest value found, and where."""
    inner = [high - _SHRINK * (high - low), low + _SHRINK * (high - low)]
    values = [function(inner[0]), function(inner[1])]
    found = list(zip(values, inner, strict=True))
    for _ in range(_REFINEMENTS):
        if values[0] < values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _SHRINK * (high - low)
            values[0] = function(inner[0])
            found.append((values[0], inner[0]))
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _SHRINK * (high - low)
            values[1] = function(inner[1])
            found.append((values[1], inner[1]))
    return min(found)
