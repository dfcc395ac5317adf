"""The maths: pure functions from tensors to tensors, one per operation.

Two parts are for users who write layers and likelihoods of their own: :class:`mnvi.moments.affine.Affine`, the linear
operation of a layer, and :func:`mnvi.moments.bounds.bounded`, which keeps exponents finite. The rest may change.
"""
