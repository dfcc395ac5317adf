"""Uncertainty for neural networks in one forward pass.

>>> import torch, mnvi
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
>>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-2))
>>> out = bayesian(torch.randn(8, 4))
>>> out.mean.shape, out.var.shape
(torch.Size([8, 3]), torch.Size([8, 3]))
"""

from mnvi import covariance, layers, methods, metrics, models, replicas, rules
from mnvi.convert import bayesian_layers, convert, kl_divergence
from mnvi.covariance import DVI, JointGaussian
from mnvi.elementwise import elementwise, quadrature, taylor
from mnvi.export import export
from mnvi.gaussian import Gaussian
from mnvi.inference import optimize_for_inference
from mnvi.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood, Uncertainty, moment_matched
from mnvi.methods import Objective
from mnvi.montecarlo import Ensemble, MonteCarlo, mc_dropout
from mnvi.objective import ELBO, StepSchedule, Terms
from mnvi.outputs import Samples
from mnvi.parallel import DataParallel
from mnvi.posteriors import EmpiricalBayes, MeanField, MultiplicativeNoise, Posterior, Sampled, SharedMeanField
from mnvi.registry import NoRuleError
from mnvi.rules import rule
from mnvi.settings import options

__version__ = "0.1.0"

__all__ = [
    "DVI",
    "ELBO",
    "CategoricalLikelihood",
    "DataParallel",
    "EmpiricalBayes",
    "Ensemble",
    "Gaussian",
    "GaussianLikelihood",
    "JointGaussian",
    "Likelihood",
    "MeanField",
    "MonteCarlo",
    "MultiplicativeNoise",
    "NoRuleError",
    "Objective",
    "Posterior",
    "Sampled",
    "Samples",
    "SharedMeanField",
    "StepSchedule",
    "Terms",
    "Uncertainty",
    "bayesian_layers",
    "convert",
    "covariance",
    "elementwise",
    "export",
    "kl_divergence",
    "layers",
    "mc_dropout",
    "methods",
    "metrics",
    "models",
    "moment_matched",
    "optimize_for_inference",
    "options",
    "quadrature",
    "replicas",
    "rule",
    "rules",
    "taylor",
]
