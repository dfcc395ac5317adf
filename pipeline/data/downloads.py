"""Downloads over HTTPS, bounded in size; complete files stay in the cache."""

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
    """Downloads ``url``, at most ``limit`` bytes; the caller checks the content."""
    kept = cache / f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{url.rsplit('/', 1)[-1]}"
    if not kept.exists():
        blocks = _blocks(url, limit)
        beginning = next(blocks)  # before opening a file, so that a network failure leaves no trace
        with files.replacing(kept) as temporary, temporary.open("wb") as file:
            file.write(beginning)
            file.writelines(blocks)
    return kept


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to an address that `fetch` itself accepts, never from the internet to this machine or to
    a file.
    """

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        if not (_is_safe(newurl) and _is_here(newurl) <= _is_here(req.full_url)):
            raise ValueError(f"it redirects to {newurl}; expected an https:// address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Redirects)


def _is_safe(url: str) -> bool:
    """Whether nobody between the server and us can read or alter the content."""
    return urlsplit(url).scheme == "https" or (urlsplit(url).scheme == "http" and _is_here(url))


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _blocks(url: str, limit: int) -> Iterator[bytes]:
    """Yields the content in blocks; every network failure becomes an Unavailable."""
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
        # str() of a URLError puts the reason in brackets. An HTTPError, a subclass, needs str(): its reason lacks the
        # status.
        raise Unavailable(str(error.reason if type(error) is URLError else error)) from error
    if done == 0 or (expected is not None and done != expected):
        raise Unavailable(f"broke off after {done} bytes")


def _length(answer: HTTPResponse) -> int | None:
    length = answer.headers.get("Content-Length")
    return None if length is None else int(length)
