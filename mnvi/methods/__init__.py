"""Methods that are more than a posterior, and every method of the paper's tables by its name.

>>> import torch, mnvi
>>> x, y = torch.randn(64, 3), torch.randn(64)
>>> likelihood = mnvi.GaussianLikelihood()
>>> for name in ("mnvi", "mc_mfvi", "ensemble"):
...     net = mnvi.methods.build(name, lambda: mnvi.models.mlp(3))
...     objective = mnvi.Objective(net, mnvi.ELBO(likelihood, num_data=64, kappa=0.01))
...     optimizer = torch.optim.Adam(objective.parameters(), lr=1e-2)
...     objective(x, y).loss.backward()
...     optimizer.step()
...     prediction = likelihood.predictive(net.eval()(x))  # a torch.distributions object
...     print(name, prediction.log_prob(y).shape)
mnvi torch.Size([64])
mc_mfvi torch.Size([64])
ensemble torch.Size([64])
"""

from mnvi.elbo import Objective  # noqa: F401  (where files of version 0.1.0 look for it)
from mnvi.methods.by_name import NAMES, build  # noqa: F401
from mnvi.methods.conformal import Conformal
from mnvi.methods.dvi import DVI
from mnvi.methods.ensemble import Ensemble
from mnvi.methods.laplace import last_layer_laplace
from mnvi.methods.montecarlo import MonteCarlo, mc_dropout
from mnvi.methods.noise import TunedNoise, Tuning, tune_noise
from mnvi.methods.temperature import Tempered, scale_temperature
from mnvi.methods.variational import variational_last_layer

__all__ = [
    "DVI",
    "Conformal",
    "Ensemble",
    "MonteCarlo",
    "Tempered",
    "TunedNoise",
    "Tuning",
    "build",
    "last_layer_laplace",
    "mc_dropout",
    "scale_temperature",
    "tune_noise",
    "variational_last_layer",
]
