"""Draw the pictures of docs/notebooks.md, those that the notebooks end with: python docs/images/notebooks.py"""

from __future__ import annotations

import runpy
import tempfile
from contextlib import chdir
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parent.parent


def draw(folder: Path) -> list[Path]:
    """Run the notebooks and write their last pictures into a folder; return the files."""
    mpl.use("agg")
    written = []
    for notebook in sorted((DOCS / "notebooks").glob("*.py")):
        with tempfile.TemporaryDirectory() as place, chdir(place):
            figure = runpy.run_path(str(notebook))["figure"]
        written.append(folder / f"notebook-{notebook.stem.replace('_', '-')}.svg")
        with mpl.rc_context({"svg.hashsalt": "soctk"}):  # the same file for the same picture
            figure.savefig(written[-1], metadata={"Date": None})
        plt.close(figure)
    return written


if __name__ == "__main__":
    print(*draw(Path(__file__).parent), sep="\n")
