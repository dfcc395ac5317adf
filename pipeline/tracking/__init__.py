"""The study in MLflow: runs, metrics that survive a server, data sets and models. Nothing else imports mlflow.

    tracking.prepare()                                                     # once, in the driver
    with tracking.run(cell, "train", state=cell.state("train")) as run:
        run.params(settings)
        run.metrics({"loss": 0.3}, step=1)
        tracking.model(run, network, cell, example)

A state folder keeps `mlflow-run.json` (which run), `metrics.jsonl` (everything said to it) and `mlflow-sent.json` (how
much of that has arrived).
"""

from pipeline.tracking.models import model
from pipeline.tracking.runs import Run, resume, run
from pipeline.tracking.sender import send
from pipeline.tracking.store import prepare

__all__ = ["Run", "model", "prepare", "resume", "run", "send"]
