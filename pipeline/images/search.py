"""Chooses a cell's hyperparameters by validation NLL: Ray Tune over its grid, ASHA ending what falls behind.

Every trial keeps its checkpoints and, when it ends, its record in a folder of its own. A search that was killed gives
all its trials to a new Tune: those that had ended report their epochs once more, so that ASHA knows what it knew, and
the others go on from their checkpoints.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import random
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

from pipeline import cluster, files, storage, tracking
from pipeline.console import Progress, progress
from pipeline.errors import StudyError
from pipeline.images import job as jobs
from pipeline.images import workers
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.job import Data, Job
from pipeline.images.loop import Epoch
from pipeline.params import Cell
from pipeline.storage import Anywhere

MADE_BY = "python -m pipeline.tune"
RECORD = "trial.json"
SEED = 0
KEEPS_ONE_IN = 3  # of the trials at a rung
RUNGS_FROM = 10  # the first rung is at a tenth of the schedule

Point = dict[str, Any]
Trial = dict[str, Any]  # a record of trials.json, with its history


def run(cell: Cell) -> None:
    if not cell.searched:
        _write(cell, {"source": "params", "hyperparameters": cell.hyperparameters, "objective": None, "trials": 0}, [])
        return
    state = _state(cell)
    with tracking.run(cell, "tune", state=cell.state("tune").absolute()) as tracked:
        tracked.params({"searcher": cell.study.searcher, "epochs": short(cell).experiment.epochs})
        tracked.dataset(jobs.summary(cell))
        _search(cell, state, tracked)
        trials = ended(state)
        best = choose(trials)
        chosen = {
            "source": "search",
            "hyperparameters": cell.with_hyperparameters(best["hyperparameters"]).hyperparameters,
            "objective": best["objective"],
            "trials": len(trials),
        }
        _write(cell, chosen, trials)
        tracked.metrics({"validation_nll": best["objective"]}, step=0)
        tracked.artifact(cell.tune / "best.yaml")
        tracked.artifact(cell.tune / "trials.json")


def short(cell: Cell) -> Cell:
    """The cell as its trials train it: the whole schedule in fewer epochs, if the study says so."""
    return replace(cell, experiment=cell.experiment.shortened(cell.study.classification.search_epochs))


def trial_folder(point: Point) -> str:
    return f"trial-{hashlib.sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()[:10]}"


def trial_job(cell: Cell, point: Point, state: Anywhere, data: Data) -> Job:
    return jobs.make(short(cell.with_hyperparameters(point)), "tune", SEED, state / trial_folder(point), data)


def point_of(config: dict[str, Any]) -> Point:
    """What Tune chose; a point of the grid comes whole."""
    return dict(config.get("point", config))


def ended(state: Anywhere) -> list[Trial]:
    """In an order that does not depend on which trial ended first."""
    return [storage.read_json(path, MADE_BY) for path in storage.found(state, f"trial-*/{RECORD}")]


def choose(trials: list[Trial]) -> Trial:
    sound = [trial for trial in trials if trial["objective"] is not None]
    if not sound:
        raise StudyError(
            "search: no trial has a validation NLL; either the data have no validation images (datasets.*.validation) "
            "or the loss of every trial diverged: lower learning_rate or clip in params.yaml"
        )
    return min(sound, key=lambda trial: float(trial["objective"]))


def train_trial(config: dict[str, Any], cell: Cell, state: Anywhere, data: Data, num_workers: int) -> None:
    """A trial, in a process that Tune started."""
    point = point_of(config)
    job = trial_job(cell, point, state, data)
    record = job.state / RECORD
    if record.exists():
        for epoch in storage.read_json(record, MADE_BY)["history"]:
            _report(job, epoch)
        return
    status = "finished"
    try:
        if num_workers == 1:
            workers.alone(job, lambda epoch: _report(job, epoch))
        else:
            _train_together(job, num_workers)
    except StudyError as error:
        status = f"failed: {error}"
    if (job.state / workers.STOP).exists():
        status = "stopped"
    _end(job, point, status)


def _train_together(job: Job, num_workers: int) -> None:
    from ray.tune.integration.ray_train import TuneReportCallback

    workers.fit(job, num_workers, callbacks=lambda: [TuneReportCallback()])
    why = workers.why_stopped(job.state)
    if why is not None:
        raise StudyError(why)


def _report(job: Job, epoch: Epoch) -> None:
    if epoch["validation_nll"] is None:
        raise StudyError(
            f"{job.data.path}: no validation images to search by; set datasets.*.validation and prepare again"
        )
    tune.report(epoch)


def _end(job: Job, point: Point, status: str) -> None:
    checkpoints = Checkpoints(job.state, job.fingerprint)
    found = checkpoints.load()
    history: list[Epoch] = found["position"]["history"] if found else []
    scores = [epoch["validation_nll"] for epoch in history if epoch["validation_nll"] is not None]
    usable = scores and not status.startswith("failed") and math.isfinite(min(scores))
    storage.write_json(
        job.state / RECORD,
        {
            "hyperparameters": point,
            "objective": min(scores) if usable else None,
            "epochs": len(history),
            "status": status,
            "seconds": sum(epoch["seconds"] for epoch in history),
            "history": history,
        },
    )
    for path in checkpoints.paths():
        path.unlink()


class OrderlyASHA(ASHAScheduler):
    """ASHA whose decision is carried out by the trial itself.

    Tune ends a trial by killing it. A trial that has started workers would leave their placement group behind, and with
    it their CPUs; so it is sent word instead, and ends after the step it is at.
    """

    def __init__(self, cell: Cell, state: Anywhere) -> None:
        epochs = short(cell).experiment.epochs
        first = max(1, epochs // RUNGS_FROM)
        super().__init__(
            "epoch", max_t=epochs, grace_period=first, reduction_factor=KEEPS_ONE_IN, stop_last_trials=False
        )
        self.state = state

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        action: str = super().on_trial_result(tune_controller, trial, result)
        if action != TrialScheduler.STOP:
            return action
        folder = self.state / trial_folder(point_of(trial.config))
        if not (folder / RECORD).exists():
            storage.write_json(folder / workers.STOP, "ASHA")
        return TrialScheduler.CONTINUE


class _Recorder(tune.Callback):
    """Tracks trials that have ended."""

    def __init__(self, cell: Cell, state: Anywhere, tracked: tracking.Run, bar: Progress) -> None:
        self.cell, self.state, self.tracked, self.bar = cell, state, tracked, bar

    def __getstate__(self) -> dict[str, Any]:
        """For Tune's own notes, from which nothing is restored here."""
        return {}

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        folder = trial_folder(point_of(trial.config))
        record: Trial = storage.read_json(self.state / folder / RECORD, MADE_BY)
        kept_here = self.cell.state("tune").absolute() / folder
        name = " ".join(f"{key}={value:g}" for key, value in record["hyperparameters"].items())
        with tracking.run(self.cell, "tune", child=name, parent=self.tracked, state=kept_here) as child:
            child.params(record["hyperparameters"])
            child.tag({"trial": record["status"]})
            for epoch in record["history"]:
                child.metrics(workers.figures(epoch), step=epoch["epoch"])
        self.bar.advance(objective=record["objective"])


