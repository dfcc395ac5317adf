"""Yes or no, once or for many labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Bernoulli

from mnvi.likelihoods._checks import can_check_values, check_targets
from mnvi.likelihoods._heads import one_head
from mnvi.likelihoods.base import Likelihood, Output, StandardDeviations, Uncertainty, add_up
from mnvi.moments.activations.logistic import sigmoid
from mnvi.moments.activations.rectifiers import softplus
from mnvi.moments.expectations import binary_entropy, coin_entropy
from mnvi.values.samples import Samples


class BernoulliLikelihood(Likelihood):
    r"""Two classes with one logit, or many labels that do not exclude each other:
    :math:`P(y = 1) = p(h) = 1/(1 + e^{-h})`, :math:`h \sim \mathcal N(\mu, v)`.

    The output has one logit for each target: [batch] for two classes, [batch, labels] for many labels. Nothing is
    sampled: the expectations are the moments of softplus and sigmoid, whose error is below
    :math:`10^{-6}\max(1, \sqrt v)`.

    .. math::
        E[\log p(y|h)] = y\mu - E[\log(1 + e^h)], \qquad P(y = 1) = E[p(h)]

    Example:
        >>> import torch, mnvi
        >>> like = mnvi.BernoulliLikelihood()
        >>> out = mnvi.Gaussian(torch.tensor([2.0, 0.0]), torch.tensor([4.0, 1.0]))
        >>> like.expected_log_prob(out, torch.tensor([1.0, 0.0]))
        tensor([-0.3563, -0.8061])
        >>> like.predictive(out).probs
        tensor([0.7752, 0.5000])
    """

    def __init__(self) -> None:
        super().__init__()

    def expected_log_prob(self, out: Output, y: Tensor) -> Tensor:
        r""":math:`y\mu - E[\log(1 + e^h)]`, one value per target.

        Args:
            out: the logits, [...]; :class:`mnvi.Samples` are averaged over.
            y: targets in the shape of the logits, on their device: 0 or 1 in any dtype, truth values, or probabilities.

        Example:
            >>> import torch, mnvi
            >>> mnvi.BernoulliLikelihood().expected_log_prob(torch.zeros(2), torch.tensor([True, False]))  # −log 2
            tensor([-0.6931, -0.6931])
        """
        logits, var = one_head("BernoulliLikelihood", out)
        sampled = isinstance(out, Samples)
        _check_classes(logits, y, sampled)
        y = y.to(logits.dtype)
        # log p = −softplus(±h): the sign of the likelier class, so that a certain prediction loses no digits
        likely = y > 0.5
        flipped, rest = torch.where(likely, -logits, logits), torch.where(likely, 1 - y, y)
        loss = F.softplus(flipped) if var is None else softplus(flipped, var)[0]
        value = rest * flipped - loss
        return value.mean(0) if sampled else value

    def predictive(self, out: Output) -> Bernoulli:
        """:math:`E[p(h)]`, a coin for each target.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> mnvi.BernoulliLikelihood().predictive(torch.zeros(2)).probs
            tensor([0.5000, 0.5000])
        """
        logits, var = one_head("BernoulliLikelihood", out)
        if isinstance(out, Tensor):
            return Bernoulli(logits=logits)
        return Bernoulli(logits=_mean_logit(logits, var))

    def uncertainty(self, out: Output) -> Uncertainty:
        """Entropy of the coin :math:`E[p]`, and the expected entropy of the coin :math:`p(h)`; both by quadrature.

        Args:
            out: as in :meth:`expected_log_prob`.
        """
        logits, var = one_head("BernoulliLikelihood", out)
        if isinstance(out, Tensor):
            total = coin_entropy(logits)
            return Uncertainty(total, total, torch.zeros_like(total))
        total = coin_entropy(_mean_logit(logits, var))
        aleatoric = coin_entropy(logits).mean(0) if var is None else binary_entropy(logits, var)
        aleatoric = torch.minimum(aleatoric, total)  # they may differ by rounding
        return Uncertainty(total, aleatoric, total - aleatoric)

    def standard_deviations(self, out: Output) -> StandardDeviations:
        """Of the target 0 or 1: aleatoric :math:`\\sqrt{E[p(1 - p)]}`, epistemic :math:`\\sqrt{V[p]}`.

        Args:
            out: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> mnvi.BernoulliLikelihood().standard_deviations(mnvi.Gaussian(torch.zeros(1), torch.ones(1)))
            StandardDeviations(total=tensor([0.5000]), aleatoric=tensor([0.4546]), epistemic=tensor([0.2083]))
        """
        logits, var = one_head("BernoulliLikelihood", out)
        if var is None:
            p, q = torch.sigmoid(logits), torch.sigmoid(-logits)
            if isinstance(out, Samples):
                return add_up((p * q).mean(0), p.var(0, correction=0))
            return add_up(p * q, torch.zeros_like(p))
        (p, spread), (q, _) = sigmoid(logits, var), sigmoid(-logits, var)
        return add_up((p * q - spread).clamp(min=0), spread)


def _mean_logit(logits: Tensor, var: Tensor | None) -> Tensor:
    """Logit of E[p], from both E[p] and E[1 − p]: 1 − E[p] has no digits left where E[p] is almost one."""
    if var is None:
        p, q = torch.sigmoid(logits).mean(0), torch.sigmoid(-logits).mean(0)
    else:
        (p, _), (q, _) = sigmoid(logits, var), sigmoid(-logits, var)
    smallest = torch.finfo(p.dtype).tiny
    return p.clamp(min=smallest).log() - q.clamp(min=smallest).log()


def _check_classes(logits: Tensor, y: Tensor, sampled: bool) -> None:
    expected = logits.shape[1:] if sampled else logits.shape
    if isinstance(y, Tensor) and y.shape == expected[:-1] and expected[-1:] == (2,):
        raise ValueError(
            f"BernoulliLikelihood: targets have shape {tuple(y.shape)}, the output {tuple(expected)}: two logits for "
            "one target are for CategoricalLikelihood; here one logit per target is enough"
        )
    check_targets("BernoulliLikelihood", y, logits, sampled, truth_values=True)
    if can_check_values(y):
        low, high = float(y.min()), float(y.max())
        if not 0 <= low <= high <= 1:
            raise ValueError(
                f"BernoulliLikelihood: targets run from {low:g} to {high:g}; they must be 0 or 1, or probabilities "
                "between. For more than two classes use CategoricalLikelihood"
            )
