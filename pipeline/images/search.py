"""Chooses a cell's hyperparameters by validation NLL: Ray Tune searches its grid, ASHA ends trials that fall behind.

ASHA compares trials of the same epoch. Early epochs say little: the order of a few points after one epoch depends on
rounding. So a trial is safe for the first third of its schedule, and a search in which all trials together see few
images is not cut at all, because it would gain a minute or two.

Every trial has its own folder for its checkpoints and, once it has ended, its record. After a kill, the search hands
all trials to a new Tune: ended trials report their epochs again, which restores what ASHA knew, and the others resume
from their checkpoints.

A trial on several workers is a Ray Train run. A trial on one worker trains in the process that Tune starts for it: Ray
Train would start seven more processes per trial, which on a small machine takes longer than a short trial.
"""

from __future__ import annotations

import math
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from pipeline import cluster, searching, state, storage, tracking
from pipeline.console import progress
from pipeline.errors import Diverged, OutOfMemory, StudyError
from pipeline.images import job as jobs
from pipeline.images import large_batches, workers
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.job import Data, Job
from pipeline.images.loop import Epoch
from pipeline.params import Cell
from pipeline.searching import MADE_BY, SEED, Point, Trial, name_of, short
from pipeline.storage import Anywhere

RECORD = "trial.json"  # written when a trial ends: its entry of trials.json plus its history
KEEPS_ONE_IN = 3  # of the trials that reach a rung
SAFE = 1 / 3  # share of the schedule that every trial goes through: the first rung
CUT_FROM = 1_000_000  # training images that all trials together would see; a smaller search is not cut


def run(cell: Cell) -> None:
    folder = progress_of(cell)
    depends_on = [cell.fingerprint("tune"), jobs.digest(cell.data)]
    with tracking.run(cell, "tune", state=cell.state("tune").absolute(), depends_on=depends_on) as tracked:
        tracked.params(searching.parameters(cell))
        tracked.dataset(jobs.summary(cell.data))
        _search(cell, folder, tracked)
        trials = [{key: value for key, value in one.items() if key != "history"} for one in ended(folder)]
        searching.conclude(cell, trials, tracked, "validation_nll")


def progress_of(cell: Cell) -> Anywhere:
    """The folder of the search's trials."""
    made_for = {**cell.made_for("tune"), "data": jobs.digest(cell.data)}
    return state.progress(jobs.state_folder(cell, "tune"), cell, "tune", made_for)


def trial_folder(point: Point) -> str:
    return f"trial-{name_of(point)}"


def trial_job(cell: Cell, point: Point, folder: Anywhere, data: Data) -> Job:
    return Job(short(cell.with_hyperparameters(point)), SEED, data, folder / trial_folder(point), home=folder)


def ended(folder: Anywhere) -> list[Trial]:
    """The records of ended trials, in an order that does not depend on which trial ended first."""
    return [storage.read_json(path, MADE_BY) for path in storage.found(folder, f"trial-*/{RECORD}")]


def train_trial(point: Point, cell: Cell, folder: Anywhere, data: Data, num_workers: int) -> None:
    """Trains one trial; runs in a process that Tune started."""
    job = trial_job(cell, point, folder, data)
    record = job.state / RECORD
    if record.exists():
        for epoch in storage.read_json(record, MADE_BY)["history"]:
            _report(job, epoch)
        return
    failure = None
    try:
        if num_workers == 1:
            workers.alone(job, lambda epoch: _report(job, epoch))
        else:
            _train_together(job, num_workers)
    except (Diverged, OutOfMemory) as error:
        failure = f"failed: {error}"
    _end(job, point, failure)


def _train_together(job: Job, num_workers: int) -> None:
    from ray.tune.integration.ray_train import TuneReportCallback

    storage.remove(job.state / workers.STOPPED)
    workers.fit(job, num_workers, callbacks=lambda: [TuneReportCallback()])
    workers.raise_why_stopped(job.state)


def _report(job: Job, epoch: Epoch) -> None:
    if epoch["validation_nll"] is None:
        raise StudyError(
            f"{job.data.path}: the search needs validation images; set datasets.*.validation and prepare again"
        )
    tune.report(epoch)


