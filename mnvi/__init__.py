"""Uncertainty for neural networks in one forward pass.

>>> import torch, mnvi
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
>>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-2))
>>> out = bayesian(torch.randn(8, 4))
>>> out.mean.shape, out.var.shape
(torch.Size([8, 3]), torch.Size([8, 3]))
"""

from mnvi import layers, metrics, models, rules
from mnvi.convert import bayesian_layers, convert, kl_divergence
from mnvi.elementwise import elementwise, quadrature, taylor
from mnvi.gaussian import Gaussian
from mnvi.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood, Uncertainty
from mnvi.objective import ELBO, StepSchedule, Terms
from mnvi.outputs import Samples
from mnvi.posteriors import EmpiricalBayes, MeanField, MultiplicativeNoise, Posterior, SharedMeanField
from mnvi.registry import NoRuleError
from mnvi.rules import rule
from mnvi.settings import options

__version__ = "0.1.0"

__all__ = [
    "ELBO",
    "CategoricalLikelihood",
    "EmpiricalBayes",
    "Gaussian",
    "GaussianLikelihood",
    "Likelihood",
    "MeanField",
    "MultiplicativeNoise",
    "NoRuleError",
    "Posterior",
    "Samples",
    "SharedMeanField",
    "StepSchedule",
    "Terms",
    "Uncertainty",
    "bayesian_layers",
    "convert",
    "elementwise",
    "kl_divergence",
    "layers",
    "metrics",
    "models",
    "options",
    "quadrature",
    "rule",
    "rules",
    "taylor",
]
