"""Predicted means and variances beside those of sampled weights, layer by layer."""

from mnvi.comparison.comparing import compare_with_sampling
from mnvi.comparison.drawing import drawn_weights
from mnvi.comparison.result import ComparedLayer, Comparison

__all__ = ["ComparedLayer", "Comparison", "compare_with_sampling", "drawn_weights"]
