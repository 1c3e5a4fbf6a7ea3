"""The table of entries: on the terminal, and as one HTML page that is sorted and filtered in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from soctk_evaluation.benchmark.results import Board, Line
from soctk_evaluation.benchmark.scoring import FLOOR
from soctk_evaluation.benchmark.versions import TRACKS
from soctk_evaluation.tables.html import page

ABSENT = "–"
FILE_WIDTH = 160


def print_board(board: Board) -> None:
    """Print scores to the terminal, then by task."""
    out = Console()
    if not out.is_terminal:
        out.width = max(out.width, FILE_WIDTH)
    title = f"Benchmark {board.label}: regret over the constant decision's, {len(board.seeds)} seeds"
    table = Table(title=Text(title), box=box.SIMPLE_HEAD)
    for heading in ("entry", "track", "score", "95 %", "failed", "fit s", "decide ms"):
        table.add_column(heading, justify="left" if heading in ("entry", "track") else "right")
    for line in board.lines:
        cells = (line.name, line.track, number(line.summary.score), interval(line), failed(line))
        table.add_row(*map(Text, (*cells, duration(line.fit_seconds), duration(line.decide_ms))))
    out.print(table)
    tasks = Table(box=box.SIMPLE_HEAD)
    tasks.add_column("task")
    for line in board.lines:
        tasks.add_column(Text(line.name), justify="right")
    for case in board.cases:
        values = (number(line.summary.tasks.get(case)) for line in board.lines)
        tasks.add_row(*map(Text, (f"{case[0]} {case[1]}", *values)))
    out.print(tasks)
    for line in board.lines:
        for note in line.notes:
            out.print(f"  {note}", markup=False, highlight=False)


def number(value: float | None) -> str:
    """Return a score to two or three digits."""
    if value is None:
        return ABSENT
    if value <= 1.001 * FLOOR:
        return "0"
    return f"{value:.3f}" if 0.01 <= value < 100 else f"{value:.1e}"


def duration(value: float | None) -> str:
    """Return seconds or milliseconds to three digits."""
    if value is None:
        return ABSENT
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def interval(line: Line) -> str:
    """Return the ends of a score's interval."""
    if line.summary.low is None:
        return ABSENT
    return f"{number(line.summary.low)} to {number(line.summary.high)}"


def failed(line: Line) -> str:
    """Return how many decisions were scored at the centre."""
    return ABSENT if line.trivial else f"{line.failed} of {line.decisions}"


def to_html(boards: Sequence[Board], skipped: int = 0) -> str:
    """Return boards as one HTML page that needs no other file and no network; all texts are escaped."""
    shown = [
        {
            "board": board,
            "lines": [_cells(line, board) for line in board.lines],
            "notes": [f"{line.name}, {note}" for line in board.lines for note in line.notes],
        }
        for board in boards
    ]
    template = "benchmark/assets/benchmark.html.jinja"
    return page(template, boards=shown, tracks=TRACKS, skipped=skipped, counted=_counted)


def _counted(things: Sequence[Any], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _cells(line: Line, board: Board) -> dict[str, Any]:
    """Return a line as (text, number to sort by) pairs after its texts."""
    numbers = [
        (number(line.summary.score), line.summary.score),
        (interval(line), line.summary.high),
        *((number(line.summary.tasks.get(case)), line.summary.tasks.get(case)) for case in board.cases),
        (failed(line), None if line.trivial else line.failed),
        (duration(line.fit_seconds), line.fit_seconds),
        (duration(line.decide_ms), line.decide_ms),
    ]
    return {"line": line, "numbers": numbers}
