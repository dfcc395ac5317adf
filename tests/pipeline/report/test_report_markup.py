"""The page shows every input as text; names that are markup or paths are refused earlier."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure

from pipeline import params
from pipeline.errors import StudyError
from pipeline.params.reading import read
from pipeline.report import page
from pipeline.report.drawing import Drawing, Drawn
from pipeline.report.provenance import DataSource

ROOT = Path(__file__).parents[3]
MARKUP = """</code><script>alert(1)</script><img src=x onerror='alert(2)'>" onload="alert(3)"""


class Seen(html.parser.HTMLParser):
    """What a browser would take for a tag, an attribute or text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def told(tmp_path: Path) -> str:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"picture")
    study = params.load(ROOT / "params.yaml").study
    vars(study).update(name=MARKUP, preset=MARKUP)  # the settings would refuse both
    data = [DataSource(MARKUP, MARKUP, MARKUP, None), DataSource(MARKUP, None, None, MARKUP)]
    figure = Drawn(Drawing(MARKUP, "training", MARKUP, Figure), picture, picture)
    return page.render(page.Content(study, MARKUP, data, [], [], [], [figure]))


def test_markup_becomes_text(tmp_path: Path) -> None:
    seen = Seen(told(tmp_path))
    assert "".join(seen.words).count(MARKUP) >= 9
    assert not {"script", "iframe", "object", "embed"} & seen.tags
    assert not [key for key, _ in seen.attributes if key.startswith("on")]
    assert all((value or "").startswith("data:") for key, value in seen.attributes if key in ("src", "srcset"))


def test_a_browser_is_told_to_run_and_fetch_nothing(tmp_path: Path) -> None:
    policies = [value for key, value in Seen(told(tmp_path)).attributes if key == "content"]
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in policies


@pytest.mark.parametrize("name", [MARKUP, "../../elsewhere", "/etc", "a b", ""])
@pytest.mark.parametrize("section", ["datasets", "experiments"])
def test_a_name_that_is_markup_or_a_path_is_refused(section: str, name: str) -> None:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw[section][name] = next(iter(raw[section].values()))
    with pytest.raises(StudyError, match="is not a name of letters, digits, - and _"):
        read(raw)
