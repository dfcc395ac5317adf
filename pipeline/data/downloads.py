"""Files from the internet by their address, over HTTPS, bounded in size, kept in the cache once whole."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Followed to where the first address could have led; never from the internet to this machine, or to a file."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if not (_is_safe(newurl) and _is_here(newurl) <= _is_here(req.full_url)):
            raise ValueError(f"it redirects to {newurl}, but expected is an https:// address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)


def _is_safe(url: str) -> bool:
    """Whether nobody on the way can read or alter what is fetched."""
    return urlsplit(url).scheme == "https" or (urlsplit(url).scheme == "http" and _is_here(url))


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _blocks(url: str, limit: int) -> Iterator[bytes]:
    """The content in blocks; every failure of the network is an Unavailable."""
    done = 0
    if not _is_safe(url):
        raise Unavailable(f"{url}: expected an https:// address")
    try:
        with _OPENER.open(url, timeout=SECONDS) as answer:
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
