"""The part of a search that both kinds of cell share: propose points, run them with Ray Tune, choose the best.

`study.searcher` says which points of the grid to try: `grid` takes them all, `random` draws `study.trials` of them, and
`optuna` proposes as many, each based on the results so far. No point is tried twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState, create_trial
from ray import tune
from ray.tune import TuneError
from ray.tune.search import Searcher

from pipeline import files, tracking
from pipeline.errors import Diverged, StudyError, words_of
from pipeline.params import Cell

MADE_BY = "python -m pipeline.tune"
SEED = 0
RESTARTS = 3  # allowed to a trial whose process dies

Point = dict[str, Any]
Trial = dict[str, Any]  # a record of trials.json


def name_of(point: Point) -> str:
    return hashlib.sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()[:10]


def short(cell: Cell) -> Cell:
    """The cell as its trials train it: with the whole schedule in fewer epochs, if the study asks for that."""
    return replace(cell, experiment=cell.experiment.shortened(cell.limits.search_epochs))


def parameters(cell: Cell) -> dict[str, Any]:
    """The parameters of a search's run: how its trials train, and which points it can choose from."""
    return {**short(cell).parameters("tune"), "grid": cell.grid, "searcher": cell.study.searcher}


def conclude(cell: Cell, trials: Sequence[Trial], tracked: tracking.Run, metric: str) -> None:
    """Writes the trials and the best of them to files."""
    best = choose(trials, cell.grid_points())
    chosen = {
        "source": "search",
        "hyperparameters": cell.with_hyperparameters(best["hyperparameters"]).hyperparameters,
        "objective": best["objective"],
        "trials": len(trials),
    }
    _write(cell, chosen, trials)
    tracked.metrics({metric: best["objective"]}, step=0)
    tracked.artifact(cell.tune / "best.yaml")
    tracked.artifact(cell.tune / "trials.json")


def track(cell: Cell, trial: Trial, figures: Iterable[tuple[int, Mapping[str, float]]], parent: tracking.Run) -> None:
    """Records a finished trial, once, as a child of the search's run; a diverged trial becomes a failed run.

    Args:
        figures: pairs of an epoch and its numbers.
    """
    point, status = trial["hyperparameters"], trial["status"]
    name = " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in point.items()
    )
    state = parent.state / "children" / name_of(point)
    shown = state / "shown.json"  # names the parent run under which the trial is already recorded
    if shown.exists() and files.read_json(shown, MADE_BY) == parent.instance:
        return
    with suppress(Diverged), tracking.run(cell, "tune", child=name, parent=parent, state=state) as child:
        child.params(point)
        child.tag({"status": status})
        for epoch, numbers in figures:
            child.metrics(numbers, step=epoch)
        if status.startswith("failed"):
            raise Diverged(status)
    files.write_json(shown, parent.instance)


def choose(trials: Sequence[Trial], grid: Sequence[Point]) -> Trial:
    """The trial with the lowest objective; on a tie, the point that comes first in the grid."""
    sound = [trial for trial in trials if trial["objective"] is not None]
    if not sound:
        why = next((trial["status"] for trial in trials if "memory" in trial["status"]), None)
        raise StudyError(
            f"search: every trial failed; one of them {why}"
            if why
            else "search: the loss stopped being a number in every trial; lower learning_rate or clip in params.yaml"
        )
    return min(sound, key=lambda trial: (trial["objective"], grid.index(trial["hyperparameters"])))


def lowest(trials: Sequence[Trial]) -> float:
    """The best objective so far, for the progress display."""
    return min((trial["objective"] for trial in trials if trial["objective"] is not None), default=math.nan)


def _write(cell: Cell, best: dict[str, Any], trials: Sequence[Trial]) -> None:
    files.write_json(cell.tune / "trials.json", list(trials))
    files.write_yaml(cell.tune / "best.yaml", best)


def proposer(cell: Cell, known: Sequence[Trial], again: bool = False) -> tuple[Searcher, int]:
    """A searcher that proposes points to Tune, and the number of points it has to propose.

    Args:
        known: trials that have ended.
        again: whether to propose the points of these trials again, before the others.
    """
    grid = cell.grid_points()
    count = cell.num_trials
    ended = [trial["hyperparameters"] for trial in known]
    if cell.study.searcher == "optuna":
        return Optuna(cell, known, again=ended if again else ()), count if again else count - len(known)
    settled = random.Random(SEED).sample(grid, count) if cell.study.searcher == "random" else grid
    finished = [] if again else ended
    left = [point for point in settled if point not in finished]
    return Settled(left), len(left)


