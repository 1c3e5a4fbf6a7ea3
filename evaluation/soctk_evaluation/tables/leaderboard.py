"""The tables and files of the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import replace_part, versions_line, write_page, write_text
from soctk_evaluation.tables.report import WRITERS, body, print_tables, render
from soctk_evaluation.tables.summary import Measure, Table, build_tables

REGRET = Measure(
    "leaderboard",
    "regret_mean",
    "Mean regret, d = {dim}, protocol {protocol}",
    "test instances",
    {
        "mean": "mean of tasks",
        "relative_error": "relative error",
        "params": "params",
        "fit_seconds": "fit s",
        "decide_ms": "decide ms",
        "gap_max": "gap max",
    },
    count="regret_n",
    stderr="regret_stderr",
    floor=1e-6,
)


def write_leaderboard(results: Results, files: Files) -> None:
    """Show the tables of regrets and write the files asked for; "readme" is a part of a file, the first table."""
    tables = build_tables(results, REGRET, results.cells)
    if not tables:
        print("no leaderboard rows yet")
    print_tables(tables)
    for kind, writer in WRITERS.items():
        if kind == "markdown" and kind in files:
            write_page(files[kind], writer(tables), results.rows)
        elif kind in files:
            write_text(files[kind], writer(tables))
    if "readme" in files and tables:
        replace_part(files["readme"], "leaderboard", _for_readme(tables[0], results.rows))
    if "figure" in files and tables:
        from soctk_evaluation.tables.figures import regret_figure

        regret_figure(tables[0], files["figure"])


def _for_readme(table: Table, rows: Sequence[Row]) -> str:
    lines = body(render(table)).splitlines()
    return "\n".join([*(line for line in lines if line.strip("| ") or not line), "", versions_line(rows)])
