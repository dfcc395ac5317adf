"""The maths: pure functions from tensors to tensors, one per operation."""
