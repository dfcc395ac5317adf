"""Runs the examples and makes the gallery page of what they print and draw.

    python -m tools.website.gallery                         all of examples/ into build/gallery: three minutes
    python -m tools.website.gallery regression_bands --out docs/pictures    the picture of the README
    python -m tools.website.gallery --quick                 a few training steps each: to try the scripts

An example is a script that anyone can run alone. It prints a few lines and writes ``<its name>.png`` to the folder it
runs in. If ``MNVI_QUICK`` is set it trains for an epoch or two.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import runpy
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
OUTPUT = ROOT / "build" / "gallery"
# The order of the page.
SHOWN = (
    "regression_bands",
    "two_moons",
    "mnist_rejection",
    "foreign_digits",
    "own_photos",
    "table_sklearn",
    "time_series",
    "tuning",
)


def run(name: str, folder: Path, *, quick: bool = False) -> None:
    """Runs one example; leaves ``<name>.png`` and ``<name>.txt``, what it printed, in the folder."""
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    printed = io.StringIO()
    before = os.environ.pop("MNVI_QUICK", None)
    try:
        if quick:
            os.environ["MNVI_QUICK"] = "1"
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        plt.close("all")
        os.environ.pop("MNVI_QUICK", None)
        if before is not None:
            os.environ["MNVI_QUICK"] = before
    (folder / f"{name}.txt").write_text(printed.getvalue())


def page(folder: Path) -> str:
    """The gallery in Markdown. Pictures and printed lines come from ``folder``, where :func:`run` has put them."""
    parts = [
        "# Gallery\n",
        "Each picture is what the script below it draws; `make docs` has run them all. They run alone, too: "
        "`python examples/two_moons.py`. scikit-learn and matplotlib must be installed.\n",
    ]
    for name in SHOWN:
        source = (EXAMPLES / f"{name}.py").read_text()
        text, code = source.removeprefix('"""').split('"""\n', 1)
        title, _, rest = text.strip().partition("\n")
        parts += [
            f"## {title.rstrip('.')}\n",
            rest.strip("\n") + "\n",
            f"![{title.rstrip('.')}](gallery/{name}.png)\n",
            f"```text\n{(folder / f'{name}.txt').read_text().rstrip()}\n```\n",
            f'??? example "examples/{name}.py"\n',
            "    ```python",
            *("    " + line if line else "" for line in code.strip().splitlines()),
            "    ```\n",
        ]
    parts += [
        "[Photographs and a pretrained network](photos.md) compares methods on photographs of ImageNet.\n",
    ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=SHOWN, metavar="name", help="examples to run (default: all)")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="folder for pictures and texts (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="train for an epoch or two only")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(SHOWN))
    if unknown:
        parser.error(f"no such example: {', '.join(unknown)}; there are {', '.join(SHOWN)}")
    for name in arguments.names:
        print(f"examples/{name}.py", flush=True)
        run(name, arguments.out, quick=arguments.quick)


if __name__ == "__main__":
    main()
