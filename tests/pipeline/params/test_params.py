"""Settings: what is read, what is refused and in which words, and what a change reaches."""

from __future__ import annotations

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from dvc.utils.hydra import apply_overrides

import mnvi
from pipeline import files, params
from pipeline.data import augmentation
from pipeline.errors import StudyError
from pipeline.params import consistency, reading, selecting, settings
from pipeline.registry import images, networks

ROOT = Path(__file__).parents[3]
RAW = yaml.safe_load((ROOT / "params.yaml").read_text())
STUDIES = sorted((ROOT / "studies").glob("*.yaml"))
THE_DEFAULT = (ROOT / "studies/default.yaml").read_text().splitlines()[0]  # a comment


def changed(path: str, value: Any) -> dict[str, Any]:
    """params.yaml with one key set to another value."""
    raw = copy.deepcopy(RAW)
    *parents, last = path.split("/")
    inner = raw
    for key in parents:
        inner[key] = dict(inner.get(key, {}))
        inner = inner[key]
    inner[last] = value
    return raw


def cell(name: str, raw: dict[str, Any] = RAW) -> params.Cell:
    return reading.read(raw).cell(name)


BOSTON = "experiments/boston"
LENET = "experiments/lenet-mnist"
MISTAKES = {
    f"{BOSTON}/epochs": (0, "experiments.boston.epochs: 0 is not a whole number of at least 1"),
    f"{BOSTON}/batch_size": (True, "experiments.boston.batch_size: True is not a whole number"),
    f"{BOSTON}/learning_rate": ("1e-4", "experiments.boston.learning_rate: '1e-4' is not a number above 0;"),
    f"{BOSTON}/weight_decay": (-0.1, "experiments.boston.weight_decay: -0.1 is not a number of at least 0;"),
    f"{BOSTON}/momentum": (1.0, "experiments.boston.momentum: 1.0 is not a number of at least 0 and below 1;"),
    f"{BOSTON}/milestones": ([150, 100], "is not in ascending order; write [100, 150]"),
    f"{BOSTON}/kappa": ({10: 1.0}, "is not a schedule that starts at epoch 0"),
    f"{BOSTON}/optimizer": (
        "sdg",
        "experiments.boston.optimizer: 'sdg' is not an optimiser for regression (sgd, adam)",
    ),
    f"{BOSTON}/network": ("lenet", "experiments.boston.network: 'lenet' is not a network for regression (mlp)"),
    f"{BOSTON}/lerning_rate": (1.0, "experiments.boston.lerning_rate: 'lerning_rate' is not a key"),
    f"{BOSTON}/data": ("bosten", "did you mean boston?"),
    f"{BOSTON}/kind": ("regresion", "experiments.boston.kind: 'regresion' is not a kind"),
    f"{BOSTON}/presets": ({"paper": {"epoch": 1}}, "experiments.boston.presets.paper.epoch: 'epoch' is not a key"),
    f"{LENET}/data": ("boston", "experiments.lenet-mnist.data: 'boston' is not data for classification"),
    f"{LENET}/momentum": (0.9, "experiments.lenet-mnist.momentum: 0.9 is for sgd, not amsgrad"),
    f"{LENET}/methods/mnvi/hyperparameters/momentum": (
        0.9,
        "mnvi.hyperparameters.momentum: 0.9 is for sgd, not amsgrad",
    ),
    f"{LENET}/methods/mnvi/grid/momentum": ([0.5, 0.9], "mnvi.grid.momentum: [0.5, 0.9] is for sgd, not amsgrad"),
    f"{LENET}/weights": ("efficientnet-lite0", "weights: 'efficientnet-lite0' is for efficientnet_lite0, not lenet"),
    f"{LENET}/stem": ("cifar", "is for resnet18, not lenet"),
    "experiments/allcnn-cifar10/normalisation": (["cifar10"], "normalisation: ['cifar10'] is not one of those known"),
    f"{LENET}/ood": (["fashion"], "experiments.lenet-mnist.ood[0]: 'fashion' is not in datasets"),
    f"{LENET}/patience": (0, "experiments.lenet-mnist.patience: 0 is not a whole number of at least 1"),
    f"{LENET}/methods/mvni": ({}, "experiments.lenet-mnist.methods.mvni: 'mvni' is not a method"),
    f"{LENET}/methods/dvi": ({}, "full covariances need the network mlp, not lenet; use ddvi"),
    f"{LENET}/methods/mc_dropout/hyperparameters/dropout": (1.0, "above 0 and below 1"),
    f"{LENET}/methods/mc_dropout/grid/dropout": ([0.0], "grid.dropout[0]: 0.0 is not a number above 0 and below 1;"),
    f"{LENET}/hyperparameters": ({}, "mc_dropout.hyperparameters.dropout: is missing, but"),
    "recipes/uci/hyperparameters": ({}, "boston.methods.mc_dropout.hyperparameters.dropout: is missing, but"),
    "recipes/cifar/epochs": (0, "recipes.cifar.epochs: 0 is not a whole number of at least 1"),
    "recipes/cifar/epoch": (1, "recipes.cifar.epoch: 'epoch' is not a key of this section"),
    "recipes/boston": ({}, "recipes.boston: experiments.boston has the same name; rename one of the two"),
    "experiments/yacht/hyperparameters/prior_varianc": (1.0, "yacht.hyperparameters.prior_varianc: 'prior_varianc' is"),
    "experiments/yacht/hyperparameters/prior_variance": ("1", "yacht.hyperparameters.prior_variance: '1' is not a n"),
    "experiments/yacht/kappa": ({0: 1.0, 7: -1}, "experiments.yacht.kappa.7: -1 is not a number of at least 0;"),
    "plugins": (["no_such_package.study"], "plugins[0]: 'no_such_package.study' cannot be imported (No module named"),
    f"{LENET}/methods/mnvi/hyperparameters": ({}, "methods.mnvi.hyperparameters.kappa_over_n: is missing, but mnvi"),
    f"{LENET}/methods/mfvi": ({}, "methods.mfvi.hyperparameters.kappa_over_n: is missing, but mfvi needs it; add e.g."),
    f"{LENET}/normalisation": ("cifar10", "'cifar10' is for 3 channels, but the images of datasets.mnist have 1; use"),
    "experiments/resnet18-imagenet/normalisation": ("mnist", "'mnist' is for 1 channels, but the images of datasets."),
    "experiments/allcnn-cifar10/network": ("lenet", "'lenet' is for images of 28 x 28 pixels, but those of datasets."),
    f"{LENET}/methods/deterministic/hyperparameters": ({"dropout": 0.1}, "'dropout' is not a key of this section"),
    f"{LENET}/methods/mnvi/grid/kappa_over_n": ([], "grid.kappa_over_n: is empty"),
    f"{LENET}/methods/mnvi/grid/prior_variance": ([1.0, 1.0], "grid.prior_variance[1]: 1.0 is in the list already"),
    "study/searcher": ("grud", "study.searcher: 'grud' is not one of those known (grid, random, optuna); did you mean"),
    "study/results": ("/tmp/results", "study.results: '/tmp/results' is not a folder inside the project"),
    "study/preset": ("papr", "did you mean paper?"),
    "study/data": (["boston"], "study.data: lacks 'yacht', which study.cells.yacht-mnvi needs"),
    "study/cells": ({}, "study.cells: {} has nothing to run"),
    "study/cells/boston-mnvi/data": ("yacht", "study.cells.boston-mnvi.data: 'yacht' is not the data of"),
    "study/cells/boston-mnvi/method": ("mnvj", "study.cells.boston-mnvi.method: 'mnvj' is not a method of"),
    "study/cells/boston-mnvi/experiment": ("bostn", "study.cells.boston-mnvi.experiment: 'bostn' is not in"),
    "study/cells/boston.mnvi": ({}, "is not a name of letters, digits, - and _"),
    "study/grids": (
        {"bostom-mnvi": {}},
        "study.grids.bostom-mnvi: 'bostom-mnvi' is not a cell of this study",
    ),
    "study/grids/boston-mnvi": (
        {"prior_varianc": [1.0]},
        "study.grids.boston-mnvi.prior_varianc: ",
    ),
    "study/grids/yacht-mnvi": (
        {"prior_variance": []},
        "study.grids.yacht-mnvi.prior_variance: is empty; list some values or leave the key out",
    ),
    "study/search": (["boston-ensemble"], "'boston-ensemble' has no experiments.boston.methods.ensemble.grid"),
    "study/limits/regression": ({"runs": 1}, "study.limits.regression.folds: is missing, but the stages or"),
    "resources/workers": (0, "resources.workers: 0 is not a whole number of at least 1"),
    "resources/precision": ("half", "resources.precision: 'half' is not one of those known"),
    "resources/compile": ("yes", "resources.compile: 'yes' is not true, false or auto"),
    "datasets/boston": ({"kind": "table", "folder": "x", "splits": "kfold"}, "datasets.boston.folds: is missing"),
    "datasets/mine": ({"kind": "table", "splits": "standard"}, "datasets.mine: needs folder, in the layout of"),
    "datasets/yacht/file": ("yacht.csv", "datasets.yacht: needs folder, in the layout of the standard splits, or file"),
    "datasets/naval-standard": (
        {"kind": "table", "file": "naval.csv", "target": 0, "splits": "standard"},
        "datasets.naval-standard.splits: 'standard' needs a folder with index files; with file write splits: kfold",
    ),
    "datasets/kin8": (
        {"kind": "table", "file": "kin8.csv", "splits": "kfold", "folds": 10},
        "datasets.kin8.target: is missing, but file needs it; name the column",
    ),
    "datasets/cifar10/validation": (-1, "datasets.cifar10.validation: -1 is not a whole number of at least 1"),
    "datasets/wine": (
        {"kind": "table", "file": "wine.csv", "target": -1, "splits": "kfold", "folds": 10},
        "datasets.wine.target: -1 is not the name of a column, or its number counted from 0; write one of the two",
    ),
    "datasets/mnits": ({"kind": "images"}, "datasets.mnits: 'mnits' is not a known image set"),
    "datasets/mnist/validation": (
        None,
        "datasets.mnist.validation: is missing, but study.search has 'lenet-mnist-mnvi', whose trials need images",
    ),
    "datasets/mnist/kind": ("image", "did you mean images?"),
    "datasets/yacht/sha256": ("abc", "is not 64 hexadecimal digits"),
    "experiment": ({}, "did you mean experiments?"),
}


