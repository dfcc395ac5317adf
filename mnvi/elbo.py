"""The objective: the tempered evidence lower bound, its KL divergence, and the schedule of its weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mnvi.layers.base import BayesianLayer, bayesian_layers, layers_with_own_weight
from mnvi.likelihoods import Likelihood, Output
from mnvi.moments._torch import compiler_options, is_traced
from mnvi.moments.checking import check_number
from mnvi.rules.options import current
from mnvi.values.base import RandomValue
from mnvi.values.samples import Samples


class Terms(NamedTuple):
    """The loss and its parts.

    Attributes:
        loss: ``nll + kappa / num_data * kl``, the quantity to minimise.
        nll: mean expected negative log-likelihood per target.
        kl: the KL divergence as given, unscaled.

    Example:
        >>> import torch, mnvi
        >>> mnvi.Terms(torch.tensor(1.5), torch.tensor(1.0), torch.tensor(50.0)).nll
        tensor(1.)
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor


@dataclass(frozen=True)
class StepSchedule:
    """A number that changes at given epochs: ``values[e]`` holds from epoch ``e`` on.

    Args:
        values: maps an epoch to the value that holds from there on; must have an entry for epoch 0.

    Example:
        >>> import mnvi
        >>> schedule = mnvi.StepSchedule({0: 0.01, 100: 0.1, 150: 1.0})  # the paper's for the UCI sets
        >>> [schedule(epoch) for epoch in (0, 99, 100, 150, 199)]
        [0.01, 0.01, 0.1, 1.0, 1.0]
    """

    values: Mapping[int, float]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise TypeError(f"StepSchedule: values={self.values!r} must be a mapping such as {{0: 0.01, 100: 0.1}}")
        if 0 not in self.values:
            raise ValueError(
                f"StepSchedule: values={dict(self.values)} must map epochs, whole numbers >= 0, to numbers, 0 included"
            )
        for epoch, value in self.values.items():
            check_number("StepSchedule: an epoch", epoch, least=0, whole=True)
            check_number(f"StepSchedule: the value from epoch {epoch} on", value, least=0)

    def __call__(self, epoch: int) -> float:
        check_number("StepSchedule: epoch", epoch, least=0, whole=True)
        return self.values[max(start for start in self.values if start <= epoch)]


class ELBO:
    r"""Negative tempered evidence lower bound per example.

    .. math:: L = -\frac1B\sum_{b=1}^{B} E_q[\log p(y_b|x_b,w)] + \frac{\kappa}{N}\,KL[q(w)\,\|\,p(w)]

    The mean is over all targets of the batch that count (:meth:`mnvi.Likelihood.mean_log_prob`). If an example has
    several, such as pixels, labels or outputs, N is the number of targets: examples times targets per example.

    Args:
        likelihood: gives the expected log-likelihood of a network's output.
        num_data: N, number of training examples, or of targets if an example has several.
        kappa: :math:`\kappa \ge 0`, a number or a function of the epoch such as :class:`StepSchedule`.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(torch.nn.Linear(4, 3), mnvi.MultiplicativeNoise(prior_variance=1e-2))
        >>> elbo = mnvi.ELBO(mnvi.CategoricalLikelihood(), num_data=100, kappa=0.1)
        >>> terms = elbo(net(torch.ones(5, 4)), torch.zeros(5, dtype=torch.long), mnvi.kl_divergence(net))
        >>> torch.isclose(terms.loss, terms.nll + 0.1 / 100 * terms.kl)
        tensor(True)
    """

    def __init__(self, likelihood: Likelihood, num_data: int, kappa: float | Callable[[int], float] = 1.0) -> None:
        if not isinstance(likelihood, Likelihood):
            raise TypeError(f"ELBO: likelihood must be e.g. mnvi.CategoricalLikelihood(), got {likelihood!r}")
        check_number("ELBO: num_data", num_data, least=1)
        if not callable(kappa):
            check_number("ELBO: kappa", kappa, least=0)
        self.likelihood = likelihood
        self.num_data = num_data
        self.kappa = kappa

    def __call__(self, out: Output, y: Tensor | Any, kl: Tensor | float, epoch: int | None = None) -> Terms:
        """The terms for one batch.

        Args:
            out: what the network returned.
            y: targets or labels.
            kl: ``mnvi.kl_divergence(net)``; 0 for a network without posterior.
            epoch: current epoch; needed if, and only if, ``kappa`` is a schedule.
        """
        _check_kl(kl)
        if isinstance(y, RandomValue | Samples):
            raise TypeError(f"ELBO: y is a {type(y).__name__}, which is what a network returns; call elbo(out, y, kl)")
        nll = -self.likelihood.mean_log_prob(out, y)
        if not isinstance(kl, Tensor):
            kl = nll.new_full((), kl)
        return Terms(nll + self._kappa(epoch) / self.num_data * kl, nll, kl)

    def _kappa(self, epoch: int | None) -> float:
        if not callable(self.kappa):
            return self.kappa
        if epoch is None:
            raise ValueError(f"ELBO: kappa={self.kappa!r} depends on the epoch; call elbo(out, y, kl, epoch)")
        kappa = self.kappa(epoch)
        check_number(f"ELBO: kappa at epoch {epoch}", kappa, least=0)
        return kappa


