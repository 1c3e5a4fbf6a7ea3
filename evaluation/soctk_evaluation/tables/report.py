"""Show tables: on the terminal, as Markdown, LaTeX, CSV and a sortable HTML page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from soctk_evaluation.tables import markdown
from soctk_evaluation.tables.html import page
from soctk_evaluation.tables.paired import INTERVAL, Comparison
from soctk_evaluation.tables.summary import Line, Regret, Table

ABSENT = "–"
FORMATS = {"params": ".0f", "fit_seconds": ".1f", "decide_ms": ".2f"}


@dataclass(frozen=True)
class Entry:
    """One entry of a rendered table: its text, its number for sorting, and whether it is the best."""

    text: str
    value: float | None = None
    bold: bool = False


@dataclass(frozen=True)
class Rendered:
    """A table as text: a heading, sections of rows (learned, trivial, the solver's own regret), and notes."""

    title: str
    header: list[str]
    sections: list[list[list[Entry]]]
    notes: list[str]


def render(table: Table) -> Rendered:
    """Return a table as text, the best learned entries marked."""
    best = [table.best(column) for column in range(len(table.tasks))]
    overall = table.best()
    columns = [name for name in table.measure.columns if name != "mean"]
    learned, trivial = (
        [_entries(line, columns, [line.method in names for names in best], line.method in overall) for line in lines]
        for lines in (table.learned, table.trivial)  # no trivial method is among the best
    )
    solver = [_solver_entries(name, values, len(columns)) for name, values in table.solver.items()]
    header = ["method", *table.tasks, *table.measure.columns.values()]
    return Rendered(table.title, header, [part for part in (learned, trivial, solver) if part], table.notes)


def render_paired(table: Table) -> Rendered | None:
    """Return the learned methods compared over (task, seed) cells as text; None where there are not several."""
    if not table.paired:
        return None
    reference, shared = table.measure.reference, table.paired[0].shared
    rows = [_paired_entries(one) for one in table.paired]
    header = ["method", "cells", f"least of all, of {shared}", "median", f"÷ {reference}", f"below {reference}"]
    notes = [
        "cells are (task, seed); least of all: cells that most methods have in which none is below",
        f"÷ {reference}: geometric mean of the ratio over tasks, with an interval of {INTERVAL}",
        f"values below {table.floor:.0e} count as that",
    ]
    return Rendered(f"{table.title}: compared in pairs", header, [rows], notes)


def _paired_entries(one: Comparison) -> list[Entry]:
    ratio = one.ratio
    return [
        Entry(one.method),
        Entry(str(one.cells), one.cells),
        Entry(str(one.wins), one.wins),
        Entry(small(one.median), one.median),
        Entry(ABSENT if ratio is None else ratio.text, None if ratio is None else ratio.mean),
        Entry(ABSENT if ratio is None else f"{ratio.wins} of {ratio.cells}", None if ratio is None else ratio.wins),
    ]


def render_all(tables: Sequence[Table]) -> list[Rendered]:
    """Return each table as text, its paired comparisons after it."""
    found = [part for table in tables for part in (render(table), render_paired(table))]
    return [part for part in found if part is not None]


def _entries(line: Line, columns: Sequence[str], best: Sequence[bool], best_mean: bool) -> list[Entry]:
    regrets = [regret_entry(regret, bold) for regret, bold in zip(line.regrets, best, strict=True)]
    others = [Entry(_plain(name, line.numbers[name]), line.numbers[name]) for name in columns]
    return [Entry(line.method), *regrets, Entry(small(line.mean), line.mean, best_mean), *others]


def _solver_entries(name: str, values: list[float | None], others: int) -> list[Entry]:
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if len(known) == len(values) else None
    numbers = [Entry(small(value), value) for value in (*values, mean)]
    return [Entry(f"solver's own regret ({name})"), *numbers, *[Entry(ABSENT)] * others]


def regret_entry(regret: Regret, bold: bool = False) -> Entry:
    """Return a score with its standard error, and how many seeds there are where some are missing."""
    if regret.mean is None:
        return Entry("missing")
    text = small(regret.mean) + ("" if regret.stderr is None else f" ± {small(regret.stderr)}")
    if not regret.complete:
        text += f" ({regret.seeds} of {regret.expected} seeds)"
    return Entry(text, regret.mean, bold)


def small(value: float | None) -> str:
    """Return two or three significant digits, without exponent where that is short."""
    if value is None:
        return ABSENT
    if not 0.001 <= abs(value) < 1e6:
        return f"{value:.1e}" if value else "0"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _plain(name: str, value: float | None) -> str:
    if value is None:
        return ABSENT
    return format(value, FORMATS[name]) if name in FORMATS else small(value)


FILE_WIDTH = 200
"""Columns of a table that does not go to a terminal, whose width would say nothing."""


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print tables to the terminal, without the standard errors, which would not fit beside six tasks."""
    out = console or Console()
    if not out.is_terminal:
        out.width = max(out.width, FILE_WIDTH)
    for rendered in render_all(tables):
        shown = RichTable(title=Text(rendered.title), box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
        for index, heading in enumerate(rendered.header):
            rows = [row[index] for section in rendered.sections for row in section]
            width = max((len(_terminal(entry)) for entry in rows), default=1) if index else 9
            shown.add_column(Text(heading.replace("_", " ")), justify="right" if index else "left", min_width=width)
        for section in rendered.sections:
            for row in section:
                shown.add_row(*[_terminal(entry) for entry in row])
            shown.add_section()
        out.print(shown)
        for note in rendered.notes:
            out.print(f"  {note}", markup=False, highlight=False)


def _terminal(entry: Entry) -> Text:
    """Return an entry with its standard error left out; a note on missing seeds stays."""
    value, _, rest = entry.text.partition(" ± ")
    _, parenthesis, seeds = rest.partition(" (")
    return Text(value + parenthesis + seeds, style="bold" if entry.bold else "")


def to_markdown(tables: Sequence[Table]) -> str:
    """Return tables as Markdown; trivial rows in italics, apart from the learned ones."""
    return "\n".join(map(_markdown, render_all(tables)))


def _markdown(rendered: Rendered) -> str:
    return f"## {markdown.escape(rendered.title)}\n\n{body(rendered)}\n"


def body(rendered: Rendered) -> str:
    """Return a table and its notes in Markdown, without its heading."""
    lines = markdown.head(rendered.header)
    for number, section in enumerate(rendered.sections):
        if number:
            lines.append(markdown.line(*[""] * len(rendered.header)))
        for row in section:
            texts = [f"**{entry.text}**" if entry.bold else entry.text for entry in row]
            texts[0] = f"*{texts[0]}*" if number else texts[0]
            lines.append(markdown.line(*texts))
    return "\n".join([*lines, "", *[f"- {markdown.escape(note)}" for note in rendered.notes]])


def to_csv(tables: Sequence[Table]) -> str:
    """Return tables as CSV, one line for each method and task with its own numbers, in full precision."""
    records = []
    for table in tables:
        for kind, lines in (("learned", table.learned), ("trivial", table.trivial)):
            for line in lines:
                where = {"dim": table.dim, "protocol": table.protocol, "kind": kind, "method": line.method}
                for task, regret, numbers in zip(table.tasks, line.regrets, line.each, strict=True):
                    scores = {"regret_mean": regret.mean, "regret_stderr": regret.stderr}
                    seeds = {"seeds": regret.seeds, "seeds_expected": regret.expected, "mean_over_tasks": line.mean}
                    records.append({**where, "task": task, **scores, **seeds, **numbers})
    return pd.DataFrame(records).to_csv(index=False)


def to_html(tables: Sequence[Table]) -> str:
    """Return tables as one HTML page that needs no other file; a click on a heading sorts each section."""
    return page("tables/assets/report.html.jinja", tables=render_all(tables))


def to_latex(tables: Sequence[Table]) -> str:
    """Return tables as LaTeX for the packages booktabs and graphicx, each as wide as a line, its notes as comments."""
    return "\n".join(map(_latex, render_all(tables)))


def _latex(rendered: Rendered) -> str:
    rows = [
        [f"\\textbf{{{_escaped(entry.text)}}}" if entry.bold else _escaped(entry.text) for entry in row]
        for section in rendered.sections
        for row in section
    ]
    columns = "l" + "r" * (len(rendered.header) - 1)
    frame = pd.DataFrame(rows, columns=[_escaped(name) for name in rendered.header])
    lines = frame.style.hide(axis="index").to_latex(column_format=columns, hrules=True).splitlines()
    for section in reversed(list(itertools.accumulate(len(part) for part in rendered.sections[:-1]))):
        lines.insert(FIRST_ROW + section, "\\midrule")
    return "\n".join(
        [
            *(f"% {' '.join(note.split())}" for note in rendered.notes),
            "\\begin{table}",
            f"\\caption{{{_escaped(rendered.title)}}}",
            "\\resizebox{\\linewidth}{!}{%",
            *lines,
            "}",
            "\\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return "".join(LATEX.get(one, one) for one in " ".join(text.split()))


FIRST_ROW = 4
"""Lines of a table in LaTeX before its first row."""
LATEX = {one: f"\\{one}" for one in "&%$#_{}"}
LATEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
LATEX |= {"±": "$\\pm$", "÷": "$\\div$", "–": "--", "<": "$<$", ">": "$>$", "β": "$\\beta$", "≥": "$\\ge$"}
"""What stands for a character that LaTeX would take for its own, or that fonts lack."""

WRITERS: dict[str, Callable[[Sequence[Table]], str]] = {
    "html": to_html,
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
}
