"""Photographs of a part of a data set in shards, with an index that says where each one is.

    train-00000.shard     1,024 JPEGs, or PNGs if they are tiny; the last shard may have fewer
    train_places.npy      int64 [n, 3]: offset in its shard, length and CRC-32 of each file
    train_labels.npy      int64 [n]
    checksums.json        SHA-256 of every shard of every part

Row r is in shard r // 1,024. Training and validation rows are in random order, so that every shard is a sample of all
classes, and the first n rows are, too.
"""

from __future__ import annotations

PER_SHARD = 1024  # photographs, 27 MB at 256 pixels


def shard_name(part: str, number: int) -> str:
    return f"{part}-{number:05d}.shard"
