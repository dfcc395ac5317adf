"""Archives, downloads, workbooks and images that mean harm are refused, and do none."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import threading
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image

from pipeline.data import archives, downloads, workbook
from pipeline.data.folders import find_folder
from pipeline.data.known_tables import TABLES
from pipeline.data.sources import Unavailable
from pipeline.errors import StudyError
from pipeline.params import Dataset
from pipeline.registry.images import IMAGES

MEGABYTE = 1 << 20


def entry(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.size, found.linkname = kind, size, link
    return found


def tar(path: Path, *entries: tarfile.TarInfo, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for one in entries:
            archive.addfile(one, io.BytesIO(bytes(one.size)))
    return path


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: bytes) -> None:
    path = tar(tmp_path / "a.tgz", entry("data/x", kind, link="/etc/passwd"))
    with pytest.raises(KeyError, match="no member data/x"):
        archives.members(path, {"data/x": MEGABYTE})


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_bomb_beside_the_wanted_file_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes, compression: str
) -> None:
    """Also not as an overlong name of a member, which tarfile reads into memory at once."""
    monkeypatch.setattr(archives, "SLACK", MEGABYTE)
    harmless = tar(tmp_path / "b.tgz", entry("bomb", kind, 1024), entry("x", size=5), mode=f"w:{compression}")
    if kind == tarfile.REGTYPE:
        assert archives.members(harmless, {"x": 5}) == {"x": bytes(5)}
    path = tar(tmp_path / "a.tgz", entry("bomb", kind, 8 * MEGABYTE), entry("x", size=5), mode=f"w:{compression}")
    with pytest.raises(ValueError, match="the archive unpacks to more than"):
        archives.members(path, {"x": 5})


def test_countless_members_are_not_counted_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ENTRIES", 10)
    path = tar(tmp_path / "a.tgz", *(entry(f"{number}") for number in range(11)), entry("x", size=5))
    with pytest.raises(ValueError, match="more than 10 members"):
        archives.members(path, {"x": 5})


def test_a_debian_package_that_leads_in_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "a.deb").write_bytes(b"!<arch>\n" + f"{'control':<16}{0:<12}{0:<6}{0:<6}{644:<8}{-60:<10}`\n".encode())
    with pytest.raises(ValueError, match="negative size"):
        archives.members(tmp_path / "a.deb", {"x": 5})


def test_a_zip_that_climbs_out_of_its_folder_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "a.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("../../escape", "evil")
        zipped.writestr("data/x", "good")
    assert archives.members(path, {"data/x": 10}) == {"data/x": b"good"}
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<!DOCTYPE x [<!ENTITY e "e">]><x>&e;</x>'.encode("utf-16"), "entities"),
        (b'<x><row xmlns="%s"><c r="ZZZZZZZZ1"/></row></x>' % workbook.SPACE[1:-1].encode(), "beyond column 16384"),
    ],
)
def test_a_workbook_that_grows_without_bound(text: bytes, message: str) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("xl/worksheets/sheet1.xml", text)
    with pytest.raises(ValueError, match=message):
        workbook.sheet(file.getvalue(), 1)


class Hostile(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while True:
                try:
                    self.wfile.write(bytes(MEGABYTE))
                except OSError:  # the client has had enough
                    return
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"content")


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("place", ["file:///etc/passwd", "http://192.0.2.1/x", "ftp://192.0.2.1/x", "data:,x"])
def test_a_redirect_to_somewhere_unsafe_is_refused(site: str, tmp_path: Path, place: str) -> None:
    with pytest.raises(Unavailable, match=r"it redirects to .*; expected an https:// address|not allowed"):
        downloads.fetch(f"{site}/to/{place}", tmp_path / "cache", 1000)
    assert not list(tmp_path.rglob("*"))


def test_a_redirect_to_somewhere_safe_is_followed(site: str, tmp_path: Path) -> None:
    assert downloads.fetch(f"{site}/to//x", tmp_path, 1000).read_bytes() == b"content"


def test_the_internet_does_not_lead_into_this_machine() -> None:
    request = urllib.request.Request("https://example.org/data")
    for inside in ("http://127.0.0.1:8265/", "https://localhost/", "http://[::1]:5000/"):
        with pytest.raises(ValueError, match=r"it redirects to .*; expected an https:// address"):
            downloads._Redirects().redirect_request(request, None, 302, "Found", {}, inside)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://example.org/x", "ftp://127.0.0.1/x", "http://127.1.evil/x"]
)
def test_an_unsafe_address_is_not_asked(tmp_path: Path, url: str) -> None:
    with pytest.raises(Unavailable, match="expected an https:// address"):
        downloads.fetch(url, tmp_path, 1000)


def test_every_known_home_is_safe() -> None:
    homes = [known.home for known in IMAGES.values()] + [home for known in TABLES.values() for home in known.homes]
    assert homes and all(home.startswith("https://") for home in homes)


def test_a_download_without_an_end_is_ended(site: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"more than {3 * MEGABYTE} bytes"):
        downloads.fetch(f"{site}/endless", tmp_path, 3 * MEGABYTE)
    assert not list(tmp_path.iterdir())


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def huge_png(side: int) -> bytes:
    """A few bytes that say they are this large."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.delenv("MNVI_DATA_MIRROR", raising=False)
    (tmp_path / "test" / "cat").mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "test" / "cat" / "a.png")
    return Dataset(name="photos", kind="folder", test=str(tmp_path / "test"), size=8)


@pytest.mark.parametrize("side", [10_000, 50_000])  # a warning and an error of Pillow
def test_an_image_that_is_a_bomb_is_named_and_not_decoded(photos: Dataset, tmp_path: Path, side: int) -> None:
    (tmp_path / "test" / "cat" / "bomb.png").write_bytes(huge_png(side))
    with pytest.raises(StudyError, match=r"1 of 2 images cannot be read:\n.*bomb\.png: Image size .* exceeds limit"):
        find_folder(photos, tmp_path / "work")


def test_a_picture_that_is_a_program_is_not_run(
    photos: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow would hand PostScript to an interpreter, whatever the file is called."""
    ran, interpreter = tmp_path / "ran", tmp_path / "bin" / "gs"
    interpreter.parent.mkdir()
    interpreter.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    interpreter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{interpreter.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # looked for anew
    picture = tmp_path / "test" / "cat" / "b.jpg"
    picture.write_bytes(POSTSCRIPT)
    with pytest.raises(StudyError, match=r"b\.jpg: cannot identify image file"):
        find_folder(photos, tmp_path / "work")
    assert not ran.exists()
    with Image.open(picture) as image, pytest.raises(Exception, match="gs"):
        image.load()
    assert ran.exists(), "the interpreter does not run without our care either, so this shows nothing"
