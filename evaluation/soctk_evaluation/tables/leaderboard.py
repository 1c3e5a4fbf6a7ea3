"""The tables and files of the leaderboard."""

from __future__ import annotations

from dataclasses import replace

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.tables.markdown import Part, write_text
from soctk_evaluation.tables.overview import overview
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.report import WRITERS, body, print_tables, render
from soctk_evaluation.tables.summary import Measure, build_tables, last_rows
from soctk_tasks.registry import OPF, UNTUNED

ON_OPF = {name: f" in $/h on {name.removeprefix('opf_')}" for name in OPF}
MEAN_OPTIMUM = {"opf_case14": 2e3, "opf_case24": 5.6e4, "opf_case30": 7.2e2, "opf_case118": 8.4e4}
"""$/h, about: decisions are certified to a millionth of it."""

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
        " on three tasks of our own": UNTUNED,
        " in kW on a feeder": ("voltage",),
        **{words: (name,) for name, words in ON_OPF.items()},
    },
    floors={" in kW on a feeder": 3e-5, **{words: 1e-6 * MEAN_OPTIMUM[name] for name, words in ON_OPF.items()}},
)
PAGE = Page(
    "Regret",
    "soctk leaderboard",
    """
Regret is f(x̂) − f(x*) of a decision x̂ on the true objective, in the task's own units, with x* certified to a relative
gap of 1e-8 (1e-6 on the grids); `evaluation/README.md` says what each number means. Every learned method has the same
data and decision method. Rows in italics are trivial; of those `constant` and `affine` see the optima of the training
instances, other rows only where they learn from decisions (`+optima` and the like). With `+average` a row is the mean
of six fits, each from four fifths of the instances, with `+focus` as well, and values near the best of their instance
count most (penalty 1e-6 in place of 1e-7). With `+units` offsets and weights may be nonlinear in the context, as data
ask. Where values are steep a single fit is made both ways and held-out candidates tell which is kept, for every method
with second-order steps; elsewhere all values count alike. Under each table stands the code that measured it.

Decisions of the protocol `exact` are minima with certificates; of `paper`, the best of 5 restarts of 200 projected Adam
steps; of `cvxpylayers`, solved through that package. The solver's own regret is that of its decisions on the true
objective. Relative errors are of values on test candidates, in the l2 norm; "params" counts weights; "fit s"
is the seconds of a fit, "decide ms" the milliseconds of a decision, all three as medians; "gap max" is the largest
certified gap, in the task's units.
""",
    "",
    """
Methods have the same recipe but for what they [do not share](differences.md#what-the-methods-do-not-share): relu,
softplus and pcf have more values, some methods Levenberg-Marquardt steps, SOC its choice of structure. That page lists
the rows of fits with at most 300 steps of L-BFGS; all others may take 1000. Six fits took 2 to 9 times the seconds of
one by the same code. Values are steep on the feeder, case24 and case118 ([more](method.md#learning)). `+units` is of
soc, norm, quad, dcp, relu and softplus, on the three tasks of our own. These were written down before any model was
tried on them; later changes of the recipe were measured on them too.
""",
)


PARTS = {"readme": "leaderboard", "overview": "others"}
"""The kinds of files of which a part is written anew, and its name."""


def write_leaderboard(results: Results, files: Files) -> None:
    """Show the tables of regrets and write the files asked for.

    "readme" and "figure" are of the first table, without rows METHOD+SETTING; "overview" has a line for each other
    table. "readme" and "overview" are parts of files.
    """
    tables = build_tables(results, REGRET, results.cells)
    for kind in files.keys() & PARTS.keys():
        Part.of(files[kind], PARTS[kind])  # there, before anything is written
    if not tables:
        print("no leaderboard rows yet")
    print_tables(tables)
    for kind, writer in WRITERS.items():
        if kind == "markdown" and kind in files:
            shown = list(last_rows(results.measured).values())
            PAGE.write(results, {kind: files[kind]}, writer(tables), shown=shown)
        elif kind in files:
            write_text(files[kind], writer(tables))
    if not tables or not {"readme", "overview", "figure"} & set(files):
        return
    plain = replace(results, rows=[row for row in results.rows if "+" not in row["method"]] or results.rows)
    first = build_tables(plain, REGRET, results.cells)[0]
    if "readme" in files:
        lines = body(render(first)).splitlines()
        text = "\n".join(line for line in lines if line.strip("| ") or not line)
        Part.of(files["readme"], PARTS["readme"]).replace(text)
    if "overview" in files:
        others = [table for table in tables[1:] if table.protocol == first.protocol]
        Part.of(files["overview"], PARTS["overview"]).replace(overview(others))
    if "figure" in files:
        from soctk_evaluation.tables.figures import regret_figure

        regret_figure(first, files["figure"])
