"""torchvision, importable beside a torch without CUDA.

torchvision's wheel on the package index is built for CUDA. Beside a CPU-only torch its compiled operators do not load,
and its import stops with "operator torchvision::nms does not exist", although datasets, transforms and models need none
of them. Declaring the two operators that the import looks for is enough; calling them still raises torchvision's error.
Packages that import torchvision themselves have to be imported after this module.

Example:
    >>> from mnvi._torchvision import torchvision
    >>> torchvision.models.resnet18(num_classes=10).fc.out_features
    10
"""

import sys

import torch

__all__ = ["torchvision"]

try:
    import torchvision
except ModuleNotFoundError as error:
    if error.name != "torchvision":
        raise
    raise ImportError("torchvision is not installed: run `pip install 'mnvi[vision]'`") from error
except RuntimeError as error:
    if "torchvision::nms does not exist" not in str(error):
        raise
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    # The failed import leaves submodules behind that belong to no package.
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    import torchvision
