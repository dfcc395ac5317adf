"""A trained model for prediction only: folded, frozen, compiled, exported."""

from mnvi.inference.exporting import export
from mnvi.inference.optimizing import optimize_for_inference

__all__ = ["export", "optimize_for_inference"]
