"""The paper's two tables, digit by digit as printed, and corrections of misprints.

The text below is laid out like the tables, so that it can be checked by eye. It uses the units of the tables' headings;
reading it converts them to fractions.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

# Log-likelihood, mean ± standard deviation over the runs.
_TABLE_1 = """
               boston         concrete       energy         kin8           power          wine           yacht
mc_mfvi        -2.43 ± 0.03   -3.04 ± 0.02   -2.38 ± 0.02    2.40 ± 0.05   -2.66 ± 0.01   -0.78 ± 0.02   -1.68 ± 0.04
mc_dropout     -2.46 ± 0.25   -3.04 ± 0.09   -1.99 ± 0.09    0.95 ± 0.03   -2.89 ± 0.01   -0.93 ± 0.05   -1.55 ± 0.12
ensemble       -2.41 ± 0.25   -3.06 ± 0.18   -1.38 ± 0.22    1.20 ± 0.02   -2.79 ± 0.04   -0.94 ± 0.12   -1.18 ± 0.21
dvi            -2.41 ± 0.02   -3.06 ± 0.02   -1.01 ± 0.06    1.13 ± 0.00   -2.80 ± 0.00   -0.90 ± 0.01   -0.47 ± 0.03
ddvi           -2.42 ± 0.02   -3.07 ± 0.02   -1.06 ± 0.06    1.13 ± 0.00   -2.80 ± 0.00   -0.91 ± 0.02   -0.47 ± 0.03
mnvi           -2.43 ± 0.02   -3.05 ± 0.01   -1.33 ± 0.05    1.15 ± 0.01   -2.86 ± 0.00   -0.96 ± 0.01   -0.37 ± 0.02
"""

# Rates in percent, inference in milliseconds for a batch of 100, parameters in millions; "-" is the table's own dash.
# MNIST's ECE is printed in 1e-3, its AUMRC in 1e-5.
_TABLE_2 = """
              misclassification nll             ece             aumrc             mr10         mr25         mr50        inference_ms parameters
mnist lenet
deterministic  0.55 ± 0.06      0.0266 ± 0.0007 4.03 ± 0.76     9.91 ± 1.23       -            -            -            0.86 ± 0.16  1.111
mc_dropout     0.59 ± 0.01      0.0205 ± 0.0015 2.64 ± 0.22     10.42 ± 3.03      -            -            -            7.35 ± 0.36  1.111
mfvi           0.57 ± 0.04      0.0173 ± 0.0008 2.05 ± 0.37     8.30 ± 0.62       -            -            -            6.28 ± 0.45  2.224
mnvi           0.55 ± 0.03      0.0177 ± 0.0008 1.91 ± 0.30     8.33 ± 0.64       -            -            -            5.97 ± 0.63  1.114
cifar10 all_cnn
deterministic  7.97 ± 0.20      0.4278 ± 0.0088 0.0574 ± 0.0025 0.00942 ± 0.00026 3.54 ± 0.04  0.87 ± 0.08  -            1.84 ± 0.11  1.370
mc_dropout     7.16 ± 0.25      0.2567 ± 0.0032 0.0276 ± 0.0014 0.00812 ± 0.00014 3.07 ± 0.10  0.73 ± 0.11  -           11.86 ± 0.55  1.370
mfvi           7.72 ± 0.14      0.3483 ± 0.0064 0.0495 ± 0.0007 0.00898 ± 0.00044 3.40 ± 0.17  0.81 ± 0.09  -           12.75 ± 0.64  2.739
mnvi           7.62 ± 0.35      0.3522 ± 0.0150 0.0492 ± 0.0033 0.00895 ± 0.00057 3.42 ± 0.09  0.83 ± 0.07  -            9.96 ± 0.52  2.739
cifar10 resnet18
deterministic  5.94 ± 0.26      0.2605 ± 0.0055 0.0386 ± 0.0021 0.00623 ± 0.00066 2.05 ± 0.16  0.53 ± 0.07  -            5.64 ± 0.23  11.17
mc_dropout     5.70 ± 0.09      0.2185 ± 0.0063 0.0278 ± 0.0006 0.00576 ± 0.00021 1.91 ± 0.05  0.46 ± 0.03  -           47.34 ± 2.12  11.17
mfvi           5.63 ± 0.21      0.2561 ± 0.0063 0.0372 ± 0.0011 0.00564 ± 0.00025 1.90 ± 0.14  0.44 ± 0.06  -           34.92 ± 1.18  22.34
mnvi           5.60 ± 0.14      0.2462 ± 0.0069 0.0346 ± 0.0010 0.00553 ± 0.00004 1.92 ± 0.09  0.44 ± 0.07  -           33.82 ± 0.66  11.18
cifar100 resnet18
deterministic 27.38 ± 0.57      1.266 ± 0.019   0.133 ± 0.004   0.0823 ± 0.0014   20.94 ± 0.33 14.29 ± 0.16 4.71 ± 0.28  5.75 ± 0.25  11.22
mc_dropout    27.87 ± 0.37      1.240 ± 0.005   0.116 ± 0.005   0.0830 ± 0.0002   22.22 ± 0.37 14.63 ± 0.20 4.68 ± 0.24 46.75 ± 2.21  11.22
mfvi          26.91 ± 0.10      1.271 ± 0.016   0.131 ± 0.003   0.0787 ± 0.0003   21.30 ± 0.12 13.57 ± 0.08 4.48 ± 0.15 34.71 ± 0.86  22.43
mnvi          25.30 ± 0.50      1.085 ± 0.011   0.105 ± 0.005   0.0740 ± 0.0017   20.01 ± 0.43 12.82 ± 0.39 3.90 ± 0.37 34.02 ± 0.83  11.23
imagenet resnet18
deterministic 31.09             1.282           0.0313          0.1106            25.96        18.92        8.36         8.63 ± 0.59  11.69
mnvi          31.05             1.276           0.0388          0.1092            25.78        18.68        7.96        43.75 ± 1.06  11.69
"""  # noqa: E501 – a row of the table is a row here

# Table 2 repeats MFVI's count for AllCNN and miscounts ResNet18 on CIFAR-100.
_PARAMETERS_CORRECTED = {
    ("cifar10", "all_cnn", "mnvi"): 1_370_989,
    ("cifar100", "resnet18", "mnvi"): 11_224_487,
}

# No other source comes close to these three figures.
OUT_OF_LINE = {("kin8", "mc_mfvi"), ("power", "mc_mfvi"), ("wine", "mc_mfvi")}

RUNS_1, FOLDS_1 = 20, 10
_RUNS_2 = {"imagenet": 1}


@dataclass(frozen=True)
class Printed:
    """One entry of a table: the digits on paper, and their value in the units of our own files."""

    mean: float
    std: float | None
    text: str  # as printed, in the table's unit
    decimals: int  # digits after the point of the printed mean
    exponent: int  # printed = value · 10^exponent
    corrected: bool = False


Key = tuple[str, str, str]  # data, network, method


def exponent(data: str, metric: str) -> int:
    """Power of ten between the table's unit and a plain fraction or number."""
    if metric in ("misclassification", "mr10", "mr25", "mr50"):
        return 2
    if metric == "parameters":
        return -6
    return {("mnist", "ece"): 3, ("mnist", "aumrc"): 5}.get((data, metric), 0)


