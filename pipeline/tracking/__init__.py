"""Records the study in MLflow: runs, metrics, data sets and models. No other package of the study imports mlflow.

Records are on disk first, so that none is lost when the server fails:

    tracking.prepare()                                                     # once, in the driver
    with tracking.run(cell, "train", state=cell.state("train")) as run:
        run.params(settings)
        run.metrics({"loss": 0.3}, step=1)
        tracking.model(run, network, cell, example)

A state folder contains `mlflow-run.json` (which run it belongs to), `metrics.jsonl` (all records of the run) and
`mlflow-sent.json` (how many of them MLflow has received).
"""

from typing import TYPE_CHECKING, Any

from pipeline.tracking.runs import Run, resume, run
from pipeline.tracking.sender import send
from pipeline.tracking.store import prepare

if TYPE_CHECKING:
    from pipeline.tracking.models import model

__all__ = ["Run", "model", "prepare", "resume", "run", "send"]


def __getattr__(name: str) -> Any:
    """Imports `models` on first use: it imports torch, and a stage with nothing to do should not wait for torch."""
    if name != "model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline.tracking.models import model

    return model
