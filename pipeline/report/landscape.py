"""The paper's Figure 2, computed by the library's own KL divergence: where the two posteriors pull a single weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import vmap

from mnvi.moments import divergence
from pipeline.report.drawing import Drawing, panels

PRIOR_VARIANCE = 1.0
CEILING = 4.0  # nats at the end of the colour scale
POINTS = 201


def drawing() -> Drawing:
    caption = (
        "Figure 2 of the paper, recomputed: KL divergence from a standard normal prior of a mean-field posterior "
        "(left) and of the posterior that multiplicative activation noise induces (right). Brighter is lower; the "
        "line marks the minimum for each variance."
    )
    return Drawing("kl_landscape", "landscape", caption, draw)


def surfaces() -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Weight means [points], variances [points], and the divergence [variance, mean] of each posterior."""
    means = torch.linspace(-2.0, 2.0, POINTS, dtype=torch.float64)
    variances = torch.logspace(-2.0, 1.0, POINTS, dtype=torch.float64)
    found = {
        "mean field": _each(lambda m, v: divergence.mean_field(m, v.log(), PRIOR_VARIANCE), means, variances),
        "multiplicative noise": _each(
            lambda m, v: divergence.multiplicative_noise(m, v, PRIOR_VARIANCE), means, variances
        ),
    }
    return means, variances, found


def _each(kl: Callable[[Tensor, Tensor], Tensor], means: Tensor, variances: Tensor) -> Tensor:
    values: Tensor = vmap(lambda v: vmap(lambda m: kl(m, v))(means))(variances)
    return values


def draw() -> Figure:
    means, variances, found = surfaces()
    at = means.numpy(), variances.numpy()
    figure, axes = panels(2, 2, 4.2, 3.3)
    labels = ("variance of the weight", "variance α of the noise")
    for axis, (name, surface), label in zip(axes, found.items(), labels, strict=True):
        image = axis.pcolormesh(*at, surface.numpy(), cmap="viridis_r", vmin=0, vmax=CEILING, rasterized=True)
        axis.set(yscale="log", xlabel="mean of the weight", ylabel=label, title=name)
        axis.grid(False)
        half = POINTS // 2  # means of zero and above
        lowest = means[half:][surface[:, half:].argmin(dim=1)]
        for side in (lowest, -lowest):
            axis.plot(side.numpy(), at[1], color="#d1495b", lw=1.2)
    figure.colorbar(image, ax=axes, label="KL divergence [nats]", extend="max")
    return figure
