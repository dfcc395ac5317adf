"""Moments of activation functions: a file for each family; the ReLU, which has several implementations, has a room."""
