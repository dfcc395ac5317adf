"""Counts the operators that an eager training step of ResNet18 on ImageNet launches.

A GPU takes some microseconds to start each of them, however small its tensors: a step with few images waits for that.
Counts depend neither on the machine nor on the batch. Compiled code launches far fewer.

    python -m benchmarks.scaling.launches     # half a minute; writes benchmarks/results/scaling_launches.json
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mnvi
from benchmarks.scaling import model, setting, steps
from benchmarks.timing import write
from pipeline import propagation

RESULTS = setting.RESULTS / "scaling_launches.json"
LAUNCH = 10e-6  # seconds for an operator of an eager step, assumed: Python, dispatch and the launch itself
# They change how a tensor is seen, or reserve memory, but compute nothing.
NO_WORK = {
    "_local_scalar_dense", "alias", "as_strided", "detach", "empty", "empty_like", "expand", "permute", "scalar_tensor",
    "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unsqueeze", "view",
}  # fmt: skip


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launched: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = operator.name().removeprefix("aten::").partition(".")[0]
        if name not in NO_WORK:
            self.launched[name] += 1
        return operator(*args, **(kwargs or {}))


def launched(step: Callable[[], Any]) -> Counter[str]:
    """How often each operator runs."""
    with _Counting() as counting:
        step()
    return counting.launched


def count(method: str) -> dict[str, Any]:
    """Operators of forward and backward pass with the library's own options, and with those of the study."""
    objective = steps.objective(method)
    x, y = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    found: dict[str, Any] = {"method": method}
    for name, options in (("library", mnvi.options()), ("study", propagation.options(steps.cell(method).known_method))):
        with options:
            found[name] = sum(launched(lambda: objective(x, y).loss.backward()).values())
        objective.zero_grad()
    return found


def markdown(document: dict) -> str:
    ratios = {one.name: one.ratio for one in model.methods(json.loads(steps.RESULTS.read_text()))}
    lines = [
        "| method | operators of an eager step | as the study sets it | to launch these | images in that time |",
        "| --- | --- | --- | --- | --- |",
    ]
    for record in document["records"]:
        seconds = LAUNCH * record["study"]
        images = seconds * model.Inputs().images_per_second / ratios[record["method"]]
        operators = f"{record['library']:,} | {record['study']:,}"
        lines.append(f"| {record['method']} | {operators} | {1e3 * seconds:.1f} ms | {images:.0f} |")
    return "\n".join(lines)


def main() -> None:
    document = {"torch": torch.__version__, "records": [count(method) for method in steps.METHODS]}
    write(RESULTS, document)
    print(markdown(document))


if __name__ == "__main__":
    main()