def _end(job: Job, point: Point, failure: str | None) -> None:
    checkpoints = Checkpoints(job.state, job.home)
    found = checkpoints.load()
    history: list[Epoch] = found["position"]["history"] if found else []
    to_the_end = found is not None and found["position"]["finished"]
    scores = [epoch["validation_nll"] for epoch in history if epoch["validation_nll"] is not None]
    usable = scores and failure is None and math.isfinite(min(scores))
    record = {
        "hyperparameters": point,
        "objective": min(scores) if usable else None,
        "epochs": len(history),
        "status": failure or ("finished" if to_the_end else "stopped"),
        "seconds": sum(epoch["seconds"] for epoch in history),
        "history": history,
    }
    storage.patiently(lambda: storage.write_json(job.state / RECORD, record), job.home)
    for path in checkpoints.paths():
        path.unlink()


def safe_epochs(cell: Cell) -> int:
    """The epochs that every trial of the cell's search trains; all of them if the search is small."""
    trial, limits = short(cell), cell.study.classification
    found = jobs.summary(cell.data)
    available = found["rows"]["train"] - found["validation"]
    images = min(limits.train_examples or available, available)
    if limits.steps_per_epoch:
        images = min(limits.steps_per_epoch * large_batches.scaled(trial).batch_size, images)
    epochs = trial.experiment.epochs
    return epochs if images * epochs * cell.num_trials < CUT_FROM else math.ceil(epochs * SAFE)


class OrderlyASHA(ASHAScheduler):
    """ASHA that asks a trial to stop instead of killing it.

    Tune ends a trial by killing it. A killed trial would leave the placement group of its workers behind, and with it
    their CPUs. This scheduler writes a file instead, and the trial ends after its current step.
    """

    def __init__(self, cell: Cell, folder: Anywhere) -> None:
        super().__init__(
            "epoch",
            max_t=short(cell).experiment.epochs,
            grace_period=safe_epochs(cell),
            reduction_factor=KEEPS_ONE_IN,
            stop_last_trials=False,
        )
        self.folder = folder

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        action: str = super().on_trial_result(tune_controller, trial, result)
        if action != TrialScheduler.STOP:
            return action
        place = self.folder / trial_folder(dict(trial.config))
        if not (place / RECORD).exists():
            storage.write_json(place / workers.STOP, "ASHA")
        return TrialScheduler.CONTINUE


def _search(cell: Cell, folder: Anywhere, tracked: tracking.Run) -> None:
    known = ended(folder)
    for record in known:
        _show(cell, record, tracked)  # a killed driver may not have tracked it
    _, left = searching.proposer(cell, known)
    if left == 0:
        return
    finished = [trial["hyperparameters"] for trial in known]
    with cluster.connected(), progress(f"tune {cell.name}", len(known) + left, "trials", len(known)) as bar:
        cluster.check_shared(folder)
        num_workers, at_a_time = workers.affordable(cell)
        # The workers of a trial request their own resources; the trial only waits, but must request something.
        needs = {"memory": 1.0} if num_workers > 1 else cell.resources.per_worker
        trial = tune.with_parameters(
            train_trial, cell=cell, folder=folder, data=jobs.data_of(cell), num_workers=num_workers
        )
        storage.remove(folder / "ray")
        records, shortage = list(known), workers.Shortage(cell)

        def keep(point: Point, result: dict[str, Any]) -> None:
            place = folder / trial_folder(point) / RECORD
            record: Trial = storage.patiently(lambda: storage.read_json(place, MADE_BY), folder)
            _show(cell, record, tracked)
            if point not in finished:
                records.append(record)
                bar.advance(best=searching.lowest(records))

        searching.go_through(
            cell,
            tune.with_resources(trial, needs),
            searching.proposer(cell, known, again=True),
            keep,
            meanwhile=lambda: shortage.look(1, num_workers),  # the other trials can wait for one
            storage=str(folder / "ray"),
            metric="validation_nll",
            scheduler=OrderlyASHA(cell, folder),
            max_concurrent_trials=at_a_time,
            reuse_actors=num_workers == 1,
        )


def _show(cell: Cell, record: Trial, tracked: tracking.Run) -> None:
    searching.track(cell, record, [(one["epoch"], workers.figures(one)) for one in record["history"]], tracked)
