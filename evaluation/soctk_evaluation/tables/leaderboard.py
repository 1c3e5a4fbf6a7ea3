"""The tables and files of the leaderboard."""

from __future__ import annotations

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.tables.markdown import write_text
from soctk_evaluation.tables.report import WRITERS, print_tables
from soctk_evaluation.tables.summary import Measure, build_tables

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
)


def write_leaderboard(results: Results, files: Files) -> None:
    """Show the tables of regrets and write the files asked for."""
    tables = build_tables(results, REGRET, results.cells)
    if not tables:
        print("no leaderboard rows yet")
    print_tables(tables)
    for kind, writer in WRITERS.items():
        if kind in files:
            write_text(files[kind], writer(tables))
    if "figure" in files and tables:
        from soctk_evaluation.tables.figures import regret_figure

        regret_figure(tables[0], files["figure"])
