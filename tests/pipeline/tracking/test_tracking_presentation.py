"""What people see first in MLflow: descriptions, the view of scores, links between scores and models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tracking_cases import Cell, client, runs

import mnvi
from pipeline import tracking
from pipeline.tracking import descriptions, presentation, store
from pipeline.tracking.registered import name_of
from tools import screenshots

pytestmark = pytest.mark.slow  # a store of MLflow each


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All tests share a store, which takes long to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("study"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="module")
def evaluated(folder: None) -> dict[str, Any]:
    """A cell that was trained, with a model, and evaluated; its runs by name."""
    cell: Any = Cell()
    with (
        tracking.run(cell, "train", state=Path("work/train")) as run,
        tracking.run(cell, "train", child="seed 0", parent=run, state=Path("work/train/seed-0")) as seed,
    ):
        net = mnvi.convert(mnvi.models.mlp(3, hidden=5), mnvi.MultiplicativeNoise(1.0))
        tracking.model(seed, net, cell, torch.zeros(2, 3))
    with tracking.run(cell, "evaluate", state=Path("work/evaluate")) as run:
        run.metrics({"rmse": 0.5}, step=0)
        run.scores_of(Path("work/train"), name_of(cell), {"rmse": 0.5})
    return {run.info.run_name: run for run in runs()}


def test_scores_models_and_training_name_each_other(evaluated: dict[str, Any]) -> None:
    trained, seed, scored = (evaluated[name] for name in ("train mnvi", "train mnvi seed 0", "evaluate mnvi"))
    assert scored.data.tags[presentation.TRAINED_BY] == trained.info.run_id
    assert f"/runs/{trained.info.run_id})" in scored.data.tags[presentation.NOTE]
    for run in (trained, seed):
        assert run.data.tags[presentation.SCORED_BY] == scored.info.run_id
        assert run.data.tags[presentation.NOTE].startswith("Scores on test data: rmse 0.5. ")
    (version,) = client().search_model_versions("name='toy-mnvi'")
    assert f"/runs/{scored.info.run_id})" in version.description


def test_an_experiment_has_a_view_with_scores_as_columns(evaluated: dict[str, Any]) -> None:
    experiment = client().get_experiment_by_name("toy")
    shown = json.loads(experiment.tags["mlflow.sharedViewState.scores"])
    assert "metrics.`rmse`" in shown["selectedColumns"]
    assert presentation.view(experiment.experiment_id) in experiment.tags[presentation.NOTE]


def test_the_source_of_a_run_is_its_stage_at_a_commit(
    evaluated: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MNVI_COMMIT", "a" * 40)
    with tracking.run("toy", "report", state=Path("work/report")):
        pass
    tags = runs()[-1].data.tags
    assert (tags["mlflow.source.name"], tags["mlflow.source.git.commit"]) == ("pipeline.report", "a" * 40)


def test_a_description_that_somebody_wrote_stays(evaluated: dict[str, Any]) -> None:
    experiment = client().get_experiment_by_name("toy")
    client().set_experiment_tag(experiment.experiment_id, presentation.NOTE, "mine")
    with tracking.run("toy", "report", state=Path("work/report")):
        pass
    assert client().get_experiment_by_name("toy").tags[presentation.NOTE] == "mine"
    client().set_experiment_tag(experiment.experiment_id, presentation.NOTE, experiment.tags[presentation.NOTE])


def scored_again(cell: Any, rmse: float) -> None:
    with tracking.run(cell, "evaluate", state=Path("work/evaluate")) as run:
        run.scores_of(Path("work/train"), name_of(cell), {"rmse": rmse})


def test_descriptions_of_runs_and_models_are_renewed_unless_somebody_changed_them(evaluated: dict[str, Any]) -> None:
    trained, seed = (evaluated[name].info.run_id for name in ("train mnvi", "train mnvi seed 0"))
    (version,) = client().search_model_versions("name='toy-mnvi'")
    client().set_tag(trained, presentation.NOTE, "my run")
    client().update_model_version("toy-mnvi", version.version, "my model")
    scored_again(Cell(), 0.25)
    assert client().get_run(trained).data.tags[presentation.NOTE] == "my run"
    assert client().get_run(seed).data.tags[presentation.NOTE].startswith("Scores on test data: rmse 0.25. ")
    assert client().get_model_version("toy-mnvi", version.version).description == "my model"


def test_a_card_is_renewed_unless_somebody_changed_the_description(evaluated: dict[str, Any]) -> None:
    for given, expected in (("card", "card"), ("newer card", "newer card")):
        descriptions.of_model(client(), "toy-mnvi", given)
        assert client().get_registered_model("toy-mnvi").description == expected
    client().update_registered_model("toy-mnvi", "mine")
    descriptions.of_model(client(), "toy-mnvi", "newest card")
    assert client().get_registered_model("toy-mnvi").description == "mine"


def test_scores_without_a_training_run_are_logged_all_the_same(evaluated: dict[str, Any]) -> None:
    client().delete_run(evaluated["train mnvi"].info.run_id)
    cell: Any = Cell()
    with tracking.run(cell, "evaluate", state=Path("work/again")) as run:
        run.metrics({"rmse": 0.4}, step=0)
        run.scores_of(Path("work/train"), name_of(cell), {"rmse": 0.4})
        run.scores_of(Path("work/nowhere"), name_of(cell), {"rmse": 0.4})
    client().restore_run(evaluated["train mnvi"].info.run_id)
    assert runs()[-1].data.metrics == {"rmse": 0.4} and presentation.TRAINED_BY not in runs()[-1].data.tags


def test_pages_for_the_screenshots_are_those_of_scores_and_searches(evaluated: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="has no experiment 'nowhere'"):
        screenshots.pages_of(store.address(), "nowhere")
    assert evaluated["evaluate mnvi"].info.run_id in screenshots.pages_of(store.address(), "toy")["methods"]
    cell: Any = Cell()
    with (
        tracking.run(cell, "tune", state=Path("work/tune")) as run,
        tracking.run(cell, "tune", child="x=1", parent=run, state=Path("work/tune/trial")) as trial,
    ):
        pass
    pages = screenshots.pages_of(store.address(), "toy")
    assert str(trial.id) in pages["searches"] and str(run.id) not in pages["searches"]
    assert evaluated["evaluate mnvi"].info.experiment_id in pages["scores"]
