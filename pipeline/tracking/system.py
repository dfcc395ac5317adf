"""Records the machine's load as metrics of a run: processor, memory, disk, network and GPU."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pipeline.background import repeating
from pipeline.errors import StudyError

if TYPE_CHECKING:
    from pipeline.tracking.runs import Run

EVERY = 10.0  # seconds


@contextmanager
def measuring(run: Run, started: float) -> Iterator[None]:
    """Measures in the background, into the journal; MLflow's own thread gives up when the server fails."""
    monitors = _monitors()

    def measure() -> None:
        values: dict[str, float] = {}
        for monitor in monitors:
            monitor.collect_metrics()
            values |= monitor.aggregate_metrics()
            monitor.clear_metrics()
        # The step is the time since the run began, so that a restart continues at the right step.
        step = int((time.time() - started) / EVERY)
        with suppress(StudyError):  # a full disk: the training itself reports it, or finds space again
            run.metrics({f"system/{key}": value for key, value in values.items()}, step)

    measure()
    with repeating(measure, EVERY, "system metrics"):
        yield


def _monitors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    if importlib.util.find_spec("pynvml") is not None:
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        with suppress(RuntimeError):  # the library is installed, but there is no GPU
            monitors.append(GPUMonitor())
    return monitors
