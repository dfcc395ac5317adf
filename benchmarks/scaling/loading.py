"""Measures how fast photographs become batches, beside torchvision's ImageFolder with a DataLoader, and whether
training waits for them.

    one core      decode, crop and flip in this process: images a second of one core
    loader        everything up to a normalised batch, with as many loader processes as there are cores
    waiting       the share of a ResNet18 step that waits for images, with one loader process beside one thread of torch

Every round runs all of them in turn; figures are medians. ImageFolder reads the same photographs as they are, and once
more resized to 256 pixels, as our shards hold them.

    python -m benchmarks.scaling.loading --photos imagenet/val     # two minutes; writes scaling_loading.json
    python -m benchmarks.scaling.loading                           # with made-up photographs of 500 x 375 pixels

`--litdata` adds Lightning's litdata, if it is installed.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.scaling import setting
from benchmarks.timing import write
from mnvi._torchvision import torchvision
from pipeline.data.augmentation import augmentation, normaliser
from pipeline.data.imagesets import ImageSet, load_images
from pipeline.data.shard_writing import resized
from pipeline.images import loop
from pipeline.images.batches import Batches
from pipeline.images.group import Group
from pipeline.images.loading import Loader, Photos
from pipeline.params import Dataset
from pipeline.prepare import prepare

RESULTS = setting.RESULTS / "scaling_loading.json"
METHODS = ("deterministic", "mnvi")
SIZE, BATCH, CLASSES = 256, 64, 8
WARM_UP = 8  # batches, more than the loaders prefetch
RECIPE, NORMALISATION = "imagenet-release", "imagenet"
OURS, PLAIN, PLAIN_256, LITDATA = "ours", "ImageFolder", "ImageFolder, 256 pixels", "litdata"


def lay_out(photos: list[Path] | None, folder: Path, count: int) -> None:
    """Writes ``count`` photographs as a folder of classes, and once more with 256 pixels."""
    numbers = np.random.default_rng(0)
    contents = [made_up(numbers) for _ in range(16)] if photos is None else [path.read_bytes() for path in photos]
    for number in range(count):
        place = Path(f"class{number % CLASSES}") / f"{number:05d}.jpg"
        content = contents[number % len(contents)]
        for kind in ("whole", "small"):
            (folder / kind / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / "whole" / place).write_bytes(content)
        resized(folder / "whole" / place, SIZE).save(folder / "small" / place, "JPEG", quality=90)


def made_up(numbers: np.random.Generator) -> bytes:
    """A JPEG of 500 x 375 pixels whose detail falls off as in photographs, about 70 kB."""
    layers = np.zeros((375, 500, 3))
    for level in range(1, 9):
        rough = numbers.normal(0, 28 * 0.75**level, (2 + 375 >> (8 - level), 2 + 500 >> (8 - level), 3))
        image = [Image.fromarray(rough[..., c].astype(np.float32)).resize((500, 375)) for c in range(3)]
        layers += np.stack([np.asarray(channel) for channel in image], -1) * 2
    buffer = io.BytesIO()
    Image.fromarray((layers + 120).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def torchvision_transform() -> Callable[[Image.Image], Tensor]:
    transforms = torchvision.transforms
    return transforms.Compose(
        [
            transforms.Resize(SIZE),
            transforms.RandomCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def plain(folder: Path) -> Any:
    return torchvision.datasets.ImageFolder(str(folder), transform=torchvision_transform())


def batches(images: ImageSet) -> Batches:
    settings = {"size": BATCH, "seed": 0, "examples": len(images), "steps": len(images) // BATCH}
    return Batches(images, lambda *_: torch.empty(0), Group(), **settings)


def ours(images: ImageSet, processes: int) -> Iterator[Tensor]:
    with Loader(batches(images), RECIPE, NORMALISATION, processes) as loader:
        step = 0, 0
        while True:
            yield loader.parts(*step)[0].images
            step = loader.batches.after(*step)


def torchs(folder: Path, processes: int) -> Iterator[Tensor]:
    data = plain(folder)
    endless = RandomSampler(data, replacement=True, num_samples=10**9)
    for images, _ in DataLoader(data, BATCH, sampler=endless, num_workers=processes):
        yield images


def litdatas(folder: Path, processes: int) -> Iterator[Tensor]:
    """litdata's chunks of the same JPEGs, with torchvision's decoding replaced by ours: bytes, normalised by batch."""
    import litdata

    normalise = normaliser(NORMALISATION)

    class Streamed(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Tensor:
            with Image.open(io.BytesIO(super().__getitem__(index)["jpeg"])) as image:
                pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            top, left = (int(torch.randint(side - 223, ())) for side in pixels.shape[1:])
            pixels = pixels[:, top : top + 224, left : left + 224]
            return pixels.flip(-1) if torch.rand(()) < 0.5 else pixels

    data = Streamed(str(folder), shuffle=True, drop_last=True)
    for images in litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=processes):
        yield normalise(images)


def write_litdata(images: ImageSet, folder: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir()
    writer = BinaryWriter(str(folder), chunk_bytes=27_000_000)
    for row in range(len(images)):
        writer[row] = {"jpeg": images.shards.read(row), "label": int(images.labels[row])}
    writer.done()
    writer.merge(num_workers=1)


def litdata_order(folder: Path, processes: int) -> list[int]:
    """The order of labels in litdata's first epoch."""
    import litdata

    data = litdata.StreamingDataset(str(folder), shuffle=True, drop_last=True)
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=processes, collate_fn=list)
    return [item["label"] for batch in loader for item in batch]