class Settled(Searcher):
    """Proposes given points in order. Tune's own equivalent cannot bound the number of concurrent trials."""

    def __init__(self, points: Sequence[Point]) -> None:
        super().__init__()
        self._left = list(points)

    def suggest(self, trial_id: str) -> Point:
        return self._left.pop(0)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Does nothing: the order of points is fixed."""

    def save(self, checkpoint_path: str) -> None:
        """Saves nothing: a search resumes from its trials."""


class Optuna(Searcher):
    """Optuna's sampler over the points of a grid; it proposes each point once.

    Ray's own wrapper lets Optuna propose a point again, and a resumed search would have forgotten its earlier trials.

    Args:
        known: trials that have ended.
        again: points of ended trials to propose again before any new ones.
    """

    ATTEMPTS = 20  # to draw an untried point, before the first untried one is taken

    def __init__(self, cell: Cell, known: Sequence[Trial], again: Sequence[Point] = ()) -> None:
        super().__init__()
        self._again = list(again)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=SEED))
        self._axes: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in cell.grid.items()
        }
        self._asked: dict[str, optuna.Trial] = {}
        self._left = cell.grid_points()
        for trial in known:
            point, value = trial["hyperparameters"], trial["objective"]
            self._left.remove(point)
            value = math.inf if value is None else value
            self._study.add_trial(create_trial(params=point, distributions=self._axes, value=value))

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        assert metric is not None
        self._objective = metric
        return True

    def suggest(self, trial_id: str) -> Point:
        if self._again:
            return dict(self._again.pop(0))
        self._asked[trial_id] = asked = self._ask()
        self._left.remove(asked.params)
        return dict(asked.params)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if trial_id not in self._asked:
            return  # a known trial, proposed again
        value = None if error or result is None else result.get(self._objective)
        state = TrialState.FAIL if value is None else None
        self._study.tell(self._asked.pop(trial_id), value, state)

    def save(self, checkpoint_path: str) -> None:
        """Saves nothing: a search resumes from its trials."""

    def _ask(self) -> optuna.Trial:
        for _ in range(self.ATTEMPTS):
            asked = self._study.ask(self._axes)
            if asked.params in self._left:
                return asked
            self._study.tell(asked, state=TrialState.FAIL)
        self._study.enqueue_trial(self._left[0])
        return self._study.ask(self._axes)


def go_through(
    cell: Cell,
    trainable: Any,
    proposals: tuple[Searcher, int],
    when_ended: Callable[[Point, dict[str, Any]], None],
    *,
    meanwhile: Callable[[], None] = lambda: None,
    storage: str,
    metric: str,
    **config: Any,
) -> None:
    """Runs the trials with Tune.

    Args:
        proposals: the result of :func:`proposer`.
        when_ended: called for each trial that ends, with its point and its last report.
        meanwhile: called every few seconds.
        storage: folder for Tune's own files, which nothing reads.
        metric: the reported metric to minimise.
        config: further settings of `tune.TuneConfig`.
    """
    algorithm, count = proposals
    algorithm.set_search_properties(metric, "min", {})  # Tune does this only if it has its own search space
    tune_config = tune.TuneConfig(metric=metric, mode="min", search_alg=algorithm, num_samples=count, **config)
    try:
        errors = (
            tune.Tuner(
                trainable,
                tune_config=tune_config,
                run_config=tune.RunConfig(
                    name=f"tune-{cell.name}",
                    storage_path=storage,
                    verbose=0,
                    callbacks=[_Watcher(when_ended, meanwhile)],
                    failure_config=tune.FailureConfig(max_failures=RESTARTS),
                ),
            )
            .fit()
            .errors
        )
    except OSError as error:
        raise StudyError(
            f"{storage}: cannot be written ({error.strerror or error}); free some space or make the folder writable, "
            "then run the same command again"
        ) from error
    except TuneError as error:
        raise StudyError(f"{cell.name}: the search broke off: {words_of(error)}") from error
    if errors:
        raise StudyError(
            f"{cell.name}: a trial failed {RESTARTS + 1} times, the last time with\n{words_of(errors[0])}\n"
            "Run the same command to continue"
        )


class _Watcher(tune.Callback):
    EVERY = 2.0  # seconds

    def __init__(self, when_ended: Callable[[Point, dict[str, Any]], None], meanwhile: Callable[[], None]) -> None:
        self.when_ended, self.meanwhile = when_ended, meanwhile
        self._due = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks to disk, where nothing reads them; a tracked run cannot be pickled

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self.EVERY
            self.meanwhile()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.when_ended(dict(trial.config), trial.last_result)
