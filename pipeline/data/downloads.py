"""Files from the internet by their address, bounded in size, kept in the cache once whole."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import URLError

from pipeline import files
from pipeline.console import progress
from pipeline.data.sources import Unavailable

BLOCK = 1 << 20
SECONDS = 60.0


def fetch(url: str, cache: Path, limit: int) -> Path:
    """The file behind ``url``, of at most ``limit`` bytes; its content is for the caller to check."""
    kept = cache / f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{url.rsplit('/', 1)[-1]}"
    if not kept.exists():
        blocks = _blocks(url, limit)
        beginning = next(blocks)  # before a file is opened, so that a failure of the network leaves no trace
        with files.replacing(kept) as temporary, temporary.open("wb") as file:
            file.write(beginning)
            file.writelines(blocks)
    return kept


def _blocks(url: str, limit: int) -> Iterator[bytes]:
    """The content in blocks; every failure of the network is an Unavailable."""
    done = 0
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            expected = _length(answer)
            with progress(url, max(1, (expected or limit) // BLOCK), "MB") as bar:
                while block := answer.read(BLOCK):
                    done += len(block)
                    if done > limit:
                        raise Unavailable(f"more than {limit} bytes")
                    bar.advance()
                    yield block
    except (OSError, HTTPException, ValueError) as error:
        # A URLError puts its reason in brackets; an HTTPError, which is one too, says its number only as a whole.
        raise Unavailable(str(error.reason if type(error) is URLError else error)) from error
    if done == 0 or (expected is not None and done != expected):
        raise Unavailable(f"broke off after {done} bytes")


def _length(answer: HTTPResponse) -> int | None:
    length = answer.headers.get("Content-Length")
    return None if length is None else int(length)