def _search(cell: Cell, state: Anywhere, tracked: tracking.Run) -> None:
    known = ended(state)
    space, algorithm, count = _searcher(cell, known)
    done = len(known) if algorithm else 0
    with cluster.connected(), progress(f"tune {cell.name}", done + count, "trials", done) as bar:
        num_workers, at_a_time = workers.affordable(cell)
        # Workers of a trial take what they need themselves; the trial only waits, but has to ask for something.
        needs = {"memory": 1.0} if num_workers > 1 else workers.per_worker(cell)
        trial = tune.with_parameters(
            train_trial, cell=cell, state=state, data=jobs.data_of(cell), num_workers=num_workers
        )
        storage.remove(state / "ray")
        tuner = tune.Tuner(
            tune.with_resources(trial, needs),
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="validation_nll",
                mode="min",
                search_alg=algorithm,
                scheduler=OrderlyASHA(cell, state),
                num_samples=count if algorithm else 1,
                max_concurrent_trials=at_a_time,
                reuse_actors=num_workers == 1,
            ),
            run_config=tune.RunConfig(
                name=cell.name,
                storage_path=str(state / "ray"),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=workers.RESTARTS),
                callbacks=[_Recorder(cell, state, tracked, bar)],
            ),
        )
        errors = tuner.fit().errors
    if errors:
        raise StudyError(f"{cell.name}: a trial failed with\n{errors[0]}\nThe same command goes on from here")


def _searcher(cell: Cell, known: list[Trial]) -> tuple[dict[str, Any], Any, int]:
    """Tune's space, its algorithm (None: go through the points) and how many trials it is given."""
    points, study = cell.grid_points(), cell.study
    if study.searcher == "optuna":
        space = {name: tune.choice(values) for name, values in cell.grid.items()}
        return space, _optuna(known), max(0, study.trials - len(known))
    if study.searcher == "random":
        points = random.Random(SEED).sample(points, min(study.trials, len(points)))
    return {"point": tune.grid_search(points)}, None, len(points)


def _optuna(known: list[Trial]) -> Any:
    if importlib.util.find_spec("optuna") is None:
        raise StudyError("study.searcher: optuna is not installed; `pip install optuna`, or set it to grid or random")
    from ray.tune.search.optuna import OptunaSearch

    sound = [trial for trial in known if trial["objective"] is not None]
    return OptunaSearch(
        seed=SEED,
        points_to_evaluate=[trial["hyperparameters"] for trial in sound] or None,
        evaluated_rewards=[trial["objective"] for trial in sound] or None,
    )


def _state(cell: Cell) -> Anywhere:
    """The folder of the search, empty if it was of another one."""
    state = jobs.state_folder(cell, "tune")
    mark, depends_on = state / "made-for.json", [cell.fingerprint("tune"), jobs.digest(cell.data)]
    if mark.exists() and storage.read_json(mark, MADE_BY) != depends_on:
        storage.remove(state)
    storage.write_json(mark, depends_on)
    return state


def _write(cell: Cell, best: dict[str, Any], trials: list[Trial]) -> None:
    shown = [{key: value for key, value in trial.items() if key != "history"} for trial in trials]
    files.write_json(cell.tune / "trials.json", shown)
    files.write_yaml(cell.tune / "best.yaml", best)