@pytest.mark.parametrize("path", MISTAKES)
def test_a_mistake_is_named_with_its_key_and_the_way_out(path):
    value, message = MISTAKES[path]
    with pytest.raises(StudyError, match=re.escape(message)):
        reading.read(changed(path, value))


RESNET = "experiments/resnet18-imagenette"
IMPOSSIBLE = [
    (
        f"{LENET}/augmentation",
        "cifar-release",
        "experiments.lenet-mnist.augmentation: 'cifar-release' is for 3 channels, but the images of datasets.mnist "
        "have 1; use none or cifar-paper",
    ),
    (
        f"{LENET}/augmentation",
        "imagenet-release",
        "experiments.lenet-mnist.augmentation: 'imagenet-release' crops 224 x 224 pixels, but the images of "
        "datasets.mnist have 28 x 28; use none or cifar-paper",
    ),
    (
        "experiments/allcnn-cifar10/augmentation",
        "imagenet-paper",
        "experiments.allcnn-cifar10.augmentation: 'imagenet-paper' crops 224 x 224 pixels, but the images of "
        "datasets.cifar10 have 32 x 32; use none or cifar-paper or cifar-release",
    ),
    (
        "datasets/imagenette/size",
        128,
        "datasets.imagenette.size: 128 is less than the 224 x 224 pixels that "
        "experiments.resnet18-imagenette.augmentation, 'imagenet-release', crops; write at least 224",
    ),
    (
        f"{LENET}/data",
        "notmnist",
        "experiments.lenet-mnist.data: 'notmnist' has no training images; name a different one, or add "
        "datasets.notmnist.train if it is a folder",
    ),
    (
        "datasets/mnist/validation",
        60_000,
        "datasets.mnist.validation: 60000 is not fewer than the 60000 training images, so none would be left to train "
        "on; write e.g. 5000",
    ),
    (
        "datasets/notmnist/validation",
        1,
        "datasets.notmnist.validation: 1, but there are no training images to hold out; leave it out",
    ),
    (
        "datasets/mine",
        {"kind": "folder", "test": "photos", "size": 256, "validation": 9},
        "datasets.mine.validation: 9, but there are no training images to hold out; leave it out",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), IMPOSSIBLE)
