"""Temperature: logits divided by one number, which softens or sharpens probabilities without changing their order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mnvi.conversion.copying import copied
from mnvi.layers._wrapped import Wrapped
from mnvi.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood, Likelihood
from mnvi.likelihoods._noted import note, noted
from mnvi.methods._line_search import best_temperature
from mnvi.methods.last_layer import as_batches, device_of, targets_of
from mnvi.methods.montecarlo import seeded
from mnvi.moments.checking import check_number
from mnvi.values.base import RandomValue
from mnvi.values.samples import Samples


class Tempered(Wrapped):
    r"""A network whose output, random or not, is divided by a temperature: :math:`h / T`.

    Args:
        net: any network that returns logits.
        temperature: T > 0; above 1 it softens.

    Example:
        >>> import torch, mnvi
        >>> mnvi.methods.Tempered(torch.nn.Identity(), 2.0)(torch.ones(1, 3))
        tensor([[0.5000, 0.5000, 0.5000]])
    """

    temperature: Tensor

    def __init__(self, net: nn.Module, temperature: float = 1.0) -> None:
        super().__init__()
        check_number("Tempered: temperature", temperature, above=0)
        self.net = net
        self.register_buffer("temperature", torch.tensor(float(temperature)))

    def changed(self, out: Any) -> Any:
        return _divided(out, self.temperature)

    def extra_repr(self) -> str:
        return f"temperature={float(self.temperature):.4g}"


def scale_temperature(net: nn.Module, data: Any, *, likelihood: Likelihood | None = None, seed: int = 0) -> Tempered:
    r"""Temperature scaling: the T that minimises the negative log-likelihood of data not trained on.

    .. math:: \min_T \; -\sum_n \log p(y_n \,|\, h_n / T)

    Args:
        net: a trained network, with uncertainty or not; it is copied.
        data: inputs and targets, or batches of them.
        likelihood: the one the network was fitted with, else :class:`mnvi.CategoricalLikelihood`; for classes only.
        seed: of samples that the network or the likelihood draws.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Linear(2, 3)
        >>> tempered = mnvi.methods.scale_temperature(net, (torch.randn(100, 2), torch.randint(3, (100,))))
        >>> float(tempered.temperature) > 1  # the labels are random, so less sure is better
        True
    """
    batches = as_batches("scale_temperature", data)
    y = targets_of(net, batches)
    likelihood = assumed_likelihood(net, y) if likelihood is None else likelihood
    if not has_temperature(likelihood):
        raise TypeError(
            f"scale_temperature: a temperature softens probabilities of classes, and the likelihood is a "
            f"{type(likelihood).__name__}; for numbers use mnvi.tune_noise"
        )
    tempered = Tempered(copied("scale_temperature", net).eval())
    device = device_of(net)
    with torch.no_grad(), seeded(seed, device):
        outs = [tempered.net(x.to(device)) for x, _ in batches]
    parts = y.split([len(targets) for _, targets in batches])
    for out in outs:
        check_logits("scale_temperature", out, likelihood)

    @torch.no_grad()
    def nll(temperature: float) -> float:
        with seeded(seed, device):
            terms = [
                likelihood.predictive(_divided(out, temperature)).log_prob(part)
                for out, part in zip(outs, parts, strict=True)
            ]
        return -float(torch.cat(terms).double().mean())

    tempered.temperature.fill_(best_temperature(nll)[1])
    note(tempered, likelihood)
    return tempered


def assumed_likelihood(net: nn.Module, y: Tensor) -> Likelihood:
    """The likelihood that the network was fitted with, else the one that :func:`mnvi.fit` assumes for such targets."""
    known = noted(net)
    if known is not None:
        return known
    return GaussianLikelihood() if y.is_floating_point() else CategoricalLikelihood()


def has_temperature(likelihood: Likelihood) -> bool:
    """Whether outputs are logits: divided by a number, they say the same less surely. A predicted number changes."""
    return isinstance(likelihood, CategoricalLikelihood | BernoulliLikelihood)


def check_logits(caller: str, out: Any, likelihood: Likelihood) -> None:
    """Refuse probabilities: the likelihood would turn them into probabilities once more."""
    mean = out.mean if isinstance(out, RandomValue) else out
    if not isinstance(likelihood, CategoricalLikelihood) or not isinstance(mean, Tensor):
        return
    sums = mean.sum(likelihood.class_dim)
    if mean.shape[likelihood.class_dim] > 1 and bool((mean >= 0).all()) and torch.allclose(sums, torch.ones_like(sums)):
        raise ValueError(
            f"{caller}: the network returns probabilities (each row is positive and sums to 1); leave out its last "
            "softmax, so that it returns logits"
        )


def _divided(out: Any, temperature: Tensor | float) -> Any:
    return Samples(out.values / temperature) if isinstance(out, Samples) else out / temperature
