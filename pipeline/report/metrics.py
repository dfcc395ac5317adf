"""What a metric is called, in which unit it is shown, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.report import paper

HIGHER, LOWER, SAME = "higher", "lower", "same"

METHODS = {
    "mc_mfvi": "MC-MFVI",
    "mc_dropout": "MC Dropout",
    "ensemble": "Ensemble",
    "dvi": "DVI",
    "ddvi": "dDVI",
    "deterministic": "Deterministic",
    "mfvi": "MFVI",
    "smfvi": "Shared MFVI",
    "mnvi": "MNVI",
}
DATA = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "notmnist": "notMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}
NETWORKS = {"lenet": "LeNet", "all_cnn": "AllCNN", "resnet18": "ResNet18", "mlp": "MLP"}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Metric:
    label: str
    better: str | None  # None: told, never judged
    decimals: int  # shown where the paper has no entry to follow
    percent: bool = False


_METRICS = {
    "log_likelihood": Metric("Log-likelihood", HIGHER, 3),
    "rmse": Metric("RMSE", LOWER, 3),
    "coverage_50": Metric("50 % interval holds", None, 1, percent=True),
    "coverage_80": Metric("80 % interval holds", None, 1, percent=True),
    "coverage_95": Metric("95 % interval holds", None, 1, percent=True),
    "misclassification": Metric("Misclassification", LOWER, 2, percent=True),
    "nll": Metric("NLL", LOWER, 4),
    "ece": Metric("ECE", LOWER, 4),
    "aumrc": Metric("AUMRC", LOWER, 5),
    "mr10": Metric("MR10%", LOWER, 2, percent=True),
    "mr25": Metric("MR25%", LOWER, 2, percent=True),
    "mr50": Metric("MR50%", LOWER, 2, percent=True),
    # The paper's milliseconds are those of its GPU.
    "inference_ms": Metric("Inference of 100", None, 2),
    "parameters": Metric("Parameters", SAME, 0),
}


def metric(name: str) -> Metric:
    if name in _METRICS:
        return _METRICS[name]
    if name.startswith("auroc_"):
        by = " by epistemic uncertainty" if name.startswith("auroc_epistemic_") else ""
        other = name.removeprefix("auroc_").removeprefix("epistemic_")
        return Metric(f"AUROC against {DATA.get(other, other)}{by}", HIGHER, 4)
    return Metric(name.replace("_", " "), None, 4)


def exponent(data: str, name: str) -> int:
    """Power of ten between our files and what is shown; parameters are shown one by one."""
    if name == "parameters":
        return 0
    return 2 if metric(name).percent else paper.exponent(data, name)


def label(data: str, name: str) -> str:
    """The metric with its unit, as a row's head."""
    if metric(name).percent:
        return f"{metric(name).label} [%]"
    if name == "inference_ms":
        return f"{metric(name).label} [ms]"
    power = exponent(data, name)
    return f"{metric(name).label} [10{str(-power).translate(_SUPERSCRIPT)}]" if power else metric(name).label


def method_label(name: str) -> str:
    return METHODS.get(name, name)


def data_label(name: str) -> str:
    return DATA.get(name, name)


def network_label(name: str) -> str:
    return NETWORKS.get(name, name)
