"""How the report shows a metric: its unit, and the power of ten between our files and the table."""

from __future__ import annotations

from pipeline.registry import images, methods, networks
from pipeline.registry import metrics as known
from pipeline.report import paper

method_label, data_label, network_label = methods.label, images.label, networks.label
metric = known.find
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def exponent(data: str, name: str) -> int:
    """Power of ten between our files and the report; parameters are shown as plain counts."""
    if name == "parameters":
        return 0
    return 2 if metric(name).percent else paper.exponent(data, name)


def label(data: str, name: str) -> str:
    """The metric with its unit, as the heading of a row."""
    power = exponent(data, name)
    unit = (
        "%"
        if metric(name).percent
        else metric(name).unit or (f"10{str(-power).translate(_SUPERSCRIPT)}" if power else "")
    )
    return f"{known.label(name)} [{unit}]" if unit else known.label(name)
