"""Model in, Bayesian model out."""

from mnvi.conversion.converting import convert
from mnvi.conversion.watching import UnusedPosteriorWarning

__all__ = ["UnusedPosteriorWarning", "convert"]
