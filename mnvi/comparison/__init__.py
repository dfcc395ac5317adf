"""Predicted means and variances beside those of sampled weights, layer by layer.

>>> import torch, mnvi
>>> bayesian = mnvi.convert(torch.nn.Linear(4, 3), mnvi.MultiplicativeNoise(prior_variance=1.0)).eval()
>>> mnvi.compare_with_sampling(bayesian, torch.randn(8, 4)).output.row()["entries"]
24
"""

from mnvi.comparison.comparing import compare_with_sampling
from mnvi.comparison.result import ComparedLayer, Comparison
from mnvi.comparison.sampled_weights import drawn_weights
from mnvi.comparison.scaled_variance import ScaledVariance, scale_variance

__all__ = ["ComparedLayer", "Comparison", "ScaledVariance", "compare_with_sampling", "drawn_weights", "scale_variance"]