def test_what_cannot_be_trained_is_refused_before_data_are_prepared(path, value, message):
    with pytest.raises(StudyError, match=re.escape(message) + "$"):
        reading.read(changed(path, value))


def test_images_from_elsewhere_may_have_any_shape():
    """Evaluation brings them to that of the experiment's own."""
    elsewhere = ["cifar10", "notmnist", "imagenette"]
    assert reading.read(changed(f"{RESNET}/ood", elsewhere)).experiments["resnet18-imagenette"].ood == tuple(elsewhere)


def test_of_the_known_training_images_one_may_be_left():
    assert reading.read(changed("datasets/mnist/validation", 59_999)).datasets["mnist"].validation == 59_999


FOLDERS = {
    name.partition("/")[0]
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if "/" in name
}


@pytest.mark.parametrize(
    "folder", [*sorted(FOLDERS - {"recorded", "results"}), "data", "work", "mlruns", "data/mine", "a/.b", ".x"]
)
def test_results_do_not_go_where_something_else_is(folder):
    message = (
        f"study.results: '{folder}' is not a folder of results alone; choose a different one, such as results/mine"
    )
    with pytest.raises(StudyError, match=re.escape(message)):
        reading.read(changed("study/results", folder))


@pytest.mark.parametrize("folder", ["mine", "results/mine", "recorded/uci", "recorded/data"])
def test_results_go_into_any_other_folder(folder):
    assert reading.read(changed("study/results", folder)).study.results == Path(folder)


