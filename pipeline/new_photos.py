"""A folder of one's own images as a data set: where train and test are, how large the images are, what fits them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.folders import ENDINGS
from pipeline.data.shard_writing import opened
from pipeline.errors import StudyError

TEST_NAMES = ("test", "val", "valid", "validation")
HELD_OUT = 5  # every fifth image of a class becomes a test image, if the folder has no test images
VALIDATION = 0.15  # share of the training images
SMALL = 96  # pixels; square images up to this side are pictures, others photographs
PHOTOGRAPH = 256  # pixels of the smaller side that is kept


Listing = dict[str, list[Path]]
"""The images of each class."""


@dataclass(frozen=True)
class Images:
    """What `pipeline.new` writes for a folder: entries of datasets and experiments, a line for people, and links."""

    dataset: dict[str, Any]
    experiment: dict[str, Any]
    said: str
    links: dict[Path, Path]  # link to image; empty if the folder has test images of its own

    def link(self) -> None:
        for link, image in self.links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(image.resolve(), link)


def look(folder: Path, name: str) -> Images:
    """Looks at a folder of images, with one subfolder per class, or with `train` and `test` of that form.

    Without test images every fifth image of each class is to be held out, by links in `own/<name>`.
    """
    train = folder / "train" if (folder / "train").is_dir() else folder
    tests = [folder / part for part in TEST_NAMES if (folder / part).is_dir() and train != folder]
    listing = _listing(train)
    if len(listing) == 1:
        raise StudyError(
            f"{train}: there is one class, {next(iter(listing))}, so there is nothing to tell apart; expected one "
            "subfolder of images for each of two classes or more"
        )
    links = {} if tests else _held_out(listing, train, Path("own") / name)
    places = (train, tests[0]) if tests else (Path("own") / name / "train", Path("own") / name / "test")
    count = sum(map(len, listing.values())) - sum(link.parts[-3] == "test" for link in links)
    side = _common_side(listing)
    recipe, size = ("pictures", side) if side is not None else ("photographs", PHOTOGRAPH)
    validation = max(1, round(VALIDATION * count))
    dataset = {"kind": "folder", "train": str(places[0]), "test": str(places[1]), "size": size}
    shown = f"{side} x {side} pixels" if side else "photographs"
    said = f"{count} images to learn from, {validation} of them for validation, {len(listing)} classes, {shown}"
    return Images({**dataset, "validation": validation}, {"recipe": recipe, "data": name}, said, links)


def _held_out(listing: Listing, folder: Path, place: Path) -> dict[Path, Path]:
    if place.exists():
        raise StudyError(f"{place}: exists already; choose another --name, or remove it")
    links = {}
    for label, found in listing.items():
        if len(found) < HELD_OUT:
            raise StudyError(
                f"{folder / label}: {len(found)} images are too few to hold a fifth of them out for testing; add some, "
                f"or give {folder} the subfolders train and test"
            )
        for index, path in enumerate(found):
            part = "test" if index % HELD_OUT == HELD_OUT - 1 else "train"
            links[place / part / label / f"{index:06d}{path.suffix}"] = path
    return links


def _listing(folder: Path) -> Listing:
    found = {
        child.name: sorted(path for path in child.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
        for child in sorted(folder.iterdir())
        if child.is_dir() and not child.name.startswith(".")
    }
    if not any(found.values()):
        raise StudyError(f"{folder}: there are no images in subfolders; expected one subfolder of images per class")
    if empty := [name for name, images in found.items() if not images]:
        raise StudyError(f"{folder}: no images in the class {', '.join(empty)}; fill or remove the subfolder")
    return found


def _common_side(listing: Listing) -> int | None:
    """The side of images that are all small squares of one size; None for others."""
    sizes = set()
    for path in (path for images in listing.values() for path in images):
        with opened(path) as image:
            sizes.add(image.size)
        if len(sizes) > 1:
            return None
    ((width, height),) = sizes
    return width if width == height and width <= SMALL else None
