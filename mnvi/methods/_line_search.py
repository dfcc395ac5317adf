"""Searches for one number: golden sections, and the temperature with the lowest negative log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
_LEAST, _MOST = 1 / 32, 32.0  # beyond these it says nothing about the network any more
_SHRINK = (math.sqrt(5) - 1) / 2
_REFINEMENTS = 6


def best_temperature(nll: Callable[[float], float]) -> tuple[float, float]:
    """The lowest NLL and its temperature: the best of :func:`tried`, refined between its neighbours.

    Args:
        nll: negative log-likelihood as a function of the temperature.

    Example:
        >>> nll, temperature = best_temperature(lambda t: (t - 1.7) ** 2)
        >>> abs(temperature - 1.7) < 0.02
        True
    """
    found = tried(nll)
    place = found.index(min(found, key=lambda pair: pair[1]))
    low, high = found[max(place - 1, 0)][0], found[min(place + 1, len(found) - 1)][0]
    refined = lowest(lambda log: nll(math.exp(log)), math.log(low), math.log(high))
    return min((found[place][1], found[place][0]), (refined[0], math.exp(refined[1])))


def tried(nll: Callable[[float], float]) -> list[tuple[float, float]]:
    """Temperatures from low to high, each with its NLL: a few, and further ones while the best is at an end.

    Example:
        >>> [temperature for temperature, _ in tried(lambda t: (t - 9) ** 2)]
        [0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 5.6, 11.2, 22.4]
    """
    found = [(temperature, nll(temperature)) for temperature in TEMPERATURES]
    while True:
        best = min(found, key=lambda pair: pair[1])
        if best == found[-1] and best[0] * 2 <= _MOST:
            found.append((best[0] * 2, nll(best[0] * 2)))
        elif best == found[0] and best[0] / 2 >= _LEAST:
            found.insert(0, (best[0] / 2, nll(best[0] / 2)))
        else:
            return found


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