def test_a_misspelt_hyperparameter_is_named_with_its_whole_path():
    raw = changed(f"{BOSTON}/methods/mnvi/hyperparameters", {"prior_varianc": 1.0})
    with pytest.raises(StudyError) as caught:
        reading.read(raw)
    assert str(caught.value).startswith("experiments.boston.methods.mnvi.hyperparameters.prior_varianc: ")
    assert str(caught.value).endswith("did you mean prior_variance?")


@pytest.mark.parametrize("key", [key for key in RAW["study"] if key != "grids"])
def test_every_key_of_the_study_is_required(key):
    raw = copy.deepcopy(RAW)
    del raw["study"][key]
    with pytest.raises(StudyError, match=rf"study\.{key}: is missing, but the stages or dvc\.yaml need it"):
        reading.read(raw)


def test_nesterov_without_momentum_is_refused():
    raw = changed(f"{BOSTON}/nesterov", True)
    raw["experiments"]["boston"]["momentum"] = 0.0
    with pytest.raises(StudyError, match=r"experiments\.boston\.nesterov: true needs momentum"):
        reading.read(raw)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"mnvi": None}, "experiments.boston.presets.paper.methods.mnvi: None is not a section"),
        ({"mnvi": {"grid": [1]}}, "experiments.boston.presets.paper.methods.mnvi.grid: [1] is not a section"),
        ({"mnvi": {"hyperparameters": 3}}, "presets.paper.methods.mnvi.hyperparameters: 3 is not a section"),
        ([], "experiments.boston.presets.paper.methods: [] is not a section"),
    ],
)
def test_a_malformed_preset_is_named(methods, message):
    with pytest.raises(StudyError, match=re.escape(message)):
        reading.read(changed(f"{BOSTON}/presets", {"paper": {"methods": methods}}))


@pytest.mark.parametrize("hyperparameters", [None, 3])
def test_a_malformed_method_that_a_preset_changes_is_named(hyperparameters):
    raw = changed("experiments/resnet18-cifar10/methods/mfvi/hyperparameters", hyperparameters)
    raw["study"]["preset"] = "paper"
    message = f"experiments.resnet18-cifar10.methods.mfvi.hyperparameters: {hyperparameters} is not a section"
    with pytest.raises(StudyError, match=re.escape(message)):
        reading.read(raw)


def test_a_mistake_in_the_preset_that_is_not_chosen_is_found_too():
    raw = changed(f"{BOSTON}/presets", {"paper": {"milestones": [3, 2]}})
    with pytest.raises(StudyError, match="ascending"):
        reading.read(raw)


@pytest.mark.parametrize("text", ["study: [", "- a list", ""])
def test_a_file_that_holds_no_settings_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(StudyError, match=re.escape(str(path))):
        params.load(path)


@pytest.mark.parametrize("content", [b"study: \xff", b"study: 2001-99-99"], ids=["no text", "no date"])
def test_a_file_that_cannot_be_read_is_refused_with_its_name(tmp_path, content):
    path = tmp_path / "params.yaml"
    path.write_bytes(content)
    with pytest.raises(StudyError, match=re.escape(str(path))):
        params.load(path)


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    with pytest.raises(StudyError, match=r"cannot be read \(.*Is a directory"):
        params.load(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StudyError, match="no such file; run this in the project's folder"):
        params.load(tmp_path / "params.yaml")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_is_in_order(path):
    study = yaml.safe_load(path.read_text())
    assert list(study) == ["study"]
    read = reading.read({**RAW, "study": selecting.expanded(study["study"], RAW)})
    assert read.study.name == path.stem
    assert consistency.notes(read.study, read.planned) == []


def test_params_yaml_selects_the_default_study():
    study = yaml.safe_load((ROOT / "studies/default.yaml").read_text())["study"]
    assert RAW["study"] == selecting.expanded(study, RAW)


SHORT = {
    "name": "short",
    "results": "mine",
    "experiments": ["wine", {"yacht": ["ensemble"]}],
    "methods": ["mnvi", "dvi"],
}


