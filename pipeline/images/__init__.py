"""Image classification: search, training on one or many workers, and evaluation."""
