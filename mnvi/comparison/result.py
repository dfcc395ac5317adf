"""What a comparison with sampled weights found: tensors, rows for programs, a table and a figure for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_COLUMNS = {  # heading of the table -> key of a row and its format
    "std ratio": ("std_ratio_median", "{:.3f}"),
    "5 %": ("std_ratio_low", "{:.3f}"),
    "95 %": ("std_ratio_high", "{:.3f}"),
    "overall": ("std_ratio_overall", "{:.3f}"),
    "mean off/se": ("mean_off_errors", "{:.2f}"),
    "mean off/std": ("mean_off_stds", "{:.3f}"),
}


@dataclass(frozen=True, eq=False)
class ComparedLayer:
    """Predicted and sampled moments of one module's output.

    Tensors have the shape of the output if all its entries were watched; otherwise they are flat.

    Attributes:
        name: of the module, "output" for the model itself, with the call's number for modules that are called again.
        kind: class of the module.
        shape: shape of its output.
        predicted_mean, predicted_std: what the model says.
        sampled_mean, sampled_std: what sampled weights give.
        mean_error, std_error: standard errors of ``sampled_mean`` and ``sampled_std``.
        is_output: whether this is the output of the whole model.

    Example:
        >>> import torch, mnvi
        >>> bayesian = mnvi.convert(torch.nn.Linear(4, 3), mnvi.MultiplicativeNoise(prior_variance=1.0)).eval()
        >>> output = mnvi.compare_with_sampling(bayesian, torch.randn(8, 4)).output
        >>> off = (output.predicted_std - output.sampled_std) / output.std_error
        >>> off.shape, bool((off.abs() < 6).all())
        (torch.Size([8, 3]), True)
    """

    name: str
    kind: str
    shape: torch.Size
    predicted_mean: Tensor
    predicted_std: Tensor
    sampled_mean: Tensor
    sampled_std: Tensor
    mean_error: Tensor
    std_error: Tensor
    is_output: bool = False

    @property
    def std_ratio(self) -> Tensor:
        """Predicted over sampled standard deviation of entries that vary over samples, flat."""
        moves = self.sampled_std > 0
        return self.predicted_std[moves] / self.sampled_std[moves]

    def row(self) -> dict[str, Any]:
        r"""The comparison in a few numbers.

        - ``std_ratio_median``, ``std_ratio_low``, ``std_ratio_high``: median, 5 % and 95 % quantile over entries of
          :math:`\sigma / \hat\sigma`, predicted over sampled standard deviation; NaN if nothing varies.
        - ``std_ratio_error``: typical standard error of this ratio for one entry, from sampling.
        - ``std_ratio_overall``: :math:`\sqrt{\sum \sigma^2 / \sum \hat\sigma^2}`, in which large variances count most.
        - ``mean_off_errors``: root mean square of predicted minus sampled mean, over that of the standard errors; about
          1 if the means agree.
        - ``mean_off_stds``: the same over that of the sampled standard deviations; about :math:`1/\sqrt S` if they
          agree.

        Entries that no sample moved, such as units that a ReLU always cuts off, do not count.
        """
        moves = self.sampled_std > 0
        predicted, sampled = self.predicted_std[moves], self.sampled_std[moves]
        off = (self.predicted_mean - self.sampled_mean)[moves]
        ratio = self.std_ratio
        return {
            "layer": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "entries": self.predicted_mean.numel(),
            "std_ratio_median": _quantile(ratio, 0.5),
            "std_ratio_low": _quantile(ratio, 0.05),
            "std_ratio_high": _quantile(ratio, 0.95),
            "std_ratio_error": _quantile(ratio * self.std_error[moves] / sampled, 0.5),
            "std_ratio_overall": float(predicted.norm() / sampled.norm()),
            "mean_off_errors": float(off.norm() / self.mean_error[moves].norm()),
            "mean_off_stds": float(off.norm() / sampled.norm()),
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Result of :func:`mnvi.compare_with_sampling`; ``print`` shows it as a table.

    A ratio of standard deviations below 1 means that the model is too sure of itself, above 1 that it is not sure
    enough.

    Attributes:
        compared: all modules whose output is a Gaussian, in the order in which they ran, the model last.
        num_samples: number of weight samples.

    Example:
        >>> import torch, mnvi
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
        >>> bayesian = mnvi.convert(net, mnvi.MultiplicativeNoise(prior_variance=1.0)).eval()
        >>> compared = mnvi.compare_with_sampling(bayesian, torch.randn(8, 4))
        >>> [row["layer"] for row in compared.rows()], compared["1"].kind
        (['0', '1', '2', 'output'], 'ReLU')
    """

    compared: list[ComparedLayer]
    num_samples: int

    @property
    def layers(self) -> list[ComparedLayer]:
        """Everything but the outputs of the model."""
        return [layer for layer in self.compared if not layer.is_output]

    @property
    def outputs(self) -> list[ComparedLayer]:
        """The outputs of the model that are Gaussians."""
        return [layer for layer in self.compared if layer.is_output]

    @property
    def output(self) -> ComparedLayer:
        """The first output of the model."""
        return self.outputs[0]

    def __getitem__(self, name: str) -> ComparedLayer:
        for layer in self.compared:
            if layer.name == name:
                return layer
        raise KeyError(f"no module {name!r} was compared; there are {', '.join(layer.name for layer in self.compared)}")

    def rows(self) -> list[dict[str, Any]]:
        """One row of numbers for each module, see :meth:`ComparedLayer.row`."""
        return [layer.row() for layer in self.compared]

    def __str__(self) -> str:
        cells = [["layer", "kind", "entries", *_COLUMNS]]
        for row in self.rows():
            numbers = [form.format(row[key]) for key, form in _COLUMNS.values()]
            cells.append([row["layer"], row["kind"], str(row["entries"]), *numbers])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        sides = ["<", "<"] + [">"] * (len(widths) - 2)
        shape = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
        error, floor = self.output.row()["std_ratio_error"], self.num_samples**-0.5
        head = [
            f"Predicted over sampled standard deviation; {self.num_samples} samples of all weights.",
            f"Perfect: ratio 1 (one entry ± {error:.2f}), mean off/se 1, mean off/std {floor:.3f}.",
        ]
        return "\n".join(head + [shape.format(*line) for line in cells])

    def plot(self) -> Any:
        """A figure: ratios of standard deviations layer by layer, and predicted against sampled ones of the output.

        Needs matplotlib. Returns its ``Figure``; ``figure.savefig("comparison.png")`` keeps it.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ImportError("Comparison.plot: matplotlib is not installed: run `pip install matplotlib`") from error
        rows, output = self.rows(), self.output
        figure = Figure(figsize=(11, 0.22 * len(rows) + 2.5), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        places = range(len(rows))
        median = torch.tensor([row["std_ratio_median"] for row in rows])
        low = torch.tensor([row["std_ratio_low"] for row in rows])
        high = torch.tensor([row["std_ratio_high"] for row in rows])
        left.errorbar(median, places, xerr=torch.stack([median - low, high - median]).numpy(), fmt="o", markersize=4)
        left.axvline(1.0, color="gray", linewidth=1)
        left.set_yticks(list(places), [row["layer"] for row in rows], fontsize=8)
        left.invert_yaxis()
        left.set_xlabel("predicted / sampled standard deviation (median, 5 % to 95 %)")
        flat = [value.flatten().numpy() for value in (output.sampled_std, output.predicted_std, output.std_error)]
        right.errorbar(flat[0], flat[1], xerr=flat[2], fmt=".", alpha=0.5)
        right.axline((0, 0), slope=1, color="gray", linewidth=1)
        right.set_xlabel("sampled standard deviation of the output")
        right.set_ylabel("predicted")
        return figure


def _quantile(values: Tensor, share: float) -> float:
    return float(values.quantile(share)) if len(values) else float("nan")
