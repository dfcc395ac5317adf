"""The site builds strictly and offline, and shows what it should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What a browser loads without being asked. Links that a reader clicks may lead anywhere.
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*(stylesheet|preconnect)[^>]*https?://"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    unreachable = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
    environment = {**os.environ, **unreachable, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


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
    import mnvi

    page = (site / "reference.html").read_text()
    functions = [name for name in mnvi.__all__ if hasattr(getattr(mnvi, name), "__module__")]
    assert len(functions) > 40
    assert not [name for name in functions if f'id="mnvi.{name}"' not in page]


@pytest.mark.slow
def test_the_first_page_is_the_readme_with_links_that_work(site):
    page = (site / "index.html").read_text()
    assert 'href="guide.html"' in page and 'href="docs/' not in page


def test_docstrings_become_markdown():
    from tools.website.docstrings import markdown

    text = "See :func:`mnvi.convert` and :func:`other`, :math:`x^2`.\n\n.. math::\n    a &= b, \\\\\n    c &= d\n\n"
    text += "Example:\n    >>> 1"
    found = markdown(text, {"mnvi.convert"})
    assert found.startswith("See [`mnvi.convert`][mnvi.convert] and `other`, $x^2$.")
    assert "$$\na &= b, \\\\\nc &= d\n$$" in found and "\nExamples:\n    >>> 1" in found