def test_a_study_names_experiments_and_methods():
    whole = selecting.expanded({**SHORT, "search": "all", "limits": {"regression": {"runs": 3}}}, RAW)
    assert list(whole) == list(RAW["study"])
    assert whole["cells"]["yacht-ensemble"] == {"experiment": "yacht", "data": "yacht", "method": "ensemble"}
    assert list(whole["cells"]) == ["wine-mnvi", "wine-dvi", "yacht-ensemble"]
    assert (whole["data"], whole["search"]) == (["wine", "yacht"], ["wine-mnvi", "wine-dvi"])  # an ensemble has no grid
    assert whole["limits"]["regression"] == {"runs": 3, "folds": None, "epochs": None, "search_epochs": None}
    assert reading.read({**RAW, "study": whole}).study.regression.runs == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiments": ["wien"]}, r"study\.experiments\[0\]: 'wien' is not in experiments .*; did you mean wine\?$"),
        ({"experiments": "wine"}, r"study\.experiments: 'wine' is not a list; write \[boston, yacht\]$"),
        ({"experiments": [{"wine": ["mnvi"], "yacht": ["mnvi"]}]}, r"names several experiments; write one per line$"),
        ({"methods": ["mvni"]}, r"study\.experiments\[0\]\.wine: 'mvni' is not a method of .*; did you mean mnvi\?$"),
        ({"method": ["mnvi"]}, r"study\.method: 'method' is not a key of this section .*; did you mean methods\?$"),
    ],
)
def test_a_mistake_in_a_study_is_named(changes, message):
    with pytest.raises(StudyError, match=message):
        selecting.expanded({**SHORT, **changes}, RAW)


def test_results_of_different_studies_do_not_overwrite_each_other():
    folders = [yaml.safe_load(path.read_text())["study"]["results"] for path in STUDIES]
    assert len(set(folders)) == len(folders)


def test_a_cell_to_be_searched_that_is_not_run_is_only_noted():
    read = reading.read(changed("study/search", ["boston-mfvi"]))
    assert consistency.notes(read.study, read.planned) == [
        "study.search: boston-mfvi is not in study.cells, so it is not searched"
    ]


@pytest.mark.parametrize(
    "experiment, epochs, steps, keys",
    [("boston", 120, "150", ("milestones", "kappa")), ("lenet-mnist", 8, "10", ("milestones",))],
)
def test_steps_of_a_schedule_that_are_never_reached_are_noted(experiment, epochs, steps, keys):
    """Also where limits, as those of the default study for images, shorten what is left of it."""
    read = reading.read(changed(f"experiments/{experiment}/epochs", epochs))
    kind = read.experiments[experiment].kind
    never = f"{steps} is never reached in {epochs} epochs; study.limits.{kind}.epochs shortens the whole schedule"
    found = consistency.notes(read.study, read.planned)
    assert found == [f"experiments.{experiment}.{key}: {never}" for key in keys]


def test_results_in_place_of_a_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes").write_text("")
    with pytest.raises(StudyError, match=r"study\.results: 'notes/mine' is not a folder, as there is a file"):
        reading.read(changed("study/results", "notes/mine"))


def test_a_search_of_a_cell_that_there_is_not_is_a_mistake():
    with pytest.raises(StudyError, match=r"study\.search\[1\]: 'bostom-mnvi' is not a cell .* mean boston-mnvi\?$"):
        reading.read(changed("study/search", ["yacht-mnvi", "bostom-mnvi"]))


def test_what_settings_say_about_images_is_true_of_them():
    shapes = {name: (known.channels, known.size, known.training) for name, known in images.IMAGES.items()}
    assert shapes == {
        "mnist": (1, 28, 60_000),
        "fashion_mnist": (1, 28, 60_000),
        "notmnist": (1, 28, 0),
        "cifar10": (3, 32, 50_000),
        "cifar100": (3, 32, 50_000),
    }
    assert {name: len(mean) for name, (mean, _) in images.normalisations().items()} == {
        "mnist": 1,
        "cifar10": 3,
        "cifar100": 3,
        "imagenet": 3,
        "efficientnet-lite": 3,
    }
    changes = augmentation.AUGMENTATIONS
    assert tuple(changes) == settings.AUGMENTATIONS
    assert {name: change.crop for name, change in changes.items() if change.crop} == settings.CROPS
    assert {name: 3 for name, change in changes.items() if change.hue} == settings.IN_COLOUR
    size = networks.NETWORKS["lenet"].size
    assert mnvi.models.lenet()(torch.zeros(1, 1, size, size)).shape == (1, 10)


def test_hyperparameters_of_the_recipe_reach_the_experiment():
    mnvi_cell = cell("lenet-mnist-mnvi")
    assert mnvi_cell.experiment.weight_decay == 0.0
    assert cell("lenet-mnist-mc_dropout").experiment.weight_decay == 1e-5
    found = mnvi_cell.with_hyperparameters({"batch_size": 8, "prior_variance": 0.5})
    assert found.experiment.batch_size == 8
    assert found.method_arguments == {"prior_variance": 0.5}
    assert found.hyperparameters["kappa_over_n"] == 2e-7


