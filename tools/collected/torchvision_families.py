"""torchvision's networks for segmentation, detection and video, which need ``pip install torchvision``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tools.collected.subject import Builder, Subject

PACKAGE = "torchvision"
SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large")
VIDEO = ("mc3_18", "mvit_v1_b", "mvit_v2_s", "r2plus1d_18", "r3d_18", "s3d", "swin3d_t")
DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2",
    "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn",
    "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
FLOW = ("raft_small",)
BODY = ": backbone and head"
BODIES = tuple(f"{name}{BODY}" for name in DETECTION if "rcnn" not in name)
FAMILIES = (*SEGMENTATION, *VIDEO, *DETECTION, *BODIES, *FLOW)
_FRAMES = {"mvit_v1_b": (16, 224), "mvit_v2_s": (16, 224), "s3d": (16, 224), "swin3d_t": (8, 64)}


class Body(nn.Module):
    """A one-stage detector without its pre- and postprocessing: boxes and scores of all anchors."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, images: Tensor) -> Any:
        features = self.backbone(images)
        return self.head([features] if isinstance(features, Tensor) else list(features.values()))


def builder(family: str) -> Builder:
    return lambda: _build(family)


def _build(family: str) -> Subject:
    from mnvi._torchvision import torchvision

    name = family.removesuffix(BODY)
    settings: dict[str, Any] = {"weights": None}
    if name not in FLOW:
        settings["num_classes"] = 10
    if name in SEGMENTATION + DETECTION:
        settings["weights_backbone"] = None
    net = torchvision.models.get_model(name, **settings)
    if name in VIDEO:
        frames, side = _FRAMES.get(name, (4, 32))
        videos = 2 if side < 200 else 1  # to bound time
        return Subject(net, (torch.randn(videos, 3, frames, side, side),), f"{frames} × {side} × {side}")
    if name in FLOW:
        return Subject(net, (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)), "2 × 128 × 128")
    if family in BODIES:
        side = 320 if "320" in name or "300" in name else 64
        return Subject(Body(net), (torch.randn(2, 3, side, side),), f"{side} × {side}")
    if name in DETECTION:
        images = [torch.rand(3, 64, 64) for _ in range(2)]
        box = torch.tensor([[5.0, 5.0, 50.0, 50.0]])
        target = {"boxes": box, "labels": torch.ones(1, dtype=torch.int64)}
        target["masks"] = torch.ones(1, 64, 64, dtype=torch.uint8)
        target["keypoints"] = torch.rand(1, 17, 3)
        return Subject(net, (images, [dict(target) for _ in images]), "64 × 64")
    return Subject(net, (torch.randn(2, 3, 64, 64),), "64 × 64")
