"""Trains a cell, one Ray Train run per seed, and writes each seed's best weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline import cluster, files, state, tracking
from pipeline.console import Progress, progress
from pipeline.data import augmentation
from pipeline.errors import StudyError, words_of
from pipeline.images import job as jobs
from pipeline.images import memory, objectives, workers
from pipeline.images.checkpoints import Checkpoints
from pipeline.images.job import Job
from pipeline.images.loop import Epoch
from pipeline.params import Cell
from pipeline.storage import Anywhere

POLL = 1.0  # least number of seconds between two looks at the seeds


def run(cell: Cell) -> None:
    cell = cell.tuned()
    data = jobs.data_of(cell)
    folder = progress_of(cell)
    seeds = [Job(cell, seed, data, folder / f"seed-{seed}", home=folder) for seed in range(number_of_seeds(cell))]
    depends_on = [cell.fingerprint("train"), data.digest]
    with tracking.run(cell, "train", state=cell.state("train").absolute(), depends_on=depends_on) as parent:
        parent.params({**cell.parameters("train"), "seeds": len(seeds)})
        parent.dataset(jobs.summary(cell.data))
        unfinished = [job for job in seeds if _finished(job) is None]
        if unfinished:
            with cluster.connected():
                cluster.check_shared(folder)
                _train(cell, unfinished, parent)
        _write(cell, seeds, parent)
        parent.artifact(cell.model / "training.json")


def progress_of(cell: Cell) -> Anywhere:
    """The folder of the seeds' checkpoints."""
    made_for = {**cell.made_for("train"), "data": jobs.digest(cell.data)}
    return state.progress(jobs.state_folder(cell, "train"), cell, "train", made_for)


def number_of_seeds(cell: Cell) -> int:
    assert cell.experiment.seeds is not None  # reading params.yaml requires it
    return cell.experiment.seeds


def _train(cell: Cell, unfinished: list[Job], parent: tracking.Run) -> None:
    """Trains as many seeds at a time as the cluster has room for; a separate task drives each."""
    import ray

    per_seed, at_a_time = workers.affordable(cell)
    waiting, running = list(unfinished), dict[Any, tuple[Job, ExitStack, tracking.Run]]()
    shortage = workers.Shortage(cell)
    told, pause = {job.seed: 0 for job in unfinished}, max(POLL, workers.pause(unfinished[0].state))
    total = len(unfinished) * cell.experiment.epochs
    with ExitStack() as runs, progress(f"train {cell.name}", total, "epochs", _epochs(unfinished)) as bar:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                job, end = waiting.pop(0), runs.enter_context(ExitStack())
                run = end.enter_context(_tracked(job, parent))
                running[workers.start(job, per_seed)] = job, end, run
            ended, _ = ray.wait(list(running), timeout=pause)
            shortage.look(len(running), per_seed)
            for job, _, run in running.values():
                history = workers.history(job)
                _track(history[told[job.seed] :], run)
                told[job.seed] = max(told[job.seed], len(history))
            _show(bar, unfinished)
            for task in ended:
                job, end, _ = running.pop(task)
                with _interrupting([other for _, other, _ in running.values()]), end:
                    _check(job, task)


@contextmanager
def _interrupting(others: list[ExitStack]) -> Iterator[None]:
    """When one seed fails, ends the runs of the other seeds as interrupted, because nothing is wrong with them."""
    try:
        yield
    except StudyError:
        for end in others:
            with suppress(SystemExit, StudyError), end:  # StudyError: the disk may be full
                raise SystemExit from None
        raise


def _check(job: Job, task: Any) -> None:
    import ray

    try:
        ray.get(task)
    except ray.exceptions.RayError as error:
        workers.raise_why_stopped(job.state)
        cause = getattr(error, "cause", error)
        why = memory.explained(cause, job.cell, f"seed {job.seed}")
        raise why or StudyError(
            f"{job.cell.name}, seed {job.seed}: its workers failed {workers.RESTARTS + 1} times, the last time with\n"
            f"{words_of(cause)}\nThe same command resumes from the last checkpoint in {job.state}"
        ) from error
    workers.raise_why_stopped(job.state)


@contextmanager
def _tracked(job: Job, parent: tracking.Run) -> Iterator[tracking.Run]:
    kept = _kept_here(job, parent)
    with tracking.run(job.cell, "train", child=f"seed {job.seed}", parent=parent, state=kept) as run:
        run.params({**job.cell.hyperparameters, "seed": job.seed})
        yield run


def _track(history: list[Epoch], run: tracking.Run) -> None:
    """Logs the epochs to the run; epochs that it already has stay unchanged."""
    for epoch in history:
        run.metrics(workers.figures(epoch), step=epoch["epoch"])


def _kept_here(job: Job, parent: tracking.Run) -> Path:
    """The folder of a seed's tracking state. A training with other settings has another job folder."""
    return parent.state / "children" / f"seed-{job.seed}"


def _finished(job: Job) -> dict[str, Any] | None:
    """The position of a finished training; None for an unfinished one."""
    found = Checkpoints(job.state, job.home).load()
    return found["position"] if found is not None and found["position"]["finished"] else None


def _epochs(seeds: list[Job]) -> int:
    return sum(len(workers.history(job)) for job in seeds)


def _show(bar: Progress, seeds: list[Job]) -> None:
    new = _epochs(seeds) - bar.done
    if new > 0:
        bar.advance(new)


def _write(cell: Cell, seeds: list[Job], parent: tracking.Run) -> None:
    histories, best = [], {}
    for job in seeds:
        position = _finished(job)
        if position is None:
            raise StudyError(f"{job.state}: training ended without its last checkpoint; run the same command again")
        folder = cell.model / f"seed-{job.seed}"
        files.write_tensors(folder / "model.pt", position["best_weights"])
        files.write_json(folder / "history.json", position["history"])
        histories.append(position["history"])
        best[str(job.seed)] = position["best_epoch"]
        _log_model(job, position, parent)
    net = jobs.network(seeds[0])
    files.write_json(
        cell.model / "training.json",
        {
            "seeds": len(seeds),
            "epochs": max(len(history) for history in histories),
            "planned_epochs": cell.experiment.planned_epochs,
            "steps": jobs.steps(seeds[0]),
            "hyperparameters": cell.hyperparameters,
            "seconds": sum(epoch["seconds"] for history in histories for epoch in history),
            "num_parameters": objectives.num_parameters(net),
            "complete": cell.complete,
            "best_epoch": best,
        },
    )


def _log_model(job: Job, position: dict[str, Any], parent: tracking.Run) -> None:
    done = _kept_here(job, parent) / "model-logged.json"  # may stem from a training with other settings
    if done.exists() and files.read_json(done, f"python -m pipeline.train {job.cell.name}") == _mark(job, parent):
        return
    net = jobs.network(job).eval()
    net.load_state_dict(position["best_weights"])
    score, epoch = position["best_score"], position["best_epoch"]
    with _tracked(job, parent) as child:
        _track(position["history"], child)
        inputs = augmentation.in_pixels(str(job.cell.experiment.normalisation))
        classes = jobs.summary(job.cell.data)["classes"]
        tracking.model(
            child, net, job.cell, jobs.example(job), inputs=inputs, classes=classes, objective=score, step=epoch
        )
    files.write_json(done, _mark(job, parent))


def _mark(job: Job, parent: tracking.Run) -> dict[str, Any]:
    """Identifies a logged model. It names the run's instance, so that a later run of the stage, for instance with more
    seeds, logs all of its models.
    """
    made_of = [job.cell.fingerprint("train"), job.data.digest, job.seed]
    return {"made_of": made_of, "instance": parent.instance}
