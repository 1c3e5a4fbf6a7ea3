"""An experiment: the cells it has, how one is measured, and how its rows are shown."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soctk_evaluation.harness.cell import Cell
from soctk_evaluation.harness.key import key_of, versions_of
from soctk_evaluation.harness.request import Run, Sweep
from soctk_evaluation.harness.store import Contents, ResultsStore, Row, is_measured

Files = Mapping[str, Path]
"""Files to write by kind: "markdown", "figure", "html", "csv", "readme", "overview"."""


STORES = Path("evaluation/results")
"""Where the project keeps the rows of its experiments, a store each, named like the experiment."""


@dataclass(frozen=True)
class Results(Contents):
    """What a store holds of one experiment.

    Attributes:
        cells: what was asked for; none where a store is shown as it is.
        store: the results file.
        history: `rows` and those that newer ones of the same cells have taken the place of, oldest first.
    """

    cells: Sequence[Cell] = ()
    store: Path = Path()
    history: Sequence[Row] = ()

    @property
    def measured(self) -> list[Row]:
        """The rows with a result."""
        return [row for row in self.rows if is_measured(row)]

    @property
    def folder(self) -> Path:
        """Where the experiment keeps files of its own, beside the store."""
        return ResultsStore(self.store).folder


@dataclass(frozen=True)
class Experiment:
    """An experiment as the command line, the sweep and the reports know it.

    Attributes:
        name: of the command, and of the rows.
        cells: the cells that a request (an instance of `options`) asks for, long ones first; `UsageError` where it
            makes no sense.
        run: measures a cell; its second argument is a folder for files of its own. Importable by name, since workers
            run it. A "status" among the measurements says what went wrong.
        measured: the measurements in a row, numbers (null in the row of a cell without them), `text` aside.
        write: shows results on the terminal and writes the files asked for.
        text: the measurements that are texts.
        needed: measurements that a row cannot be shown without, times above zero; "config.NAME" is one of its
            configuration, a number unless `text` has it too.
        kinds: the files that `write` can write.
        pages: the files of the project that are made of the rows in `STORES`, by kind, relative to its root.
        code: modules and packages that determine a cell's result beside the file of `run` and what all experiments
            share; see `soctk_evaluation.harness.key`.
        together: cells for which this is equal are measured one after the other, and stored all or none.
        options: what the command takes.
    """

    name: str
    cells: Callable[[Any], list[Cell]]
    run: Callable[[Cell, Path], Mapping[str, Any]]
    measured: tuple[str, ...]
    write: Callable[[Results, Files], None]
    text: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("markdown", "figure")
    pages: Mapping[str, str] = field(default_factory=dict)
    code: Callable[[Cell], tuple[str, ...]] = lambda cell: ()
    together: Callable[[Cell], Hashable] = lambda cell: cell
    options: type[Run] = Sweep

    def versions(self, cell: Cell) -> dict[str, str]:
        """Return the versions of everything that determines a cell's result."""
        return versions_of(cell.method, cell.task, (self.run.__module__, *self.code(cell)))

    def key(self, cell: Cell) -> str:
        """Return the hash of everything that determines a cell's result."""
        return key_of(cell, self.versions(cell))

    def problem_of(self, row: Row) -> str | None:
        """Return why a row cannot be shown, None where it can or is another experiment's."""
        if row["experiment"] != self.name:
            return None
        flat = row | {f"config.{name}": value for name, value in row["config"].items()}
        for name in self.text:
            if not isinstance(flat.get(name), str | None):
                return f"field {name!r}: expected a text or null, got {type(flat[name]).__name__}"
        for name in {*self.measured, *self.needed} - set(self.text):
            value = flat.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                return f"field {name!r}: expected a number or null, got {type(value).__name__}"
        for name in self.needed if is_measured(row) else ():
            if flat.get(name) is None:
                return f"field {name!r} is missing"
            if name.endswith("_ms") and flat[name] <= 0:
                return f"field {name!r}: expected a time above zero, got {flat[name]}"
        return None

    def results(self, contents: Contents, cells: Sequence[Cell], store: Path) -> Results:
        """Return the newest valid row of every cell of this experiment, measurements that a row lacks as null."""

        def own(rows: Sequence[Row]) -> list[Row]:
            return [dict.fromkeys(self.measured) | row for row in rows if row["experiment"] == self.name]

        history = sorted(contents.rows, key=lambda row: row["started"])
        return Results(own(contents.newest()), contents.bad, cells, store, own(history))


def pages(page: str, figure: str) -> dict[str, str]:
    """Return the files of an experiment with a page in docs/ and a picture beside it, for `Experiment.pages`."""
    return {"markdown": f"docs/{page}", "figure": f"docs/images/{figure}"}
