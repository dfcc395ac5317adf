"""The metrics: the function, label and unit of each, and which direction is better.

`evaluate` measures every metric with an entry here, and the report's tables show it. The functions take:

tables                    the prediction, a torch distribution, and the targets [N]
images                    the probabilities [N, C] and the labels [N]
images, `foreign=True`    the `Predictions` on the test images and on a foreign set, once for each set; may return None
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.registry import Reference, Registry, images, resolve

HIGHER, LOWER, SAME = "higher", "lower", "same"
LEVELS = (50, 80, 95)  # percent: the intervals whose coverage we measure
BINS = 20  # of the confidence, for the ECE


@dataclass(frozen=True)
class Metric:
    """One metric.

    Args:
        kind: the kind of experiment that the metric is for; None if it is not for one kind.
        function: measures the metric, as described above; None if a stage measures it without a function.
        arguments: further arguments of the function.
        foreign: whether the metric compares with a set of foreign images; it is then stored as `<name>_<set>`.
        better: which direction is better; None if the metric is shown but not judged.
        decimals: how many to show if the paper has no entry to follow.
    """

    name: str
    kind: str | None
    function: Reference | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    foreign: bool = False
    label: str = field(default="", compare=False)
    better: str | None = field(default=None, compare=False)
    decimals: int = field(default=4, compare=False)
    percent: bool = field(default=False, compare=False)
    unit: str = field(default="", compare=False)

    def measure(self, *given: Any) -> float | None:
        assert self.function is not None
        value = resolve(self.function)(*given, **self.arguments)
        return None if value is None else float(value)


METRICS = Registry(
    "a metric",
    (
        Metric(
            "log_likelihood",
            "regression",
            "mnvi.metrics:log_likelihood",
            label="Log-likelihood",
            better=HIGHER,
            decimals=3,
        ),
        Metric("rmse", "regression", "pipeline.regression.predictions:rmse", label="RMSE", better=LOWER, decimals=3),
        *(
            Metric(
                f"coverage_{level}",
                "regression",
                "mnvi.metrics:interval_coverage",
                {"level": level / 100},
                label=f"{level} % interval holds",
                decimals=1,
                percent=True,
            )
            for level in LEVELS
        ),
        Metric(
            "misclassification",
            "classification",
            "mnvi.metrics:misclassification",
            label="Misclassification",
            better=LOWER,
            decimals=2,
            percent=True,
        ),
        Metric("nll", "classification", "mnvi.metrics:nll", label="NLL", better=LOWER),
        Metric("ece", "classification", "mnvi.metrics:ece", {"num_bins": BINS}, label="ECE", better=LOWER),
        Metric("aumrc", "classification", "mnvi.metrics:aumrc", label="AUMRC", better=LOWER, decimals=5),
        *(
            Metric(
                f"mr{percent}",
                "classification",
                "mnvi.metrics:misclassification_at_rejection",
                {"rate": percent / 100},
                label=f"MR{percent}%",
                better=LOWER,
                decimals=2,
                percent=True,
            )
            for percent in (10, 25, 50)
        ),
        Metric(
            "auroc",
            "classification",
            "pipeline.images.evaluation:auroc",
            foreign=True,
            label="AUROC against {data}",
            better=HIGHER,
        ),
        Metric(
            "auroc_epistemic",
            "classification",
            "pipeline.images.evaluation:auroc_epistemic",
            foreign=True,
            label="AUROC against {data} by epistemic uncertainty",
            better=HIGHER,
        ),
        # Not judged: the paper measured its milliseconds on a GPU.
        Metric("inference_ms", None, label="Inference of 100", decimals=2, unit="ms"),
        Metric("parameters", None, label="Parameters", better=SAME, decimals=0),
    ),
)


def measured(kind: str, foreign: bool = False) -> list[Metric]:
    """The metrics that `evaluate` measures, in the order of the tables."""
    return [one for one in METRICS.values() if one.kind == kind and one.function is not None and one.foreign == foreign]


def find(stored: str) -> Metric:
    """The metric stored under this name; a metric that no longer has an entry is labelled with its name."""
    return METRICS.get(stored) or _foreign(stored) or Metric(stored, None, label=stored.replace("_", " "))


def _foreign(stored: str) -> Metric | None:
    fitting = [one for one in METRICS.values() if one.foreign and stored.startswith(f"{one.name}_")]
    return max(fitting, key=lambda one: len(one.name), default=None)


def label(stored: str) -> str:
    found = find(stored)
    return (
        found.label.format(data=images.label(stored.removeprefix(f"{found.name}_"))) if found.foreign else found.label
    )
