"""The registries: how entries name functions, what of an entry counts, and entries that agree with what they name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import mnvi
from pipeline import registry
from pipeline.errors import StudyError
from pipeline.registry import images, methods, metrics, networks
from pipeline.registry.packages import Package


def test_a_reference_and_its_function_are_the_same() -> None:
    assert registry.resolve("mnvi.models:mlp") is mnvi.models.mlp is registry.resolve(mnvi.models.mlp)
    assert registry.spelled("mnvi.models:mlp") == "mnvi.models:mlp"
    assert registry.resolve(registry.spelled(mnvi.models.mlp)) is mnvi.models.mlp


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mnvi.models:mpl", "mnvi.models:mpl: there is no such function"),
        ("no_such_package:f", "no_such_package:f: there is no such function"),
        ("mnvi.methods:NAMES", "mnvi.methods:NAMES: is tuple, not a function"),
    ],
)
def test_a_reference_to_nothing_is_named(reference: str, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        registry.resolve(reference)


def test_a_function_gets_the_offered_arguments_that_it_names() -> None:
    assert registry.fitting(lambda a, b=2: None, {"a": 1, "c": 3}) == {"a": 1}


@pytest.mark.parametrize(
    ("entry", "shown", "counted"),
    [
        (methods.METHODS["mnvi"], {"label": "another", "colour": "#000000"}, {"has_kl": False}),
        (networks.NETWORKS["lenet"], {"label": "another"}, {"build": "mnvi.models:all_cnn"}),
        (metrics.METRICS["rmse"], {"label": "another", "decimals": 9}, {"function": "mnvi.metrics:rmse"}),
    ],
    ids=["method", "network", "metric"],
)
def test_what_is_only_shown_is_not_part_of_an_entrys_essence(entry, shown, counted) -> None:
    assert registry.essence(replace(entry, **shown)) == registry.essence(entry)
    assert registry.essence(replace(entry, **counted)) != registry.essence(entry)


def test_a_network_gets_what_it_needs_of_the_experiment() -> None:
    experiment = SimpleNamespace(network="resnet18", stem="cifar", hidden=None, arguments={}, weights=None)
    found = networks.arguments(experiment, 0.1, num_classes=7, in_channels=3)
    assert found == {"num_classes": 7, "stem": "cifar", "in_channels": 3, "dropout": 0.1}
    assert networks.build(experiment, 0.0, num_classes=7, in_channels=3)(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_every_network_of_the_registry_is_found_under_its_kind() -> None:
    kinds = {kind: set(networks.of_kind(kind)) for kind in ("regression", "classification")}
    assert kinds["regression"] | kinds["classification"] == set(networks.NETWORKS)
    assert networks.find("package.module:function").build == "package.module:function"
    assert networks.label("package.module:function") == "function"


@pytest.mark.parametrize("name", metrics.METRICS)
def test_the_function_of_every_metric_exists(name: str) -> None:
    function = metrics.METRICS[name].function
    assert function is None or callable(registry.resolve(function))


def test_a_metric_of_a_foreign_set_is_labelled_with_the_set() -> None:
    (foreign, *_) = metrics.measured("classification", foreign=True)
    stored = f"{foreign.name}_fashion_mnist" if "fashion_mnist" in images.IMAGES else f"{foreign.name}_mnist"
    data = stored.removeprefix(f"{foreign.name}_")
    assert metrics.find(stored) == foreign and images.label(data) in metrics.label(stored)
    assert metrics.label("a_metric_that_is_gone") == "a metric that is gone"


@pytest.mark.parametrize("name", images.IMAGES)
def test_the_files_of_every_image_set_fit_its_form(name: str) -> None:
    known = images.IMAGES[name]
    assert isinstance(known, images.KnownImages) and known.size > 0 and known.channels in (1, 3)
    assert all(len(file.md5) == 32 and file.size > 0 for file in known.files)
    normalisation = images.normalisations().get(name)
    assert normalisation is None or all(len(part) == known.channels for part in normalisation)


def test_a_package_is_fetched_in_its_version_and_runs_nothing() -> None:
    pinned = ("x", "1.2", "x-1.2", "0" * 64, 1.0)
    assert "x==1.2" in Package("PyPI", *pinned).command() and "--no-deps" in Package("PyPI", *pinned).command()
    assert {"x@1.2", "--ignore-scripts"} <= set(Package("npm", *pinned).command())
    assert Package("Debian", *pinned).command()[-1] == "x=1.2"


@pytest.mark.parametrize("method", mnvi.methods.NAMES)
def test_methods_take_the_hyperparameters_that_the_library_takes(method):
    values = {"num_samples": 2, "train_samples": 1, "num_members": 2, "prior_variance": 1.0}
    own = {key: values.get(key, -3.0) for key in methods.METHODS[method].hyperparameters if key != "dropout"}
    mnvi.methods.build(method, lambda: mnvi.models.mlp(3, dropout=0.1 * (method == "mc_dropout")), **own)


def test_every_method_either_has_a_kl_or_is_known_not_to():
    for name in mnvi.methods.NAMES:
        dropout = 0.1 * (name == "mc_dropout")
        net = mnvi.methods.build(name, lambda dropout=dropout: mnvi.models.mlp(3, dropout=dropout))
        objective = mnvi.Objective(net, mnvi.ELBO(mnvi.GaussianLikelihood(), num_data=2))
        kl = float(objective(torch.zeros(2, 3), torch.zeros(2)).kl.detach())
        assert (kl == 0) == (not methods.METHODS[name].has_kl), name
