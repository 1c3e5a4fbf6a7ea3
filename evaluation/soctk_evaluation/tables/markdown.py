"""Markdown pages: whatever comes from a row of results is shown as text, never as markup."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "[": "\\[", "\n": " ", "\r": " "})


def escape(text: Any) -> str:
    """Return something as text, with what HTML, links and tables are made of escaped."""
    return str(text).translate(ESCAPED)


def line(*cells: str) -> str:
    """Return one line of a table, its cells escaped."""
    return f"| {' | '.join(map(escape, cells))} |"


def head(cells: Sequence[str], names: int = 1) -> list[str]:
    """Return the first two lines of a table, whose first columns are names and the others numbers."""
    return [line(*cells), line(*["---"] * names, *["---:"] * (len(cells) - names))]


def write_text(path: Path, text: str) -> None:
    """Write a file in a folder that may not exist yet; OSError where that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
