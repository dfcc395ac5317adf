"""As many photographs as ImageNet has, but small ones: prepared, uploaded to an S3 server on this machine, and one
epoch read back by loader processes, whose node keeps only some of the shards.

    python -m benchmarks.scaling.million                    # 1,281,167 photographs; writes scaling_million.json
    python -m benchmarks.scaling.million --count 256000     # a fifth of it

The server is moto's, which keeps in memory what it gets. Memory is the sum over this process and its loader processes;
pages that they share count once.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from benchmarks.scaling import setting
from benchmarks.timing import write
from pipeline import blobs, large_files, storage
from pipeline.data.augmentation import Augmentation
from pipeline.data.imagesets import load_images
from pipeline.images.batches import Batches
from pipeline.images.group import Group
from pipeline.images.loading import Loader
from pipeline.params import Dataset
from pipeline.prepare import prepare
from tests.pipeline.s3_server import s3_server

RESULTS = setting.RESULTS / "scaling_million.json"
IMAGENET = 1_281_167
CLASSES, SIZE, BATCH = 100, 64, 256
SOURCES = 2000  # different photographs


def write_photos(folder: Path, count: int) -> None:
    """Files of 80 x 64 pixels."""
    numbers = np.random.default_rng(0)
    contents = []
    for _ in range(min(SOURCES, count)):
        rough = Image.fromarray(numbers.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        rough.resize((80, 64)).save(buffer, "JPEG", quality=90)
        contents.append(buffer.getvalue())
    for label in range(CLASSES):
        (folder / f"n{label:03d}").mkdir(parents=True)
    for number in range(count):
        place = folder / f"n{number % CLASSES:03d}" / f"{number:07d}.jpg"
        place.write_bytes(contents[number % len(contents)])


class Peak:
    """The largest memory of this process and those that it started, in bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def look(self) -> int:
        """What it is now."""
        total = 0
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            try:
                if "moto.server" not in process.cmdline():
                    total += process.memory_full_info().pss
            except psutil.Error:  # it has just ended
                continue
        self.bytes = max(self.bytes, total)
        return total


@contextmanager
def watched(every: float = 0.5) -> Iterator[Peak]:
    peak, stop = Peak(), threading.Event()

    def watch() -> None:
        while not stop.wait(every):
            peak.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
        peak.look()
    finally:
        stop.set()
        thread.join()


def read_epoch(folder: Path) -> dict[str, Any]:
    """Reads one epoch, and checks that every image comes once with its label."""
    images = load_images(folder, "train")
    steps = -(-len(images) // BATCH)
    batches = Batches(images, lambda *_: torch.empty(0), Group(), size=BATCH, seed=0, examples=len(images), steps=steps)
    memory, labels, seen = [], torch.zeros(CLASSES, dtype=torch.int64), 0
    with watched() as peak, Loader(batches, "none", "imagenet", len(os.sched_getaffinity(0))) as loader:
        loader.photos.augmentation = Augmentation(crop=SIZE, flip=True)
        memory.append(peak.look())
        began = time.monotonic()
        for step in range(steps):
            (part,) = loader.parts(0, step)
            assert part.images.shape[1:] == (3, SIZE, SIZE)
            labels += part.labels.bincount(minlength=CLASSES)
            seen += len(part.labels)
            if step in (steps // 10, steps // 2, steps - 1):
                memory.append(peak.look())
        seconds = time.monotonic() - began
    assert seen == len(images) and torch.equal(labels, images.labels.bincount(minlength=CLASSES))
    return {"seconds": seconds, "waited": loader.waited, "peak": peak.bytes, "memory": memory}


def measure(count: int, kept: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, chdir(name), s3_server() as (address, environment):
        os.environ.update(environment, MNVI_NODE_CACHE=f"{name}/cache")
        write_photos(Path("raw/train"), count)
        write_photos(Path("raw/test"), CLASSES)
        entry = {"train": f"{name}/raw/train", "test": f"{name}/raw/test", "size": SIZE, "validation": 1000}
        with watched() as preparing:
            began = time.monotonic()
            prepare(Dataset(name="million", kind="folder", **entry), "stop")
            prepared = time.monotonic() - began
        folder = Path("data/million")
        shards = sorted(folder.glob("*.shard"))
        size = sum(shard.stat().st_size for shard in shards)
        with watched() as uploading:
            began = time.monotonic()
            contents = blobs.publish({".": folder}, storage.at(address))
            uploaded = time.monotonic() - began
        began = time.monotonic()
        blobs.publish({".": folder}, storage.at(address))
        again = time.monotonic() - began
        limit = kept * max(shard.stat().st_size for shard in shards)
        os.environ[large_files.LIMIT] = str(limit / 1e9)
        found = read_epoch(contents.here())
        copies = sum(path.stat().st_size for path in Path("cache/large").iterdir())
    return {
        "photographs": count,
        "shards": len(shards),
        "bytes": size,
        "prepare": {"seconds": prepared, "peak": preparing.bytes},
        "upload": {"seconds": uploaded, "again": again, "peak": uploading.bytes},
        "read": {**found, "cache_limit": limit, "cache": copies},
    }


def markdown(document: dict) -> str:
    count, cores = document["photographs"], document["cores"]
    parts = {name: document[name] for name in ("prepare", "upload", "read")}
    lines = ["| | seconds | images/s | peak memory |", "| --- | --- | --- | --- |"]
    titles = {"prepare": "prepared", "upload": "uploaded to S3", "read": "one epoch read back"}
    for name, part in parts.items():
        rate, peak = count / part["seconds"], part["peak"] / 1e6
        lines.append(f"| {titles[name]} | {part['seconds']:.0f} | {rate:,.0f} | {peak:,.0f} MB |")
    read = parts["read"]
    memory = ", ".join(f"{found / 1e6:,.0f}" for found in read["memory"])
    lines += [
        "",
        f"{count:,} made-up photographs in {document['shards']:,} shards, {document['bytes'] / 1e6:,.0f} MB, on "
        f"{cores} cores. Publishing once more, when S3 has everything, took {parts['upload']['again']:.1f} s. "
        f"The node kept {read['cache'] / 1e6:,.0f} MB of shards (limit {read['cache_limit'] / 1e6:,.0f} MB). "
        f"Memory before the epoch, after a tenth, half and all of it: {memory} MB.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=IMAGENET)
    parser.add_argument("--kept", type=int, default=100, help="shards that the node may keep (default: 100)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    document = {
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        **measure(given.count, given.kept),
    }
    write(given.output, document)
    print(markdown(document))


if __name__ == "__main__":
    main()
