"""The page of the approximation experiment."""

from __future__ import annotations

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.tables.markdown import machines, write_page
from soctk_evaluation.tables.report import print_tables, to_markdown
from soctk_evaluation.tables.summary import Measure, build_tables

ERROR = Measure(
    "approximation",
    "relative_error",
    "Relative l2 test error, d = {dim}",
    "test points",
    {"mean": "mean of targets", "params": "params", "fit_seconds": "fit s"},
    count="test_points",
)
APPROXIMATION = """# Approximating convex functions

Written by `soctk approximation{quick} --markdown docs/approximation.md --figure docs/images/approximation.svg` on
{machine}; the rows are in `evaluation/results/approximation.jsonl`.

The paper's ten targets (Experiment 2; `soctk_tasks.make_target` has their formulas): 6000 training, 1000 validation and
2000 test points uniform on [-3, 3]^d. Sizes are the paper's: SOC has two layers of 16, 20, 24 or 32 ReLUs at d = 5, 10,
20 or 50 with one quadratic and one norm of d rows; the other ICNNs keep its width and get layers until they have at
least as many weights, `ickan` (P1-ICKAN, one hidden layer, eight segments an edge) gets width. All of them are learned
by the same recipe, that of `soctk.fit` in the version named below with {recipe}.
Two rows are trivial: a least-squares quadratic, and the constant training mean.

The paper's own tables are not comparable: its training ends after at most 240 Adam steps on unscaled values, where the
constant still beats its ReLU-ICNN in all 40 cells. Read the lead of a branch with care: it is large where the branch is
the target's own (a quadratic for the quadratic branch, a norm for the conic one), and there the ablation that keeps
that branch shares it.

![Relative error of every method on every target](images/approximation.svg)

"""

RECIPES = {
    True: "one start, 15 epochs of AdamW and at most 250 iterations of L-BFGS, a part of what converges",
    False: "two starts, 30 epochs of AdamW and at most 1000 iterations of L-BFGS",
}


def write_approximation(results: Results, files: Files, quick_epochs: int) -> None:
    """Show the tables, and write the page and the picture; `quick_epochs` tells the quick recipe from the other."""
    tables = build_tables(results, ERROR, results.cells)
    print_tables(tables)
    if "markdown" in files and results.rows:
        quick = {row["config"].get("fit.epochs") for row in results.rows} - {None} == {quick_epochs}
        machine, flag = machines(results.rows), " --quick" if quick else ""
        head = APPROXIMATION.format(machine=machine, quick=flag, recipe=RECIPES[quick])
        write_page(files["markdown"], head + to_markdown(tables), results.rows)
    if "figure" in files:
        from soctk_evaluation.tables.figures import error_figure

        error_figure(tables, files["figure"])
