"""Model in, Bayesian model out."""

from mnvi.conversion.converting import convert

__all__ = ["convert"]
