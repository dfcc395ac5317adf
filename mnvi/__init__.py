"""Uncertainty for neural networks in one forward pass.

>>> import torch, mnvi
>>> net = torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
>>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1e-2))
>>> out = bayesian(torch.randn(8, 4))
>>> out.mean.shape, out.var.shape
(torch.Size([8, 3]), torch.Size([8, 3]))
"""

from importlib import import_module
from typing import Any

from mnvi import _moved, comparison, covariance, layers, methods, metrics, models, replicas, rules
from mnvi.comparison import Comparison, ScaledVariance, compare_with_sampling, scale_variance
from mnvi.conversion import UnusedPosteriorWarning, convert
from mnvi.elbo import ELBO, Objective, StepSchedule, Terms, kl_divergence
from mnvi.inference import export, optimize_for_inference, summary
from mnvi.layers import bayesian_layers, parameter_groups, register_layer
from mnvi.likelihoods import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    Likelihood,
    PoissonLikelihood,
    StandardDeviations,
    StudentTLikelihood,
    Uncertainty,
    moment_matched,
)
from mnvi.methods import DVI, Ensemble, MonteCarlo, mc_dropout, tune_noise
from mnvi.posteriors import EmpiricalBayes, MeanField, MultiplicativeNoise, Posterior, Sampled, SharedMeanField
from mnvi.rules import rule
from mnvi.rules.dependence_warning import DependenceWarning
from mnvi.rules.elementwise import elementwise
from mnvi.rules.options import options
from mnvi.rules.table import NoRuleError
from mnvi.training import Fitted, Prediction, Referral, evaluate, fit, predict
from mnvi.values import Gaussian, JointGaussian, Samples

__version__ = "0.2.0"

__all__ = [
    "DVI",
    "ELBO",
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "Comparison",
    "DependenceWarning",
    "EmpiricalBayes",
    "Ensemble",
    "Fitted",
    "Gaussian",
    "GaussianLikelihood",
    "JointGaussian",
    "Likelihood",
    "MeanField",
    "MonteCarlo",
    "MultiplicativeNoise",
    "NoRuleError",
    "Objective",
    "PoissonLikelihood",
    "Posterior",
    "Prediction",
    "Referral",
    "Sampled",
    "Samples",
    "ScaledVariance",
    "SharedMeanField",
    "StandardDeviations",
    "StepSchedule",
    "StudentTLikelihood",
    "Terms",
    "Uncertainty",
    "UnusedPosteriorWarning",
    "bayesian_layers",
    "compare_with_sampling",
    "comparison",
    "convert",
    "covariance",
    "elementwise",
    "evaluate",
    "export",
    "fit",
    "kl_divergence",
    "layers",
    "mc_dropout",
    "methods",
    "metrics",
    "models",
    "moment_matched",
    "optimize_for_inference",
    "options",
    "parameter_groups",
    "predict",
    "register_layer",
    "replicas",
    "rule",
    "rules",
    "scale_variance",
    "summary",
    "tune_noise",
]

_moved.let_old_files_load()


def __dir__() -> list[str]:
    return sorted([*globals(), "sklearn"])


def __getattr__(name: str) -> Any:
    if name == "sklearn":  # imported when it is used: scikit-learn is optional, and slow to import
        return import_module("mnvi.sklearn")
    raise AttributeError(_moved.explain(name))
