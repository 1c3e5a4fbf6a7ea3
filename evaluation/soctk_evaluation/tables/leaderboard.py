"""The tables and files of the leaderboard."""

from __future__ import annotations

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.tables.markdown import write_text
from soctk_evaluation.tables.measures import REGRET
from soctk_evaluation.tables.report import WRITERS, print_tables
from soctk_evaluation.tables.summary import build_tables


def write_leaderboard(results: Results, files: Files) -> None:
    """Show the tables of regrets and write the files asked for."""
    tables = build_tables(results, results.cells, REGRET)
    if not tables:
        print("no leaderboard rows yet")
    print_tables(tables)
    for kind, writer in WRITERS.items():
        if kind in files:
            write_text(files[kind], writer(tables))
    if "figure" in files and tables:
        from soctk_evaluation.tables.figures import regret_figure

        regret_figure(tables[0], files["figure"])