class Objective(nn.Module):
    r"""The loss of any method as a module: :math:`(x, y) \mapsto` the terms of the ELBO.

    The KL covers all posteriors of the network; without any (deterministic, MC Dropout, ensembles) it is zero. As a
    module, the objective owns the parameters of the network and of the likelihood. It goes through
    ``torch.func.functional_call`` as a whole, so network and KL see the same parameters.

    Args:
        net: any network that a likelihood can read.
        elbo: likelihood, number of training examples and κ.

    Example:
        >>> import torch, mnvi
        >>> net = mnvi.convert(mnvi.models.mlp(3), mnvi.MultiplicativeNoise(prior_variance=1.0))
        >>> objective = mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=100))
        >>> objective(torch.ones(5, 3), torch.zeros(5)).loss.dim()
        0
    """

    def __init__(self, net: nn.Module, elbo: ELBO) -> None:
        super().__init__()
        self.net = net
        self.likelihood = elbo.likelihood
        self.elbo = elbo

    def forward(self, x: Tensor, y: Tensor, epoch: int | None = None) -> Terms:
        kl = kl_divergence(self.net) if bayesian_layers(self.net) else 0
        return self.elbo(self.net(x), y, kl, epoch)

    def compile(self, **kwargs: Any) -> None:
        """Compile in place, as ``torch.nn.Module.compile`` does, for steps that take less time on a CPU.

        There the default compiler then joins a product and a sum into one instruction, so results differ from those of
        eager mode in the last digit.

        Args:
            kwargs: as in ``torch.compile``; with a ``backend``, a ``mode`` or ``options``, nothing is added to them.
        """
        if not {"backend", "mode", "options"} & kwargs.keys():
            kwargs["options"] = compiler_options()
        super().compile(**kwargs)


def kl_divergence(model: nn.Module) -> Tensor:
    r"""True KL of a model's posteriors from their priors, :math:`\sum_w KL[q(w)\,\|\,p(w)]`; tied weights count once.

    Args:
        model: a model from :func:`convert`, or a layer of :mod:`mnvi.layers`; one without a posterior raises
            ``ValueError``.

    Returns:
        A tensor without dimensions, float32 for a half-precision model.

    Example:
        >>> import torch, mnvi
        >>> layer = mnvi.convert(torch.nn.Linear(3, 2), mnvi.MeanField(prior_variance=1.0, init_log_var=0.0))
        >>> mnvi.kl_divergence(layer).allclose(0.5 * sum(p.square().sum() for p in (layer.weight, layer.bias)))
        True
    """
    distinct = layers_with_own_weight("kl_divergence", model)
    if not distinct:
        raise ValueError("kl_divergence: no layer of this model has a posterior; give it one with mnvi.convert")
    if is_traced() or current().kl == "by_layer":  # traced: nothing to save, and replicas keep their rounding
        return torch.stack([layer.kl_divergence() for layer in distinct]).sum()
    groups: list[list[BayesianLayer]] = []
    for layer in distinct:
        fellows = groups[-1] if groups else []
        alone = any(type(one).kl_divergence is not BayesianLayer.kl_divergence for one in (layer, *fellows[:1]))
        if fellows and not alone and fellows[0].posterior == layer.posterior:
            groups[-1].append(layer)
        else:
            groups.append([layer])
    parts = [
        group[0].posterior.kl_divergences(group) if len(group) > 1 else group[0].kl_divergence() for group in groups
    ]
    return torch.stack(parts).sum()


def _check_kl(kl: Any) -> None:
    given = f"ELBO: kl is a {type(kl).__name__}"
    if isinstance(kl, RandomValue | Samples):
        raise TypeError(f"{given}, which is what a network returns; call elbo(out, y, kl)")
    if isinstance(kl, nn.Module):
        raise TypeError(f"{given}; pass mnvi.kl_divergence(net), a number, not the network itself")
    if not isinstance(kl, Tensor):
        if kl is None:
            raise TypeError(f"{given}; pass mnvi.kl_divergence(net), or 0 for a network without posterior")
        if callable(kl):
            raise TypeError(f"{given}; call it: mnvi.kl_divergence(net)")
        check_number("ELBO: kl", kl, least=0)
    elif kl.dim() or not kl.is_floating_point():
        raise ValueError(
            f"ELBO: kl has shape {tuple(kl.shape)} and dtype {kl.dtype}; expected one number, mnvi.kl_divergence(net)"
        )
