"""The known networks. `network: package.module:function` in an experiment names any other, with its `arguments`.

The function receives whichever of these arguments its signature names. For images: `num_classes`, `in_channels`
and `dropout`. For tables: `in_features`, `hidden`, `out_features` and `dropout`. For both: the keys of the experiment
that its entry lists in `needs`. It also gets the experiment's `arguments`, which take precedence. Functions of
`torchvision.models` get `num_classes`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.registry import Reference, Registry, fitting, resolve

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
INSTALLED = frozenset({"torchvision"})  # packages whose code is installed where a network runs, not sent there
HEADS = 2  # outputs of a network for tables: mean and log-variance


@dataclass(frozen=True)
class Network:
    """One network.

    Args:
        kinds: the kinds of experiment that the network is for.
        build: returns the deterministic network; its arguments are described above.
        needs: keys of the experiment that this network takes and others do not, each with an example.
        size: the only image size that the network works with, as a side length in pixels; None means any.
    """

    name: str
    kinds: tuple[str, ...]
    build: Reference
    needs: Mapping[str, str] = field(default_factory=dict)
    size: int | None = field(default=None, compare=False)
    label: str = field(default="", compare=False)  # in tables


NETWORKS = Registry(
    "a network",
    (
        Network("mlp", ("regression",), "mnvi.models:mlp", {"hidden": "hidden: 50"}, label="MLP"),
        # Its first linear layer fits one image size only.
        Network("lenet", ("classification",), "mnvi.models:lenet", size=28, label="LeNet"),
        Network("all_cnn", ("classification",), "mnvi.models:all_cnn", label="AllCNN"),
        Network(
            "resnet18",
            ("classification",),
            "mnvi.models:resnet18",
            {"stem": "stem: cifar or stem: imagenet"},
            label="ResNet18",
        ),
        Network("resnet20", ("classification",), "mnvi.models:resnet20", label="ResNet20"),
        Network(
            "efficientnet_lite0", ("classification",), "mnvi.models:efficientnet_lite0", label="EfficientNet-lite0"
        ),
    ),
)


def of_kind(kind: str) -> list[str]:
    return [name for name, network in NETWORKS.items() if kind in network.kinds]


def find(name: str) -> Network:
    """The registry's entry, or a new one for `package.module:function`."""
    if name in NETWORKS:
        return NETWORKS[name]
    return Network(name, ("regression", "classification"), name)


def arguments(experiment: Any, dropout: float, **shapes: int) -> dict[str, Any]:
    """The arguments for building an experiment's network.

    Args:
        shapes: `num_classes` and `in_channels`, or `in_features`.
    """
    network = find(experiment.network)
    if "in_features" in shapes:
        shapes = {**shapes, "hidden": experiment.hidden, "out_features": HEADS}
    needed = {key: getattr(experiment, key) for key in network.needs}
    offered = {**shapes, "dropout": dropout, **needed}
    # torchvision's functions take the number of classes without naming it
    unnamed = {"num_classes": shapes["num_classes"]} if is_torchvisions(experiment.network) else {}
    return {**fitting(_function(network), offered), **unnamed, **experiment.arguments}


def build(experiment: Any, dropout: float, *, start: bool = True, **shapes: int) -> Any:
    """The deterministic network of an experiment, see `arguments`.

    Args:
        start: whether to load the `weights` that the experiment names, if any; others are about to be loaded otherwise.
    """
    net = _function(find(experiment.network))(**arguments(experiment, dropout, **shapes))
    if start and experiment.weights is not None:
        from pipeline.data import starting_weights  # here: it imports torch

        starting_weights.load(net, experiment.weights, experiment.network)
    return net


def _function(network: Network) -> Callable[..., Any]:
    if isinstance(network.build, str) and is_torchvisions(network.build):
        importlib.import_module("mnvi._torchvision")  # beside a torch without CUDA it must come before torchvision
    return resolve(network.build)


def is_torchvisions(name: str) -> bool:
    return name.startswith("torchvision.models:")


def label(name: str) -> str:
    return find(name).label or name.rpartition(":")[2]
