"""The tables and files of the leaderboard."""

from __future__ import annotations

from dataclasses import replace

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.tables.markdown import machines, replace_part, versions_line, write_page, write_text
from soctk_evaluation.tables.report import WRITERS, body, print_tables, render
from soctk_evaluation.tables.summary import Measure, build_tables
from soctk_tasks.registry import OPF, UNTUNED

REGRET = Measure(
    "leaderboard",
    "regret_mean",
    "Mean regret{suite}, d = {dim}, protocol {protocol}",
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
    suites={
        " on three tasks that no recipe was chosen by": UNTUNED,
        " in kW on a feeder": ("voltage",),
        **{f" in $/h on {name.removeprefix('opf_')}": (name,) for name in OPF},
    },
)
PAGE = """# Regret

The rows are those of `evaluation/results/leaderboard.jsonl`, measured by `soctk leaderboard` on {machine};
`evaluation/README.md` says what each number means. Regret is f(x̂) − f(x*) of a decision x̂ on the true objective, in
the task's own units, with x* certified to 1e-8. Every learned method has the same data, recipe and decision method.
With `+average` it is the mean of six, with `+focus` as well, and values near the best of their instance count most: the
same values, six fits and six times the weights. Rows in italics are trivial, of which `constant` and `affine` see the
optima of the training instances and the others do not.

"""


def write_leaderboard(results: Results, files: Files) -> None:
    """Show the tables of regrets and write the files asked for.

    "readme" is a part of a file: the first table, without rows METHOD+SETTING.
    """
    tables = build_tables(results, REGRET, results.cells)
    if not tables:
        print("no leaderboard rows yet")
    print_tables(tables)
    for kind, writer in WRITERS.items():
        if kind == "markdown" and kind in files:
            page = PAGE.format(machine=machines(results.rows)) + writer(tables)
            write_page(files[kind], page, results.rows)
        elif kind in files:
            write_text(files[kind], writer(tables))
    if "readme" in files and tables:
        replace_part(files["readme"], "leaderboard", _for_readme(results))
    if "figure" in files and tables:
        from soctk_evaluation.tables.figures import regret_figure

        regret_figure(tables[0], files["figure"])


def _for_readme(results: Results) -> str:
    plain = replace(results, rows=[row for row in results.rows if "+" not in row["method"]] or results.rows)
    table = build_tables(plain, REGRET, results.cells)[0]
    lines = body(render(table)).splitlines()
    where = table.dim, table.protocol
    shown = [row for row in plain.rows if (row["dim"], row["protocol"]) == where and row["task"] in table.tasks]
    return "\n".join([*(line for line in lines if line.strip("| ") or not line), "", versions_line(shown)])