def runs_2(data: str) -> int:
    """Number of seeds behind an entry of Table 2."""
    return _RUNS_2.get(data, 4)


def _printed(entry: str, exponent: int, corrected: int | None = None) -> Printed:
    numbers = [Decimal(part) for part in entry.split("±")]
    values = [float(number.scaleb(-exponent)) for number in numbers]
    std = values[1] if len(values) > 1 else None
    text = entry.replace("±", " ± ")
    decimals = -int(numbers[0].as_tuple().exponent)
    if corrected is not None:
        return Printed(float(corrected), std, text, decimals, exponent, corrected=True)
    return Printed(values[0], std, text, decimals, exponent)


def _entries(line: str) -> list[str]:
    """The columns of a row: numbers, pairs joined by ±, or dashes."""
    return line.replace(" ± ", "±").split()


def _table_1() -> dict[Key, Printed]:
    head, *rows = _TABLE_1.strip("\n").splitlines()
    table = {}
    for row in rows:
        method, *entries = _entries(row)
        for data, entry in zip(head.split(), entries, strict=True):
            table[data, "mlp", method] = _printed(entry, 0)
    return table


def _table_2() -> dict[Key, dict[str, Printed]]:
    head, *rows = _TABLE_2.strip("\n").splitlines()
    table: dict[Key, dict[str, Printed]] = {}
    data = network = ""
    for row in rows:
        first, *entries = _entries(row)
        if len(entries) == 1:
            data, network = first, entries[0]
            continue
        key = data, network, first
        table[key] = {
            metric: _printed(
                entry,
                exponent(data, metric),
                _PARAMETERS_CORRECTED.get(key) if metric == "parameters" else None,
            )
            for metric, entry in zip(head.split(), entries, strict=True)
            if entry != "-"
        }
    return table


TABLE_1 = _table_1()
TABLE_2 = _table_2()
DATA_1 = tuple(_TABLE_1.strip("\n").splitlines()[0].split())
METRICS_2 = tuple(_TABLE_2.strip("\n").splitlines()[0].split())
