"""The site builds strictly and offline, and shows what it should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mnvi
from tools.website import gallery
from tools.website.docstrings import markdown

ROOT = Path(__file__).parent.parent
# What a browser loads without being asked. Links that a reader clicks may lead anywhere.
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*(stylesheet|preconnect)[^>]*https?://"""
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A folder with what the examples draw and print when they train for an epoch or two."""
    folder = tmp_path_factory.mktemp("gallery")
    for name in gallery.SHOWN:
        gallery.run(name, folder, quick=True)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    unreachable = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    environment = {**os.environ, **unreachable, "NO_MKDOCS_2_WARNING": "1", "MNVI_GALLERY": str(drawn)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.SHOWN)
def test_example_prints_and_draws(name, drawn):
    assert (drawn / f"{name}.txt").read_text().strip()
    assert (drawn / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_gallery_shows_every_example():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(gallery.SHOWN)


@pytest.mark.slow
def test_a_browser_fetches_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 15
    assert not [page.name for page in pages if LOADED.search(page.read_text())]
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(url\(|@import)\s*[\"']?https?://", styles)


@pytest.mark.slow
def test_every_equation_is_mathml(site):
    pages = [page.read_text() for page in sorted(site.rglob("*.html"))]
    assert not any("arithmatex" in page for page in pages)
    assert "<math" in (site / "concepts.html").read_text() and "<math" in (site / "reference.html").read_text()
    assert not any(":math:" in page for page in pages)


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    page = (site / "reference.html").read_text()
    functions = [name for name in mnvi.__all__ if hasattr(getattr(mnvi, name), "__module__")]
    assert len(functions) > 40
    assert not [name for name in functions if f'id="mnvi.{name}"' not in page]


@pytest.mark.slow
def test_the_first_page_is_the_readme_with_links_that_work(site):
    page = (site / "index.html").read_text()
    assert 'href="guide.html"' in page and 'href="docs/' not in page


def test_docstrings_become_markdown():
    text = "See :func:`mnvi.convert` and :func:`other`, :math:`x^2`.\n\n.. math::\n    a &= b, \\\\\n    c &= d\n\n"
    text += "Example:\n    >>> 1"
    found = markdown(text, {"mnvi.convert"})
    assert found.startswith("See [`mnvi.convert`][mnvi.convert] and `other`, $x^2$.")
    assert "$$\na &= b, \\\\\nc &= d\n$$" in found and "\nExamples:\n    >>> 1" in found


def test_the_readme_is_short_and_shows_a_picture_that_is_there():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    (picture,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert (ROOT / picture).is_file()


def test_the_links_of_the_readme_lead_somewhere():
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert len(targets) > 20
    assert not [target for target in targets if not (ROOT / target).exists()]


@pytest.mark.slow
def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x, y = torch.randn(96, 4), torch.randint(3, (96,))
    net = torch.nn.Sequential(torch.nn.Linear(4, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
    names = {"net": net, "images": x[:20], "train": (x, y), "validation": (x, y), "test": (x, y)}
    names |= {"table": x.numpy(), "prices": 1e5 * x[:, 0].numpy(), "new_rows": x[:7].numpy()}
    monkeypatch.setattr(mnvi, "optimize_for_inference", lambda model, **kwargs: model)  # its own tests compile
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    assert names["prediction"].refer.sum() == 2
    assert names["std"].shape == names["upper"].shape == (7,)
    assert names["out"].var.shape == (20, 3) and (tmp_path / "model.onnx").is_file()