def test_a_run_shows_recipe_hyperparameters_and_machines():
    shown = cell("lenet-mnist-mnvi").with_hyperparameters({"batch_size": 8}).parameters("train")
    assert shown.items() >= {"network": "lenet", "optimizer": "amsgrad", "clip": 0.1}.items()
    assert shown.items() >= {"batch_size": 8, "kappa_over_n": 2e-7, "preset": "release", "weight_decay": 0.0}.items()
    assert shown["resources"]["precision"] == "float32"
    assert "hidden" not in shown and "methods" not in shown


@pytest.mark.parametrize(
    "stage, further",
    [("tune", {"limits.search_epochs": 2}), ("train", {}), ("evaluate", {"limits.test_examples": 1000})],
)
def test_a_run_on_a_part_of_the_data_shows_that(stage, further):
    limits = {"train_examples": 5000, "steps_per_epoch": 7, "search_epochs": 2, "test_examples": 1000}
    shown = cell(
        "lenet-mnist-mnvi",
        changed("study/limits/classification", {**RAW["study"]["limits"]["classification"], **limits}),
    ).parameters(stage)
    cuts = {key: value for key, value in shown.items() if key.startswith("limits.")}
    assert cuts == {"limits.train_examples": 5000, "limits.steps_per_epoch": 7, **further}


def test_what_tuning_chose_takes_the_place_of_what_the_settings_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = cell("boston-mc_dropout")
    with pytest.raises(StudyError, match=r"best\.yaml: no such file; .*`python -m pipeline\.tune boston-mc_dropout`"):
        before.tuned()
    files.write_yaml(before.tune / "best.yaml", {"hyperparameters": {"dropout": 0.3, "batch_size": 7}})
    assert before.tuned() == before.with_hyperparameters({"dropout": 0.3, "batch_size": 7})


def test_the_grid_is_every_combination():
    points = cell("lenet-mnist-mnvi", changed("study/grids", {})).grid_points()
    assert len(points) == 16 and len({tuple(point.items()) for point in points}) == 16
    assert cell("boston-ensemble").grid_points() == [{}]


def test_the_paper_preset_replaces_single_values():
    raw = changed("study/preset", "paper")
    read = reading.read(raw)
    assert read.experiments["boston"].milestones == ()
    resnet = read.experiments["resnet18-cifar10"]
    assert resnet.methods["mfvi"].hyperparameters["kappa_over_n"] == 2e-8
    assert resnet.methods["mfvi"].hyperparameters["init_log_var"] == -20.0
    assert resnet.methods["mnvi"] == reading.read(RAW).experiments["resnet18-cifar10"].methods["mnvi"]


def test_fewer_epochs_keep_the_shape_of_the_schedule():
    raw = changed("study/limits/regression/epochs", 20)
    boston = reading.read(raw).experiments["boston"]
    assert (boston.epochs, boston.planned_epochs) == (20, 200)
    assert boston.milestones == (10, 15)
    assert boston.kappa == {0: 0.01, 10: 0.1, 15: 1.0}
    assert not cell("boston-mnvi", raw).complete


def test_limits_never_add_runs():
    raw = changed("study/limits/regression/runs", 100)
    assert reading.read(raw).experiments["boston"].runs == 20


@pytest.mark.parametrize(("limit", "seeds"), [(None, 4), (3, 3), (9, 4)])
def test_limits_take_seeds_away_only(limit, seeds):
    raw = changed("study/limits/classification/seeds", limit)
    assert reading.read(raw).experiments["lenet-mnist"].seeds == seeds


@pytest.mark.parametrize(
    ("path", "value", "stages"),
    [
        (f"{BOSTON}/learning_rate", 0.1, {"tune", "train", "evaluate"}),
        (f"{BOSTON}/methods/mnvi/grid", {"prior_variance": [1.0]}, {"tune"}),
        (f"{BOSTON}/methods/mc_dropout/hyperparameters", {"dropout": 0.2}, set()),
        ("study/trials", 3, set()),  # a grid is gone through
        ("study/limits/regression/runs", 5, {"evaluate"}),  # a trial has two, and each training is one of its own
        ("study/limits/regression/runs", 1, {"tune", "evaluate"}),
        ("study/limits/regression/search_epochs", 3, {"tune"}),
        ("study/limits/classification/epochs", 2, set()),
        ("resources/workers", 2, set()),
        ("resources/gpu", True, set()),
        ("resources/precision", "bfloat16", set()),
        ("resources/accumulate", 2, set()),
        ("resources/compile", True, {"tune", "train", "evaluate"}),
        ("resources/allow_fewer_workers", True, set()),
        ("datasets/boston/folds", 5, {"tune", "train", "evaluate"}),
    ],
)
def test_a_change_alters_the_fingerprint_of_the_stages_it_reaches(path, value, stages):
    assert altered(cell("boston-mnvi"), cell("boston-mnvi", changed(path, value))) == stages


