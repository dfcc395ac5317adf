"""The test images that a network is surest and least sure about."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from pipeline import files
from pipeline.data.imagesets import ImageSet
from pipeline.images.predictions import Predictions

EACH = 10


def extremes(path: Path, images: ImageSet, found: Predictions) -> None:
    """Draws the most certain images above the least certain ones, each with label, prediction and entropy."""
    order = found.total.argsort(stable=True)
    each = min(EACH, len(order))
    figure = Figure(figsize=(1.15 * each, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, each, squeeze=False)
    for line, title, chosen in zip(axes, ("most certain", "least certain"), (order, order.flip(0)), strict=True):
        line[0].set_ylabel(title, fontsize=8)
        for axis, row in zip(line, chosen[:each].tolist(), strict=True):
            _draw(axis, images.take(torch.tensor([row]))[0], _caption(images, found, row), bool(found.wrong[row]))
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _draw(axis: Axes, pixels: Tensor, caption: str, wrong: bool) -> None:
    shown = pixels.permute(1, 2, 0).numpy()
    axis.imshow(shown[..., 0] if shown.shape[-1] == 1 else shown, cmap="gray", vmin=0, vmax=255)
    axis.set(xticks=[], yticks=[])
    axis.set_title(caption, fontsize=6, color="tab:red" if wrong else "black")


def _caption(images: ImageSet, found: Predictions, row: int) -> str:
    label, prediction = int(found.labels[row]), int(found.probs[row].argmax())
    names = images.classes
    said = names[label] if label == prediction else f"{names[label]}, not {names[prediction]}"
    return f"{said}\n{found.total[row]:.2g} nats"