def one_core(images: ImageSet, folder: Path, each: int) -> dict[str, Callable[[], None]]:
    """Each function decodes and changes ``each`` images."""
    photos = Photos(images, augmentation(RECIPE), 0)
    kinds = {PLAIN: plain(folder / "whole"), PLAIN_256: plain(folder / "small")}

    def of(take: Callable[[int], Any]) -> Callable[[], None]:
        def work() -> None:
            for row in range(each):
                take(row)

        return work

    def take_ours(row: int) -> None:
        photos[0, [row]]

    return {OURS: of(take_ours)} | {name: of(data.__getitem__) for name, data in kinds.items()}


def rates(steps: dict[str, Callable[[], None]], images: int, rounds: int) -> dict[str, float]:
    """Images a second: medians of rounds that run each step once."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    return {name: images / statistics.median(taken) for name, taken in times.items()}


def waiting(folder: Path, method: str, steps: int, batch: int) -> dict[str, float]:
    """The study's own loop, one thread of torch and one loader process."""
    torch.set_num_threads(1)
    cell = setting.with_batch(setting.images_study().cell(f"resnet18-imagenet-{method}"), batch)
    limits = replace(cell.study.classification, steps_per_epoch=steps, validation_examples=batch)
    cell = replace(cell, study=replace(cell.study, classification=limits))
    cell = replace(cell, experiment=replace(cell.experiment, epochs=2, milestones=()))
    with tempfile.TemporaryDirectory() as state:
        history = loop.run(setting.job(cell, folder, Path(state)), Group()).history
    last = history[-1]  # the first epoch starts the loader process
    return {"waiting": last["waiting"], "images_per_second": batch * steps / last["seconds"]}


def measure(photos: list[Path] | None, count: int, rounds: int, steps: int, batch: int, litdata: bool) -> dict:
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, chdir(name):
        folder = Path(name)
        lay_out(photos, folder / "raw", count)
        lay_out(photos, folder / "test", CLASSES)
        whole, test = str(folder / "raw" / "whole"), str(folder / "test" / "whole")
        prepare(Dataset(name="p", kind="folder", train=whole, test=test, size=SIZE, validation=8), "stop")
        images = load_images("data/p", "train")
        sizes = {
            "whole": statistics.fmean(path.stat().st_size for path in Path(whole).rglob("*.jpg")),
            "stored": float(images.shards.places[:, 1].mean()),
        }
        decoding = rates(one_core(images, folder / "raw", min(count // 2, 300)), min(count // 2, 300), rounds)
        sources: dict[str, Callable[[], Iterator[Tensor]]] = {
            OURS: lambda: ours(images, cores),
            PLAIN: lambda: torchs(folder / "raw" / "whole", cores),
            PLAIN_256: lambda: torchs(folder / "raw" / "small", cores),
        }
        found: dict[str, Any] = {}
        if litdata:
            write_litdata(images, folder / "litdata")
            orders = [litdata_order(folder / "litdata", processes) for processes in (1, 2)]
            found["litdata_order_is_the_same_with_1_and_2_processes"] = orders[0] == orders[1]
            sources[LITDATA] = lambda: litdatas(folder / "litdata", cores)
        loading = loaders(sources, count // BATCH - WARM_UP - 1, rounds)
        found["waiting"] = {method: waiting(Path("data/p").absolute(), method, steps, batch) for method in METHODS}
    per_core = {name: rate / cores for name, rate in loading.items()}
    return {"cores": cores, "photos": count, "bytes": sizes, "one_core": decoding, "loader_per_core": per_core, **found}


def loaders(sources: dict[str, Callable[[], Iterator[Tensor]]], each: int, rounds: int) -> dict[str, float]:
    """Images a second of each loader. One runs at a time, and time counts once its queue is empty."""
    times: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            stream = source()
            for _ in range(WARM_UP):
                next(stream)
            began = time.perf_counter()
            for _ in range(each):
                assert next(stream).shape == (BATCH, 3, 224, 224)
            times[name].append(time.perf_counter() - began)
            stream.close()  # type: ignore[attr-defined]
    return {name: each * BATCH / statistics.median(taken) for name, taken in times.items()}


def markdown(document: dict) -> str:
    names = list(document["loader_per_core"])
    lines = ["| | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for title, key in (
        ("decode and augment, one core", "one_core"),
        ("whole loader, for each core", "loader_per_core"),
    ):
        figures = [
            f"{document[key][name]:.0f} images/s ({document[key][OURS] / document[key][name]:.2f})"
            if name in document[key]
            else "–"
            for name in names
        ]
        lines.append(f"| {title} | {' | '.join(figures)} |")
    waits = ", ".join(
        f"{100 * document['waiting'][method]['waiting']:.2g} % for {method} "
        f"({document['waiting'][method]['images_per_second']:.1f} images/s)"
        for method in METHODS
    )
    sizes = {name: f"{value / 1e3:.0f} kB" for name, value in document["bytes"].items()}
    lines += [
        "",
        f"In brackets: how many times faster ours is. {document['photos']} {document['source']}, {sizes['whole']} "
        f"each, {sizes['stored']} in shards; {document['cores']} cores. "
        f"Share of a ResNet18 step spent waiting: {waits}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a folder of photographs (default: made-up ones)")
    parser.add_argument("--count", type=int, default=2400, help="how many, repeated if there are fewer (default: 2400)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="steps of ResNet18 (default: 6)")
    parser.add_argument("--batch", type=int, default=16, help="images of such a step (default: 16)")
    parser.add_argument("--litdata", action="store_true", help="measure litdata, too")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    photos = sorted(path for path in given.photos.rglob("*") if path.is_file()) if given.photos else None
    document = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "source": "photographs of ImageNet" if photos else "made-up photographs",
        **measure(photos, given.count, given.rounds, given.steps, given.batch, given.litdata),
    }
    write(given.output, document)
    print(markdown(document))


if __name__ == "__main__":
    main()
