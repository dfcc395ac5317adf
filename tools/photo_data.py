"""Photographs of ImageNet classes, and pictures of no class that a network for ImageNet knows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pipeline.data import archives, image_sources, package_downloads
from pipeline.data.folders import ENDINGS
from pipeline.data.sources import MIRROR, Unavailable, in_mirror
from pipeline.errors import StudyError
from pipeline.registry.images import IMAGES
from pipeline.registry.packages import BuiltWheel

SIDE = 224
# Place among ImageNet's 1,000 classes, for the ten classes of Imagenette.
CLASSES = {
    "n01440764": 0,  # tench
    "n02102040": 217,  # English springer
    "n02979186": 482,  # cassette player
    "n03000684": 491,  # chain saw
    "n03028079": 497,  # church
    "n03394916": 566,  # French horn
    "n03417042": 569,  # garbage truck
    "n03425413": 571,  # gas pump
    "n03445777": 574,  # golf ball
    "n03888257": 701,  # parachute
}
SCIKIT_IMAGE = BuiltWheel(
    registry="PyPI",
    name="scikit-image",
    version="0.26.0",
    archive="scikit_image-0.26.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    sha256="74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
    megabytes=13.7,
)
TEXTURES = ("brick", "grass", "gravel")  # photographs of 512 × 512 pixels
TILE = 128  # pixels; tiles do not overlap
DIGITS = 100


class Photos(NamedTuple):
    """Standardised photographs [N, 3, 224, 224] and their classes [N]."""

    x: Tensor
    y: Tensor

    def part(self, rows: Tensor) -> Photos:
        return Photos(self.x[rows], self.y[rows])

    def batches(self, size: int = 16) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x.split(size), self.y.split(size), strict=True))


def photographs(part: str, folder: str = "imagenette-subset") -> Photos:
    """The photographs of `train` or `val`: one subfolder for each of the ten classes of Imagenette."""
    try:
        place = Path(folder) / part if (Path(folder) / part).is_dir() else in_mirror(f"{folder}/{part}")
    except Unavailable as reason:
        raise StudyError(
            f"{folder}/{part}: no such folder, neither here nor in the mirror ({reason}). Get Imagenette "
            f"(github.com/fastai/imagenette) and name its folder, or set {MIRROR}"
        ) from reason
    paths = [path for wnid in CLASSES for path in sorted((place / wnid).glob("*")) if path.suffix.lower() in ENDINGS]
    if not paths:
        raise StudyError(f"{place}: none of the subfolders {', '.join(CLASSES)} holds photographs")
    pictures = [standardised(Image.open(path)) for path in paths]
    return Photos(torch.stack(pictures), torch.tensor([CLASSES[path.parent.name] for path in paths]))


def standardised(image: Image.Image) -> Tensor:
    """The middle of a picture as EfficientNet-lite0 takes it: colours with mean 127 and standard deviation 128."""
    image = image.convert("RGB")
    if image.size != (SIDE, SIDE):
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
        image = image.crop((left, top, left + SIDE, top + SIDE))
    return (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() - 127) / 128


def textures(cache: Path) -> Tensor:
    """Tiles of photographs of brick, grass and gravel, from the package scikit-image."""
    names = [f"skimage/data/{name}.png" for name in TEXTURES]
    found = archives.members(package_downloads.fetch(SCIKIT_IMAGE, cache), dict.fromkeys(names, 1 << 20))
    tiles = []
    for name in names:
        with Image.open(io.BytesIO(found[name]), formats=["PNG"]) as image:
            for top in range(0, image.height - TILE + 1, TILE):
                for left in range(0, image.width - TILE + 1, TILE):
                    tiles.append(standardised(image.crop((left, top, left + TILE, top + TILE))))
    return torch.stack(tiles)


def digits(cache: Path) -> Tensor:
    """The first test images of MNIST."""
    contents, _ = image_sources.find("mnist", IMAGES["mnist"], cache)
    content = next(data for name, data in contents.items() if name.startswith("t10k-images"))
    pixels = np.frombuffer(content, np.uint8, DIGITS * 28 * 28, offset=16).reshape(DIGITS, 28, 28)
    return torch.stack([standardised(Image.fromarray(image)) for image in pixels])
