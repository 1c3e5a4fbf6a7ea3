"""Markdown pages: whatever comes from a row of results is shown as text, never as markup."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from soctk.files import replacing
from soctk_evaluation.harness.names import in_order
from soctk_evaluation.harness.request import UsageError
from soctk_evaluation.harness.store import Row

ESCAPED = str.maketrans(
    {"\\": "\\\\", "&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "[": "\\[", "\n": " ", "\r": " "}
)


def escape(text: Any) -> str:
    """Return something as text, with what HTML, links and tables are made of escaped."""
    return str(text).translate(ESCAPED)


def line(*cells: str) -> str:
    """Return one line of a table, its cells escaped."""
    return f"| {' | '.join(map(escape, cells))} |"


def head(cells: Sequence[str], names: int = 1) -> list[str]:
    """Return the first two lines of a table, whose first columns are names and the others numbers."""
    return [line(*cells), line(*["---"] * names, *["---:"] * (len(cells) - names))]


def write_text(path: Path, text: str, newline: str = "\n") -> None:
    """Write a file in a folder that may not exist yet, whole or not at all; OSError where that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline=newline)
    print(f"wrote {path}", file=sys.stderr)


class Part(NamedTuple):
    """What stands between the comments "begin NAME" and "end NAME" of a Markdown file, and what around it."""

    path: Path
    before: str
    after: str
    newline: str

    @classmethod
    def of(cls, path: Path, name: str) -> Part:
        """Return a file's part of that name.

        Raises:
            OSError: the file cannot be read.
            UsageError: it has no such part, or is no text in UTF-8.
        """
        try:
            given = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: expected text in UTF-8 ({error})") from None
        whole = given.replace("\r\n", "\n")
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        before, found, rest = whole.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise UsageError(f"{path}: expected a part between {begin.strip()!r} and {end!r}")
        return cls(path, before + begin, end + after, "\r\n" if "\r\n" in given else "\n")

    def replace(self, text: str) -> None:
        """Write the part anew; OSError where that fails."""
        write_text(self.path, f"{self.before}\n{text}\n\n{self.after}", self.newline)


def versions_line(rows: Sequence[Row]) -> str:
    """Return the code versions of rows in words."""
    found = [f"{escape(code)} ({len(own)}, {_days(own)})" for code, own in by_code(rows).items()]
    return (
        f"Code versions of the rows, hashes of what determines them (how many, when): {', '.join(found) or 'unknown'}."
    )


def _days(rows: Sequence[Row]) -> str:
    days = sorted({str(row.get("started", ""))[:10] for row in rows})
    return escape(days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")


def code_notes(rows: Sequence[Row]) -> list[str]:
    """Say which code has measured the rows of a table, and which method's where there are several."""
    versions = by_code(rows)
    notes = [f"all rows are of code {code}" for code in versions]
    if len(versions) > 1:
        methods = {code: ", ".join(in_order({row["method"] for row in own})) for code, own in versions.items()}
        named = "; ".join(f"{code}: {names}" for code, names in methods.items())
        notes = [f"rows are of {len(versions)} code versions, not strictly comparable ({named})"]
    return notes + _own_code_notes(rows)


def _own_code_notes(rows: Sequence[Row]) -> list[str]:
    """Say which methods and tasks that are hashed by themselves have rows of several versions of their own code."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        for kind in ("method", "task"):
            if f"{kind}_code" in row["versions"]:
                found.setdefault((kind, str(row[kind])), {})[str(row["versions"][f"{kind}_code"])] = None
    return [
        f"the rows of {escape(name)} are of {len(versions)} versions of its own code ({escape(', '.join(versions))}), "
        "not strictly comparable"
        for (_, name), versions in found.items()
        if len(versions) > 1
    ]


def machines(rows: Sequence[Row]) -> str:
    """Return the machines that measured rows, in the order of the first, as text of a page."""
    return escape(" and ".join(dict.fromkeys(row["machine"] for row in rows)))


def by_code(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each version of the code, in the order of the first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "code" in row["versions"]:
            found.setdefault(str(row["versions"]["code"]), []).append(row)
    return found
