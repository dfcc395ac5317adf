"""The study in MLflow: runs, metrics that survive a server, data sets and models. Nothing else imports mlflow.

    tracking.prepare()                                                     # once, in the driver
    with tracking.run(cell, "train", state=cell.state("train")) as run:
        run.params(settings)
        run.metrics({"loss": 0.3}, step=1)
        tracking.model(run, network, cell, example)

A state folder keeps `mlflow-run.json` (which run), `metrics.jsonl` (everything said to it) and `mlflow-sent.json` (how
much of that has arrived).
"""

from typing import TYPE_CHECKING, Any

from pipeline.tracking.runs import Run, resume, run
from pipeline.tracking.sender import send
from pipeline.tracking.store import prepare

if TYPE_CHECKING:
    from pipeline.tracking.models import model

__all__ = ["Run", "model", "prepare", "resume", "run", "send"]


def __getattr__(name: str) -> Any:
    """Models bring torch, which stages that have nothing to do should not wait for."""
    if name != "model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline.tracking.models import model

    return model
