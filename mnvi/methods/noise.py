"""Uncertainty for a network that is already trained: its weights stay, only noise and a temperature are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mnvi.conversion.converting import convert
from mnvi.conversion.copying import copied
from mnvi.elbo import ELBO
from mnvi.layers.base import BayesianLayer, bayesian_layers
from mnvi.likelihoods import CategoricalLikelihood, Likelihood
from mnvi.likelihoods._noted import note
from mnvi.methods._learning import maximise_elbo
from mnvi.methods.last_layer import as_batches, name_of_last_layer, targets_of
from mnvi.methods.noise_search import NO_NOISE, Outputs, Search
from mnvi.methods.temperature import Tempered, assumed_likelihood, check_logits, has_temperature
from mnvi.moments.checking import check_number
from mnvi.posteriors import MultiplicativeNoise

Batches = Iterable[tuple[Tensor, Tensor]]

_FIRST_RHO = -7.0  # of the ELBO: noise that changes nothing yet, but whose gradient is not zero
_SMALLEST_PRIOR_VARIANCE = 1e-9


@dataclass(frozen=True)
class Tuning:
    """What :func:`tune_noise` chose, and what it found on the data given to it.

    Attributes:
        layers: names of the layers with noise.
        rho: the noise parameter of all of them, :math:`\\alpha = \\log(1 + e^\\rho)`; with ``learn="elbo"``, its mean.
        temperature: T.
        nll_before: negative log-likelihood of the network without noise and temperature.
        nll_temperature: with the best temperature alone.
        nll: with noise and temperature.
        kept: share of examples whose most likely class is the one of the network before; None for regression.

    Example:
        >>> import torch, mnvi
        >>> x, y = torch.randn(50, 2), torch.randint(3, (50,))
        >>> print(mnvi.tune_noise(torch.nn.Linear(2, 3), (x, y)).tuning)  # doctest: +ELLIPSIS
        noise rho = ... in ..., temperature ...: NLL ... before, ... with a temperature alone, ... now; ... are kept
    """

    layers: tuple[str, ...]
    rho: float
    temperature: float
    nll_before: float
    nll_temperature: float
    nll: float
    kept: float | None

    def __str__(self) -> str:
        kept = "" if self.kept is None else f"; {100 * self.kept:.1f} % of the predicted classes are kept"
        return (
            f"noise rho = {self.rho:.2f} in {', '.join(self.layers)}, temperature {self.temperature:.2f}: NLL "
            f"{self.nll_before:.4f} before, {self.nll_temperature:.4f} with a temperature alone, {self.nll:.4f} now"
            f"{kept}"
        )


class TunedNoise(Tempered):
    """The network that :func:`tune_noise` returns: logits with noise, divided by a temperature.

    Attributes:
        tuning: what was chosen, a :class:`mnvi.methods.Tuning`.
        temperature: T, by which the logits are divided.

    Example:
        >>> import torch, mnvi
        >>> x, y = torch.randn(50, 2), torch.randint(3, (50,))
        >>> tuned = mnvi.tune_noise(torch.nn.Linear(2, 3), (x, y))
        >>> isinstance(tuned, mnvi.methods.TunedNoise), abs(tuned.temperature.item() - tuned.tuning.temperature) < 1e-5
        (True, True)
    """

    tuning: Tuning


def tune_noise(
    net: nn.Module,
    data: tuple[Tensor, Tensor] | Batches,
    *,
    layers: str = "last",
    likelihood: Likelihood | None = None,
    temperature: bool = True,
    rhos: Sequence[float] | None = None,
    learn: str = "scalar",
    kappa: float = 0.01,
    steps: int = 300,
    seed: int = 0,
) -> TunedNoise:
    r"""Give a trained network uncertainty without training it again.

    One noise level, the same :math:`\rho` for every chosen layer, and one temperature minimise the negative
    log-likelihood of the data given here. Use data that the network was not trained on; a few hundred examples are
    enough for two numbers. Weights, and with them the mean of the logits, stay as they are. Noise in the last layer
    alone is the default: noise that a network never saw in training costs accuracy when it passes through many layers
    before it softens predictions enough.

    The candidates include no noise and no temperature, so on the data given here the result is never worse than
    temperature scaling.

    With ``learn="elbo"`` every input unit of the chosen layers gets a noise of its own, learnt by the ELBO with fixed
    weights. It starts too low to change anything. Then the data choose the temperature:

    .. math:: \max_\rho \; \sum_n E_q[\log p(y_n|x_n, w)] - \kappa\, KL[q_\rho(w)\,\|\,p(w)]

    The prior variance of a layer is then the mean square of its weights. Many numbers need more data than one: give it
    a thousand examples or more.

    Args:
        net: a trained network, which is copied, or one from :func:`mnvi.convert` with
            :class:`mnvi.MultiplicativeNoise`, whose noisy layers are then the chosen ones.
        data: inputs and targets, or batches of them, such as a ``DataLoader``.
        layers: "last", "all", or the pattern of layer names that :func:`mnvi.convert` takes.
        likelihood: the one the network was fitted with; else, as in :func:`mnvi.fit`,
            :class:`mnvi.CategoricalLikelihood` for integer targets and :class:`mnvi.GaussianLikelihood` for others.
        temperature: whether to choose a temperature, too. Numbers have none: it would change what is predicted.
        rhos: the values of noise to try, such as ``(-9, -7, -6, -5)`` for noise in all layers of a deep network, where
            each value takes a pass over the data. By default nine from -9 to 1, larger ones if 1 is best, and, around
            the best, eight more.
        learn: "scalar", one noise level by the negative log-likelihood; or "elbo", one for each unit.
        kappa: weight of the KL in the ELBO.
        steps: of Adam on the ELBO, each on one batch of the data.
        seed: of the samples with which the likelihood is computed.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
        >>> x, y = torch.randn(100, 2), torch.randint(3, (100,))
        >>> tuned = mnvi.tune_noise(net, (x, y))
        >>> tuned.tuning.layers, tuned.tuning.nll <= tuned.tuning.nll_temperature
        (('2',), True)
        >>> tuned(x).var.shape
        torch.Size([100, 3])
    """
    if learn not in ("scalar", "elbo"):
        raise ValueError(f"tune_noise: learn={learn!r} must be 'scalar' or 'elbo'")
    if rhos is not None:
        for rho in rhos:
            check_number("tune_noise: rhos", rho)
        if len(rhos) == 0 or learn == "elbo":
            raise ValueError(f"tune_noise: rhos={rhos!r} with learn={learn!r}; give values to try, with learn='scalar'")
    batches = as_batches("tune_noise", data)
    bayesian = _noisy(net, layers, batches[0][0]).eval()
    noisy = {name: layer for name, layer in bayesian.named_modules() if isinstance(layer, BayesianLayer)}
    y = targets_of(bayesian, batches)
    likelihood = assumed_likelihood(net, y) if likelihood is None else likelihood
    temperature = temperature and has_temperature(likelihood)
    outputs = Outputs(bayesian, list(noisy.values()), [inputs for inputs, _ in batches])
    search = Search(outputs, likelihood, y, seed, temperature, rhos)

    plain, before = outputs(NO_NOISE).mean, search.nll(NO_NOISE, 1.0)
    check_logits("tune_noise", plain, likelihood)
    tempered, plain_temperature = search.best_temperature(NO_NOISE)
    if learn == "elbo":
        check_number("tune_noise: kappa", kappa, least=0)
        check_number("tune_noise: steps", steps, least=1, whole=True)
        _learn_noise(
            bayesian, batches, ELBO(likelihood, y.numel(), kappa), steps, seed, own_prior=not bayesian_layers(net)
        )
        learnt = outputs.as_it_is()
        search = Search(lambda _: learnt, likelihood, y, seed, temperature)
        rho = float(torch.cat([layer.rho.detach() for layer in noisy.values()]).mean())
        nll, best = search.best_temperature(rho)
    else:
        nll, rho, best = min((tempered, NO_NOISE, plain_temperature), search.best())
        outputs.set_noise(rho)
    tuned = TunedNoise(bayesian, best)
    note(tuned, likelihood)
    kept = None
    if isinstance(likelihood, CategoricalLikelihood):
        probs = search.predictive(rho, best).probs
        kept = float((plain.argmax(-1) == probs.argmax(-1)).double().mean())
    tuned.tuning = Tuning(tuple(noisy), rho, best, before, tempered, nll, kept)
    return tuned


def _learn_noise(net: nn.Module, batches: Any, elbo: ELBO, steps: int, seed: int, own_prior: bool) -> None:
    """Learn ``rho`` of every noisy layer, and nothing else."""
    layers = bayesian_layers(net)
    for layer in layers:
        layer.rho.data.fill_(_FIRST_RHO)
        if own_prior:
            square = float(layer.weight.detach().double().square().mean())
            layer.posterior = replace(layer.posterior, prior_variance=max(square, _SMALLEST_PRIOR_VARIANCE))  # type: ignore[type-var]
    rhos = list({id(layer.rho): layer.rho for layer in layers}.values())  # tied layers share theirs
    with torch.enable_grad():
        maximise_elbo(net, rhos, batches, elbo, steps=steps, learning_rate=0.1, seed=seed)


def _noisy(net: nn.Module, layers: str, example: Tensor) -> nn.Module:
    """A copy with noise in the chosen layers, set so low that it changes nothing."""
    posterior = MultiplicativeNoise(prior_variance=1.0, init_rho=NO_NOISE)
    if bayesian_layers(net):
        others = [type(layer.posterior).__name__ for layer in bayesian_layers(net) if not _has_noise(layer)]
        if others:
            raise TypeError(
                f"tune_noise: the network has layers with {others[0]}; it tunes mnvi.MultiplicativeNoise: pass the "
                "deterministic network"
            )
        return copied("tune_noise", net)
    if layers == "all":
        return convert(net, posterior)
    return convert(net, posterior, only=name_of_last_layer("tune_noise", net, example) if layers == "last" else layers)


def _has_noise(layer: BayesianLayer) -> bool:
    return isinstance(layer.posterior, MultiplicativeNoise)
