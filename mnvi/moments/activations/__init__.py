"""Moments of activation functions: a file for each family, and a room for the ReLU, which has several implementations."""
