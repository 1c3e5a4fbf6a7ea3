"""The page of an experiment: a head that says where its rows are, text, a picture, tables, code versions."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from soctk_evaluation.harness.experiment import STORES, Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import escape, machines, versions_line, write_text

WIDTH = 120
"""Of a line."""
EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Page:
    """What stands on the page of an experiment beside its tables. Names in braces in the texts are fields.

    Attributes:
        title: the heading.
        command: what measures the rows.
        text: what the numbers are, in Markdown.
        picture: what the picture shows.
        own: what is said of the project's rows, and left out where a page is of other ones.
    """

    title: str
    command: str
    text: str
    picture: str
    own: str = ""

    def write(
        self,
        results: Results,
        files: Files,
        tables: str,
        fields: Mapping[str, Any] = EMPTY,
        shown: Sequence[Row] = (),
    ) -> None:
        """Write the page where one is asked for and there are rows; OSError where that fails.

        Args:
            results: of the experiment.
            files: asked for; the page shows the picture that is one of them.
            tables: in Markdown.
            fields: what stands for the names in braces.
            shown: the rows in the tables; by default all that were measured.
        """
        shown = shown or results.measured
        if "markdown" not in files or not shown:
            return
        where = f"`{escape(results.store.as_posix())}`, measured by `{self.command.format(**fields)}`"
        paragraphs = [
            f"# {self.title.format(**fields)}",
            _fill(f"The rows are those of {where} on {machines(shown)}."),
            *map(_fill, self.text.format(**fields).strip().split("\n\n")),
            _fill(self.own.strip()) if results.store.resolve() in _project_stores(shown) else "",
            self._picture(files["markdown"], files.get("figure")),
            tables.strip("\n"),
            versions_line(shown),
        ]
        write_text(files["markdown"], "\n\n".join(filter(None, paragraphs)) + "\n")

    def _picture(self, page: Path, picture: Path | None) -> str:
        if picture is None:
            return ""
        address = Path(os.path.relpath(picture.absolute(), page.absolute().parent)).as_posix()
        return f"![{self.picture}](<{address}>)" if " " in address else f"![{self.picture}]({address})"


def _fill(paragraph: str) -> str:
    """Return a paragraph in lines of at most `WIDTH` letters, a list as it is."""
    if paragraph.startswith("- "):
        return paragraph
    return textwrap.fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False)


def _project_stores(rows: Sequence[Row]) -> set[Path]:
    return {(STORES / f"{row['experiment']}.jsonl").resolve() for row in rows}
