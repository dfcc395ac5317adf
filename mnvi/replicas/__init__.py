"""Many small networks trained as one: folds, runs, members of an ensemble, trials of a search.

One function builds all replicas. Each has its own data, initialisation, shuffling, noise, clipping and optimiser state,
and ends with the weights that training it alone under its seed would give.

>>> import torch, mnvi
>>> x, y = torch.randn(100, 3), torch.randn(100)
>>> def build(k):
...     return mnvi.Objective(mnvi.models.mlp(3), mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=100))
>>> recipe = mnvi.replicas.Recipe(epochs=2, batch_size=32, learning_rate=0.01)
>>> members = mnvi.replicas.train(build, [(x, y)] * 5, seeds=range(5), recipe=recipe)
>>> ensemble = mnvi.Ensemble(members.module(k).net for k in range(5))
>>> ensemble(x).values.shape
torch.Size([5, 100, 2])
"""

from mnvi.replicas.recipe import Recipe
from mnvi.replicas.training import CACHE, Replicas, block_size, load, train

__all__ = ["CACHE", "Recipe", "Replicas", "block_size", "load", "train"]
