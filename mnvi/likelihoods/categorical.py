"""Classification, of whole examples or of every position in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Categorical

from mnvi.likelihoods._checks import check_output
from mnvi.likelihoods._classes import TWO_CLASSES, check_labels, checked_weights, with_classes_last
from mnvi.likelihoods._sampling import fits, in_parts
from mnvi.likelihoods.base import Likelihood, Output, StandardDeviations, Uncertainty
from mnvi.moments.checking import check_number
from mnvi.values.gaussian import Gaussian
from mnvi.values.joint import JointGaussian
from mnvi.values.samples import Samples

MAX_ELEMENTS = 1 << 24


class CategoricalLikelihood(Likelihood):
    r"""Classification: :math:`y \sim \mathrm{softmax}(h)` with logits :math:`h \sim \mathcal N(\mu, v)`, classes last.

    Dense predictions: with ``class_dim=1`` the classes are in dimension 1, as in ``torch.nn.CrossEntropyLoss``: logits
    [B, C, H, W] and labels [B, H, W]. The dimension is never guessed, because [B, 3, 3] and [B, 3] fit both readings.

    Class weights :math:`w`, label smoothing :math:`\epsilon` and ``ignore_index`` mean what they mean in
    ``torch.nn.CrossEntropyLoss``, with the expected logarithms :math:`\ell_k = E[\log\mathrm{softmax}(h)_k]` of C
    classes:

    .. math:: (1 - \epsilon)\, w_y \ell_y + \frac\epsilon C \sum_k w_k \ell_k

    and the mean over targets, :meth:`mean_log_prob`, is divided by the sum of :math:`w_y` over those that are not
    ignored. They change the loss alone: predictions and uncertainties are those of the logits.

    Args:
        num_samples: S, logit samples of ``"sampling"``.
        approximation: how the expectations over the logits are computed.

            - ``"sampling"`` (the paper's): :math:`\frac1S\sum_s \log\mathrm{softmax}(h^s)_y` and
              :math:`\frac1S\sum_s \mathrm{softmax}(h^s)`.
            - ``"second_order"``: :math:`E[\mathrm{lse}(h)] \approx \mathrm{lse}(\mu) + \tfrac12(p\cdot v - p^\top Cp)`,
              where C is the covariance, diagonal unless the output is a :class:`mnvi.JointGaussian`; and the softmax
              expanded to second order, cut at 0 and renormalised.
            - ``"probit"``: :math:`\mathrm{softmax}(\mu/\sqrt{1 + \pi v/8})`, and its logarithm. That logarithm is
              larger than :math:`E[\log p]`: use it to predict, not to train.

            Largest errors against sampling, 2 to 10 classes, :math:`\mu \sim \mathcal N(0, 4)`, for variances up to
            0.15, 0.75, 1.5: ``"second_order"`` 0.002, 0.03, 0.08 in a probability and 0.01, 0.04, 0.1 in the expected
            logarithm; ``"probit"`` 0.02, 0.08, 0.12 in a probability.
        generator: source of the samples, so that results repeat.
        class_weights: a weight :math:`w_k \ge 0` for each class.
        label_smoothing: :math:`\epsilon`, from 0 to 1.
        ignore_index: label of targets that do not count: their value is 0, and the ELBO's mean leaves them out.
        class_dim: dimension of the logits that holds the classes.
        max_elements: largest number of sampled logits (samples × positions × classes) in memory at once, by default
            16.8 million. More are drawn some positions at a time, and drawn again in the backward pass, which needs
            about five arrays of this size. Inside ``torch.func`` the backward pass keeps all samples.

    Example:
        >>> import torch, mnvi
        >>> like = mnvi.CategoricalLikelihood(num_samples=64, generator=torch.Generator().manual_seed(0))
        >>> out = mnvi.Gaussian(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))
        >>> like.predictive(out).probs.sum()
        tensor(1.)
        >>> exact = mnvi.CategoricalLikelihood(approximation="second_order")
        >>> exact.expected_log_prob(out, torch.tensor([0]))
        tensor([-0.2319])
        >>> dense = mnvi.CategoricalLikelihood(class_dim=1, ignore_index=255)
        >>> pixels = mnvi.Gaussian(torch.zeros(2, 3, 8, 8), torch.ones(2, 3, 8, 8))
        >>> dense.expected_log_prob(pixels, torch.zeros(2, 8, 8, dtype=torch.long)).shape
        torch.Size([2, 8, 8])
    """

    class_weights: Tensor | None

    def __init__(
        self,
        num_samples: int = 64,
        approximation: str = "sampling",
        generator: torch.Generator | None = None,
        *,
        class_weights: Tensor | Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        class_dim: int = -1,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        super().__init__()
        check_number("CategoricalLikelihood: num_samples", num_samples, least=1, whole=True)
        check_number("CategoricalLikelihood: label_smoothing", label_smoothing, least=0, most=1)
        check_number("CategoricalLikelihood: class_dim", class_dim, whole=True)
        check_number("CategoricalLikelihood: max_elements", max_elements, least=1, whole=True)
        if ignore_index is not None:
            check_number("CategoricalLikelihood: ignore_index", ignore_index, whole=True)
        if approximation not in ("sampling", "second_order", "probit"):
            raise ValueError(
                f"CategoricalLikelihood: approximation={approximation!r} is not one of 'sampling', 'second_order', "
                "'probit'"
            )
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"CategoricalLikelihood: generator={generator!r} must be a torch.Generator or None")
        self.num_samples = num_samples
        self.approximation = approximation
        self.generator = generator
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        self.class_dim = class_dim
        self.max_elements = max_elements
        # a setting, not part of what is learnt: checkpoints do not hold it
        self.register_buffer("class_weights", checked_weights(class_weights), persistent=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        new = {"label_smoothing": 0.0, "ignore_index": None, "class_dim": -1, "max_elements": MAX_ELEMENTS}
        super().__setstate__({**new, **state})  # files of version 0.1 have none of these
        self._buffers.setdefault("class_weights", None)

    def expected_log_prob(self, out: Output, y: Tensor) -> Tensor:
        r""":math:`E[\log\mathrm{softmax}(h)_y]` by the chosen approximation, one value per label.

        With class weights or label smoothing, the weighted and smoothed sum of the class description; 0 for targets to
        be ignored.

        Args:
            out: the logits, [..., classes], or with the classes in ``class_dim``; :class:`mnvi.Samples` are averaged
                over.
            y: integer labels [...] from 0 to classes − 1, or ``ignore_index``, on the output's device.

        Example:
            >>> import torch, mnvi
            >>> mnvi.CategoricalLikelihood().expected_log_prob(torch.zeros(1, 2), torch.tensor([1]))  # −log 2
            tensor([-0.6931])
        """
        out = self._checked(out, y)
        y = y.long()
        counted = None if self.ignore_index is None else self.counted(y)
        if counted is not None:
            y = torch.where(counted, y, 0)
        value = self._expected(out, y)
        return value if counted is None else torch.where(counted, value, 0.0)

    def counted(self, y: Tensor) -> Tensor:
        """Which labels count: those that are not ``ignore_index``.

        Args:
            y: the labels.
        """
        return super().counted(y) if self.ignore_index is None else y.long() != self.ignore_index

    def mean_log_prob(self, out: Output, y: Tensor) -> Tensor:
        r"""Mean of :meth:`expected_log_prob` over the labels that count, :math:`\sum_i (\dots) / \sum_i w_{y_i}`; 0 if
        none does.

        Args:
            out: as in :meth:`expected_log_prob`.
            y: as in :meth:`expected_log_prob`.

        Example:
            >>> import torch, mnvi
            >>> like = mnvi.CategoricalLikelihood(ignore_index=-1)
            >>> like.mean_log_prob(torch.zeros(3, 2), torch.tensor([1, -1, 0]))  # −log 2
            tensor(-0.6931)
        """
        value = self.expected_log_prob(out, y)
        if self.ignore_index is None and self.class_weights is None:
            return value.mean()
        y = y.long()
        counted = self.counted(y)
        weight = counted.to(value.dtype)
        if self.class_weights is not None:
            weight = weight * self.class_weights.to(value.dtype)[torch.where(counted, y, 0)]
        total = weight.sum()
        return value.sum() / torch.where(total > 0, total, 1.0)

    def predictive(self, out: Output) -> Categorical:
        r""":math:`E[\mathrm{softmax}(h)]` by the chosen approximation.

        Args:
            out: as in :meth:`expected_log_prob`. Whatever ``class_dim``, ``probs`` has the classes last, as torch's
                distributions do: [B, H, W, C] for logits [B, C, H, W].

        Example:
            >>> import torch, mnvi
            >>> like = mnvi.CategoricalLikelihood(approximation="probit")
            >>> like.predictive(mnvi.Gaussian(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2))).probs
            tensor([[0.8448, 0.1552]])
        """
        out = self._checked(out)
        if isinstance(out, Gaussian | JointGaussian) and self.approximation == "second_order":
            p = F.softmax(out.mean, -1)
            spread, common, own = _softmax_variances(p, out)
            bent = p * (1 + 0.5 * (out.var - 2 * own - spread) + common)
            positive = bent.clamp(min=0)
            return Categorical(probs=positive / positive.sum(-1, keepdim=True))
        if self._too_large(out):
            (mean,) = self._in_parts(lambda logits: (F.softmax(logits, -1).mean(0),), out)
            return Categorical(probs=mean)
        probs = F.softmax(self._logits(out), -1)
        return Categorical(probs=probs.mean(0) if probs.dim() > len(out.shape) else probs)

    def uncertainty(self, out: Output) -> Uncertainty:
        r"""Entropy of :math:`E[p]`, and the expected entropy of :math:`p = \mathrm{softmax}(h)`. Both are averages over
        freshly drawn samples, whatever the approximation.

        Args:
            out: as in :meth:`expected_log_prob`.
        """
        moved = self._checked(out)
        if isinstance(moved, Tensor):
            total = self.predictive(out).entropy()
            return Uncertainty(total, total, torch.zeros_like(total))
        if isinstance(moved, Samples) or fits(moved, self.num_samples, self.max_elements):
            sampled = isinstance(moved, Samples)
            probs, aleatoric = _entropies(moved.values if sampled else moved.sample(self.num_samples, self.generator))  # type: ignore[union-attr]
        else:
            probs, aleatoric = self._in_parts(_entropies, moved)
        total = Categorical(probs=probs).entropy()
        return Uncertainty(total, aleatoric, (total - aleatoric).clamp(min=0))

    def standard_deviations(self, out: Output) -> StandardDeviations:
        """Classes have none: raises ``TypeError``.

        Args:
            out: any output.
        """
        raise TypeError("CategoricalLikelihood: classes have no standard deviation; use uncertainty(out)")

    def _expected(self, out: Output, y: Tensor) -> Tensor:
        if isinstance(out, Gaussian | JointGaussian) and self.approximation == "second_order":
            log_p = F.log_softmax(out.mean, -1)
            spread, common, _ = _softmax_variances(log_p.exp(), out)
            return self._score(log_p - 0.5 * (spread - common), y)
        if self._too_large(out):
            (value,) = self._in_parts(lambda h, y: (self._score(F.log_softmax(h, -1), y).mean(0),), out, y)
            return value
        value = self._score(F.log_softmax(self._logits(out), -1), y)
        return value.mean(0) if value.dim() > y.dim() else value

    def _score(self, log_probs: Tensor, y: Tensor) -> Tensor:
        """The logarithm of the label's probability, weighted and smoothed; ``log_probs`` may have samples in front."""
        index = y.unsqueeze(-1)
        if log_probs.dim() > index.dim():
            index = index.expand(len(log_probs), *index.shape)
        value = log_probs.gather(-1, index).squeeze(-1)
        weights = None if self.class_weights is None else self.class_weights.to(log_probs.dtype)
        if weights is not None:
            value = weights[y] * value
        if self.label_smoothing:
            every = log_probs.sum(-1) if weights is None else (weights * log_probs).sum(-1)
            share = self.label_smoothing / log_probs.shape[-1]
            value = (1 - self.label_smoothing) * value + share * every
        return value

    def _logits(self, out: Output) -> Tensor:
        """Logits of one softmax, or of several with a leading dimension of samples."""
        if isinstance(out, Tensor):
            return out
        if isinstance(out, Samples):
            return out.values
        if self.approximation == "probit":
            return out.mean / (1 + math.pi / 8 * out.var).sqrt()
        return out.sample(self.num_samples, self.generator)

    def _too_large(self, out: Output) -> bool:
        return (
            self.approximation == "sampling"
            and isinstance(out, Gaussian | JointGaussian)
            and not fits(out, self.num_samples, self.max_elements)
        )

    def _in_parts(self, function: Any, out: Output, *others: Tensor) -> tuple[Tensor, ...]:
        assert isinstance(out, Gaussian | JointGaussian)
        return in_parts(function, out, self.num_samples, self.generator, self.max_elements, *others)

    def _checked(self, out: Output, y: Tensor | None = None) -> Output:
        """The output with the classes in the last dimension; an error if it, or the labels, do not fit."""
        check_output("CategoricalLikelihood", out)
        dims = len(out.shape)
        if dims and not -dims <= self.class_dim < dims:
            raise ValueError(
                f"CategoricalLikelihood: class_dim={self.class_dim}, but the output has shape {tuple(out.shape)}"
            )
        place = self.class_dim % dims if dims else 0
        if dims == 0 or out.shape[place] == 1:
            raise ValueError(
                f"CategoricalLikelihood: the output has shape {tuple(out.shape)}, {_single_class(out.shape, place)}"
            )
        classes = out.shape[place]
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise ValueError(
                f"CategoricalLikelihood: class_weights has {len(self.class_weights)} entries, the output "
                f"{tuple(out.shape)} has {classes} classes in dimension {place}; give one weight for each class"
            )
        if y is not None:
            check_labels(out, y, place, self.ignore_index)
        return out if place == dims - 1 else with_classes_last(out, place)


def _single_class(shape: torch.Size, place: int) -> str:
    """What an output with one class lacks."""
    if len(shape) < 3 or place < 2 or shape[1] == 1:
        return f"a single class, whose probability is always 1; {TWO_CLASSES}"
    remedy = "pass out.flatten(1)" if shape[2:].numel() == 1 else "write CategoricalLikelihood(class_dim=1)"
    return f"one class in dimension {place}; the classes seem to be in dimension 1: {remedy}"


def _entropies(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Mean probabilities, and mean entropy over samples."""
    log_probs = F.log_softmax(logits, -1)
    return log_probs.exp().mean(0), -(log_probs.exp() * log_probs).sum(-1).mean(0)


def _softmax_variances(p: Tensor, out: Gaussian | JointGaussian) -> tuple[Tensor, Tensor, Tensor]:
    """p·v, pᵀCp and Cp, with a dimension of size one where classes are summed."""
    times_cov = (out.cov @ p.unsqueeze(-1)).squeeze(-1) if isinstance(out, JointGaussian) else out.var * p
    return (p * out.var).sum(-1, keepdim=True), (p * times_cov).sum(-1, keepdim=True), times_cov
