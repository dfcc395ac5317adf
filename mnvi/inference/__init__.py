"""A trained model for prediction only: folded, frozen, compiled, exported; and what a model is made of."""

from mnvi.inference.exporting import export
from mnvi.inference.optimizing import optimize_for_inference
from mnvi.inference.summarizing import LayerSummary, Summary, summary

__all__ = ["LayerSummary", "Summary", "export", "optimize_for_inference", "summary"]
