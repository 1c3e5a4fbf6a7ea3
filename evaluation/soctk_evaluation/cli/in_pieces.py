"""Decides a table piece by piece, in this process or on a cluster.

All pieces are read once before, to see that they can be decided.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from soctk.learn.progress import Progress
from soctk.tables.errors import TableError
from soctk.tables.table import Table
from soctk_evaluation.cli.feasible import set_file
from soctk_evaluation.cli.log_commands import Decide
from soctk_evaluation.cli.pieces import Pieces, digest, job_key
from soctk_evaluation.cli.plan import Tally
from soctk_evaluation.cli.planner import Planner
from soctk_evaluation.cli.slices import Slice, files_of, pieces_of

ROUNDS = 3
"""So often the pieces that are missing are decided, before that is an error."""

Do = Callable[[Planner, int, Any], Any]


class Workers(Protocol):
    """What carries out the steps of a plan."""

    def each(self, do: Do, items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the number and `do(planner, number, item)` of each numbered item, in any order."""
        ...


class Here:
    """Carries out one step after the other in this process."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    def each(self, do: Do, items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the number and `do(planner, number, item)` of each numbered item, in order."""
        for number, item in items:
            yield number, do(self.planner, number, item)


def decide_in_pieces(planner: Planner, contexts: Path, output: Path, workers: Workers) -> Tally | None:
    """Write the plan of a table, going on from the pieces that are there; return None after Ctrl-C.

    Args:
        planner: what decides.
        contexts: a .csv or .parquet file, or a folder of .parquet files; of the latter two alone on a cluster.
        output: a .csv or .parquet file, or a folder's name.
        workers: what carries it out.

    Raises:
        UsageError, TableError: contexts that cannot be decided.
        OSError: a piece that cannot be decided or written, or another command that is writing the same plan.
    """
    planner.check_wanted(contexts)
    command = planner.command
    source = partial(pieces_of, contexts, command.rows_at_once, planner.reads)
    try:
        lengths = _collect(workers.each(check_piece, enumerate(source())))
        if not sum(lengths):
            raise TableError(f"{contexts}: expected at least one context, got none")
        pieces = Pieces(output, _key(command, contexts, output, workers), lengths)
    except KeyboardInterrupt:
        say("interrupted before anything was decided")
        return None
    with pieces.held() as others:
        if others:
            say("what was kept beside the output is of other files or options: starting anew")
        elif pieces.done:
            say(f"going on: {pieces.done} of {len(lengths)} pieces were decided before")
        try:
            _decide_missing(pieces, source, workers)
        except KeyboardInterrupt:
            say(f"interrupted: {pieces.done} of {len(lengths)} pieces are decided; the same command goes on from there")
            return None
        return pieces.join()


def check_piece(planner: Planner, number: int, piece: Slice | Table) -> int:
    """Return the rows of a piece that can be decided."""
    table = _table(planner, piece)
    planner.check(table)
    return len(table)


def decide_piece(planner: Planner, number: int, piece: Slice | Table, *, pieces: Pieces) -> Tally:
    """Decide a piece and keep it, unless it has been decided meanwhile."""
    tally = pieces.tally(number)
    if tally is None:
        plan, tally = planner.decide(_table(planner, piece))
        pieces.put(number, plan, tally)
    return tally


def digest_file(planner: Planner, number: int, path: Path) -> str:
    """Return what the contents of a file are told by."""
    return digest(path)


def _decide_missing(pieces: Pieces, source: Callable[[], Iterable[Slice | Table]], workers: Workers) -> None:
    lengths = pieces.lengths
    with Progress(sum(lengths), enabled=True, name="decide", figure="largest gap", unit="rows") as progress:
        missing, largest = set(pieces.missing), 0.0
        progress.advance(0.0, sum(length for number, length in enumerate(lengths) if number not in missing))
        # A worker that dies between the two files of a piece, or that sees another folder, shows only afterwards.
        for _ in range(ROUNDS):
            if not missing:
                return
            items = ((number, piece) for number, piece in enumerate(source()) if number in missing)
            for number, tally in workers.each(partial(decide_piece, pieces=pieces), items):
                largest = max(largest, tally.largest)
                progress.advance(largest, lengths[number])
            missing = set(pieces.missing)


def _collect(found: Iterable[tuple[int, Any]]) -> list[Any]:
    """Return the results in the order of their numbers."""
    return [result for _, result in sorted(found, key=lambda pair: pair[0])]


def _table(planner: Planner, piece: Slice | Table) -> Table:
    return piece.read(planner.reads) if isinstance(piece, Slice) else piece


def _key(command: Decide, contexts: Path, output: Path, workers: Workers) -> str:
    """Return what tells a job: all that its plan depends on, wherever its files are."""
    files = files_of(contexts)
    names = [path.relative_to(contexts).as_posix() for path in files] if contexts.is_dir() else contexts.suffix
    options = asdict(command) | {"output": output.suffix, "model": None, "contexts": names, "scheduler": None}
    own = own_files(command)
    if len(own) > 1:
        options["feasible"]["set"] = own[1].suffix
    return job_key(options, [*map(digest, own), *_collect(workers.each(digest_file, enumerate(files)))])


def own_files(command: Decide) -> list[Path]:
    """Return the model's file, and the set's where it is from one."""
    found = set_file(command.feasible)
    return [command.model] + ([] if found is None else [found])


def say(text: str) -> None:
    """Tell the user something on the way."""
    print(f"soctk: {text}", file=sys.stderr)