@pytest.mark.parametrize(
    ("path", "value", "stages"),
    [
        ("resources/precision", "bfloat16", {"tune", "train", "evaluate"}),
        ("resources/workers", 2, {"tune", "train", "evaluate"}),
        ("resources/cpus_per_worker", 2, set()),
        (f"{LENET}/patience", 2, {"tune", "train", "evaluate"}),
        (f"{LENET}/selection", "nll", {"train", "evaluate"}),  # a trial is judged by its NLL
        ("study/trials", 3, set()),
        ("study/searcher", "random", {"tune"}),
        ("study/limits/regression/runs", 5, set()),
    ],
)
def test_the_same_of_a_cell_of_images(path, value, stages):
    assert altered(cell("lenet-mnist-mnvi"), cell("lenet-mnist-mnvi", changed(path, value))) == stages


def altered(before: params.Cell, after: params.Cell) -> set[str]:
    return {stage for stage in ("tune", "train", "evaluate") if before.fingerprint(stage) != after.fingerprint(stage)}


def test_what_ends_a_trial_early_is_part_of_its_search():
    """With patience, `selection` says which epoch was the last better one."""
    before = changed(f"{LENET}/patience", 2)
    after = copy.deepcopy(before)
    after["experiments"]["lenet-mnist"]["selection"] = "nll"
    assert "tune" in altered(cell("lenet-mnist-mnvi", before), cell("lenet-mnist-mnvi", after))


def test_a_study_may_search_other_points_than_its_experiments_name():
    grid = {"prior_variance": [0.5, 2.0]}
    read = reading.read(changed("study/grids", {"boston-mnvi": grid, "boston-ensemble": {"batch_size": [32]}}))
    assert read.cell("boston-mnvi").grid_points() == [{"prior_variance": 0.5}, {"prior_variance": 2.0}]
    assert read.cell("yacht-mnvi").grid == cell("yacht-mnvi").grid
    assert read.cell("boston-ensemble").num_trials == 1 and not read.cell("boston-ensemble").searched
    whole = selecting.expanded({**SHORT, "grids": {"wine-mnvi": grid}}, RAW)
    assert whole["grids"] == {"wine-mnvi": grid}


@pytest.mark.parametrize(("searcher", "trials", "expected"), [("grid", 3, 8), ("random", 3, 3), ("optuna", 99, 8)])
def test_a_search_tries_as_many_points_as_its_searcher_says(searcher, trials, expected):
    raw = changed("study/searcher", searcher)
    raw["study"]["trials"] = trials
    assert cell("boston-mnvi", raw).num_trials == expected


def test_more_seeds_keep_the_training_of_those_there_are():
    before, after = (cell("lenet-mnist-mnvi", changed("study/limits/classification/seeds", n)) for n in (1, 3))
    assert before.fingerprint("train") == after.fingerprint("train")
    assert before.settings("train") != after.settings("train")  # DVC has to run the stage for the new ones
    assert before.fingerprint("evaluate") != after.fingerprint("evaluate")


def test_a_cell_that_is_not_searched_does_not_depend_on_the_search():
    raw = changed("study/limits/regression/search_epochs", 3)
    assert cell("boston-ddvi").settings("tune") == cell("boston-ddvi", raw).settings("tune")


