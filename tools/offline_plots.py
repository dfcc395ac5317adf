"""Lets `dvc plots show` work without the internet: writes a page template that contains the drawing library.

    python -m tools.offline_plots

DVC's own template loads Vega from a server. This one holds the copy that comes with vl-convert. `make setup` writes it
to .dvc/tmp and names it in .dvc/config.local, neither of which git keeps.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vl_convert

from tools.writing import write

TEMPLATE = Path("tmp") / "plots.html"  # below .dvc, as DVC reads it
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{refresh_tag}
<title>Plots of the study</title>
<style>body {{ font: 16px sans-serif; }} table {{ border-spacing: 15px; }}</style>
<script>{library}</script>
</head>
<body>
{plot_divs}
</body>
</html>
"""


def template() -> str:
    """The page, with DVC's own marks for what it fills in."""
    library = vl_convert.javascript_bundle().replace("</script", "<\\/script")
    return PAGE.format(library=library, refresh_tag="{refresh_tag}", plot_divs="{plot_divs}")


def main() -> None:
    if not Path(".dvc").is_dir():
        sys.exit("error: there is no folder .dvc here; run this in the project's folder")
    write(Path(".dvc") / TEMPLATE, template())
    setting = ["config", "--local", "plots.html_template", str(TEMPLATE)]
    subprocess.run([sys.executable, "-m", "dvc", *setting], check=True)


if __name__ == "__main__":
    main()
