"""Expected log-likelihood and predictive distribution of a network's output, one file for each kind of target.

>>> import torch, mnvi
>>> out = mnvi.Gaussian(torch.zeros(5), torch.ones(5))
>>> mnvi.PoissonLikelihood().expected_log_prob(out, torch.ones(5)).shape
torch.Size([5])
"""

from mnvi.likelihoods.base import Likelihood, Output, StandardDeviations, Uncertainty, moment_matched
from mnvi.likelihoods.bernoulli import BernoulliLikelihood
from mnvi.likelihoods.categorical import CategoricalLikelihood
from mnvi.likelihoods.gaussian_targets import GaussianLikelihood
from mnvi.likelihoods.poisson import PoissonLikelihood, PoissonLogNormal
from mnvi.likelihoods.student_t import StudentTLikelihood

__all__ = [
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "GaussianLikelihood",
    "Likelihood",
    "Output",
    "PoissonLikelihood",
    "PoissonLogNormal",
    "StandardDeviations",
    "StudentTLikelihood",
    "Uncertainty",
    "moment_matched",
]