def test_resumable_state_lies_outside_of_the_results():
    found = cell("boston-mnvi")
    assert found.state("train") == Path("work/results/train/boston-mnvi")
    assert (found.tune, found.model) == (Path("results/tune/boston-mnvi"), Path("results/models/boston-mnvi"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "studies", tmp_path / "studies")
    return tmp_path


def command(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline.params", *arguments], cwd=project, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("which", ["show", "check"])
def test_a_reader_that_goes_away_is_no_error(project, which):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.params", which],
            cwd=project,
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.slow
def test_select_replaces_the_study_only_and_keeps_each_studys_lock(project):
    original = (project / "params.yaml").read_text()
    (project / "dvc.lock").write_text("of the default study")
    assert command(project, "select", "uci").returncode == 0
    selected = (project / "params.yaml").read_text()
    assert yaml.safe_load(selected)["study"]["name"] == "uci"
    assert selected.partition("\nresources:")[2] == original.partition("\nresources:")[2]
    assert not (project / "dvc.lock").exists()
    (project / "dvc.lock").write_text("of uci")
    assert command(project, "select", "default").returncode == 0
    assert (project / "params.yaml").read_text() == original
    assert (project / "dvc.lock").read_text() == "of the default study"
    assert (project / "recorded/uci/dvc.lock").read_text() == "of uci"


def test_small_numbers_that_dvc_writes_are_numbers(project, monkeypatch):
    """Those of `dvc exp run -S <key>=5e-8`, which have no decimal point."""
    monkeypatch.chdir(project)
    kappa = "experiments.lenet-mnist.methods.mnvi.hyperparameters.kappa_over_n"
    apply_overrides("params.yaml", [f"{kappa}=5e-8", "experiments.boston.learning_rate=1e-4"])
    assert "kappa_over_n: 5e-08" in Path("params.yaml").read_text()
    read = params.load()
    assert read.cell("lenet-mnist-mnvi").hyperparameters["kappa_over_n"] == 5e-8
    assert read.experiments["boston"].learning_rate == 1e-4
    selecting.select("images", Path("params.yaml"), ["lenet-mnist-mnvi"], None)
    assert params.load().cell("lenet-mnist-mnvi").hyperparameters["kappa_over_n"] == 5e-8


def sections(raw: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in raw.items():
        if isinstance(value, dict):
            yield f"{path}{key}", value
            yield from sections(value, f"{path}{key}.")


def test_no_section_is_shared_so_that_dvc_can_set_each_of_its_values():
    paths: dict[int, list[str]] = {}
    for path, section in sections(RAW):
        paths.setdefault(id(section), []).append(path)
    assert [shared for shared in paths.values() if len(shared) > 1] == []


def test_dvc_sets_a_value_of_one_experiment_alone(project, monkeypatch):
    monkeypatch.chdir(project)
    variance = "methods.mnvi.hyperparameters.prior_variance"
    overrides = ["experiments.boston.learning_rate=0.02", f"+experiments.wine.{variance}=5"]
    apply_overrides("params.yaml", [*overrides, "+experiments.power.kappa={0:0.5}"])
    before, after = reading.read(RAW).experiments, params.load().experiments
    assert after["wine"].methods["mnvi"].hyperparameters == {"prior_variance": 5.0}
    assert after["power"].kappa == {0: 0.5}
    assert after["boston"].learning_rate == 0.02
    of_boston = {"boston", "boston-standard"}
    of_wine, of_power = {"wine", "wine-standard"}, {"power", "power-standard", "naval-standard", "protein-standard"}
    assert {name for name in before if before[name] != after[name]} == of_boston | of_wine | of_power


def test_dvc_adds_a_value_to_an_experiment_that_has_a_recipe(project, monkeypatch):
    monkeypatch.chdir(project)
    apply_overrides("params.yaml", ["+experiments.wine-standard.methods.mnvi.hyperparameters.prior_variance=5"])
    experiments = params.load().experiments
    assert experiments["wine-standard"].methods["mnvi"].hyperparameters == {"prior_variance": 5.0}
    assert experiments["wine-standard"].methods["mnvi"].grid == experiments["wine"].methods["mnvi"].grid
    assert experiments["wine"].methods["mnvi"].hyperparameters == {"prior_variance": 10.0}


def test_an_experiment_takes_from_its_recipe_what_it_does_not_say(project):
    experiments = reading.read(RAW).experiments
    protein, power = experiments["protein-standard"], experiments["power"]
    assert (protein.hidden, protein.runs, protein.data) == (100, 1, "protein-standard")
    assert (protein.epochs, protein.kappa, protein.methods) == (power.epochs, power.kappa, power.methods)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("powr", r"experiments\.naval-standard\.recipe: 'powr' is not in experiments .*; did you mean power\?"),
        ([], r"experiments\.naval-standard\.recipe: \[\] is not text; write a non-empty string"),
        ("naval-standard", r"experiments\.naval-standard\.recipe: 'naval-standard' leads back to 'naval-standard'"),
    ],
)
def test_a_recipe_that_leads_nowhere_is_refused(recipe, message):
    with pytest.raises(StudyError, match=message):
        reading.read(changed("experiments/naval-standard/recipe", recipe))


@pytest.mark.slow
def test_select_can_be_narrowed_to_some_cells(project):
    assert command(project, "select", "uci", "--cells", "wine-dvi,yacht-mnvi", "--results", "mine").returncode == 0
    study = params.load(project / "params.yaml").study
    assert list(study.cells) == ["wine-dvi", "yacht-mnvi"]
    assert (study.data, study.search, study.results) == (("wine", "yacht"), (), Path("mine"))
    assert THE_DEFAULT in (ROOT / "params.yaml").read_text()
    text = (project / "params.yaml").read_text()
    assert "# From studies/uci.yaml.\nstudy:" in text and THE_DEFAULT not in text
    wrong = command(project, "select", "uci", "--cells", "wine-dvo")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: --cells: 'wine-dvo' is not a cell of this study")
    assert "Traceback" not in wrong.stderr
