"""Writes the recorded figures, and the model's predictions from them, between the marks of docs/scaling.md.

python -m benchmarks.scaling
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.scaling import ddp, launches, loading, million, model, setting, steps, trials
from benchmarks.tables import replace_between_marks

PAGE = setting.PROJECT / "docs" / "scaling.md"


def expected(document: dict) -> str:
    return model.markdown(model.methods(document), model.Inputs())


PARTS: dict[str, tuple[Callable[[dict], str], Path]] = {
    "ddp": (ddp.markdown, ddp.RESULTS),
    "steps": (steps.markdown, steps.RESULTS),
    "launches": (launches.markdown, launches.RESULTS),
    "model": (expected, steps.RESULTS),
    "loading": (loading.markdown, loading.RESULTS),
    "million": (million.markdown, million.RESULTS),
    "trials": (trials.markdown, trials.RESULTS),
}


def rendered() -> dict[str, str]:
    """The text for every mark."""
    return {
        mark: write(json.loads(path.read_text())) if path.exists() else "Not measured yet."
        for mark, (write, path) in PARTS.items()
    }


def main() -> None:
    for mark, text in rendered().items():
        replace_between_marks(PAGE, mark, text)


if __name__ == "__main__":
    main()
