"""Hooks of MkDocs: pages that lie outside docs/ or are generated, links that leave it, equations as MathML.

README.md becomes the first page, so that its text is written once. Links to files of the repository that are no page,
such as ``../params.yaml``, keep their text and lose their target.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from tools.website import gallery, reference

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)((?:#[^)]*)?)\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=moved((ROOT / source).read_text())))
    files.append(File.generated(config, "reference.md", content=reference.page()))
    folder = Path(os.environ.get("MNVI_GALLERY", gallery.OUTPUT))
    missing = [name for name in gallery.SHOWN if not (folder / f"{name}.txt").exists()]
    if missing:
        raise PluginError(f"{folder} lacks {', '.join(missing)}; run `python -m tools.website.gallery` first")
    files.append(File.generated(config, "gallery.md", content=gallery.page(folder)))
    for picture in sorted(folder.glob("*.png")):
        files.append(File.generated(config, f"gallery/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return within_site(markdown, PurePosixPath(page.file.src_uri).parent)


def on_page_content(html: str, **_: Any) -> str:
    return EQUATION.sub(as_mathml, html)


def moved(text: str) -> str:
    """Text of the top folder as if it lay in docs/: ``docs/guide.md`` becomes ``guide.md``, the rest ``../rest``."""

    def target(path: str) -> str:
        if "://" in path:
            return path
        return path.removeprefix("docs/") if path.startswith("docs/") else f"../{path}"

    text = LINK.sub(lambda found: f"[{found[1]}]({target(found[2])}{found[3]})", text)
    return PICTURE.sub(lambda found: f"![{found[1]}]({target(found[2])})", text)


def within_site(text: str, folder: PurePosixPath) -> str:
    """Turns links to README.md and its like into links to their pages, and other links out of docs/ into text."""
    up = "../" * len(folder.parts)

    def rewritten(found: re.Match[str]) -> str:
        outside = re.fullmatch(rf"{re.escape(up)}\.\./(.+)", found[2])
        if outside is None:
            return found[0]
        if not (ROOT / outside[1]).exists():
            raise FileNotFoundError(f"a page links to {found[2]}, which does not exist; mend the link")
        page = PAGES.get(outside[1])
        return f"[{found[1]}]({up}{page}{found[3]})" if page else found[1]

    return LINK.sub(rewritten, text)


def as_mathml(found: re.Match[str]) -> str:
    return convert(prepared(html.unescape(found[3]).strip()), display="inline" if found[2] == "(" else "block")


def prepared(latex: str) -> str:
    """Equations of several lines get the environment that LaTeX wants around ``&`` and ``\\\\``."""
    latex = re.sub(r"\\log (?=[a-zA-Z])", r"\\log\\,", latex)  # MathML has no space after a function
    return rf"\begin{{aligned}}{latex}\end{{aligned}}" if "&" in latex and r"\begin" not in latex else latex
