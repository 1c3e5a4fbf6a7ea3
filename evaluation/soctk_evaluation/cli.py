"""The `soctk` command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from soctk_evaluation.commands import (
    Approximation,
    Command,
    Decide,
    Equivalence,
    Files,
    Fit,
    Leaderboard,
    Rates,
    Report,
    Restoration,
    Smoothing,
    Structured,
    Timing,
)
from soctk_evaluation.names import APPROXIMATORS, DECIDERS, default_methods, known_methods
from soctk_evaluation.running import UsageError, check_names, check_request, fail, run_experiment
from soctk_evaluation.store import Contents, ResultsStore, StoreError

if TYPE_CHECKING:
    from soctk_evaluation.cells import Cell

QUICK_STARTS = 2
QUICK_LEVEL_ITERATIONS = 100
"""Of b0, which decides nothing: a quick leaderboard saves them, for every method."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: the arguments; `sys.argv[1:]` by default.

    Returns:
        0; 1 where cells failed or a file could not be written; 2 for a wrong argument; 130 after Ctrl-C.
    """
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes)
    command = tyro.cli(
        Command,
        prog="soctk",
        args=args,
        config=config,
        description="Learn a convex objective and decide with it.",
    )
    try:
        return _RUN[type(command)](command)
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except UsageError as error:
        return fail(str(error), 2)
    except (StoreError, OSError) as error:
        return fail(str(error), 1)


def _equivalence(command: Equivalence) -> int:
    check_request(command)
    from functools import partial

    from soctk_evaluation.equivalence import WEIGHTS, equivalence_cells, run_cell
    from soctk_evaluation.theory_report import write_equivalence

    weights = command.methods or (("random",) if command.quick else WEIGHTS)
    seeds = command.seeds or ((0,) if command.quick else tuple(range(5)))
    cells = equivalence_cells(command.settings, weights, seeds, {"trials": 3} if command.quick else None)

    def show(contents: Contents) -> None:
        print(write_equivalence(list(contents.latest().values()), command.markdown, command.figure))

    return run_experiment(cells, partial(run_cell, folder=command.store.with_suffix("")), (), command, show)


def _structured(command: Structured) -> int:
    experiment = type(command).__name__.lower()
    check_request(command)
    from functools import partial

    from soctk_evaluation import structured
    from soctk_evaluation.structured_report import write_structured
    from soctk_tasks import FacesNotFoundError

    known = (*structured.LEARNED, *structured.TRIVIAL[experiment])
    check_names(command.methods, known, "method")
    quick = command.quick
    protocols = command.protocols or (("structured",) if quick else structured.PROTOCOLS)
    seeds = command.seeds or ((0,) if quick else (0, 1, 2))
    try:
        cells = structured.structured_cells(
            experiment,
            command.methods or known,
            protocols,
            seeds,
            stand_in=getattr(command, "stand_in", False),
            quick=quick,
        )
    except FacesNotFoundError as error:
        raise UsageError(str(error)) from None
    folder = command.store.with_suffix("")

    def show(contents: Contents) -> None:
        rows = list(contents.latest().values())
        print(write_structured(rows, len(seeds), markdown=command.markdown, figure=command.figure, folder=folder))

    return run_experiment(cells, partial(structured.run_cell, decisions=folder), structured.MEASURED, command, show)


def _rates(command: Rates) -> int:
    check_request(command)
    from soctk_evaluation.rates import MEASURED, rate_cells, run_cell
    from soctk_evaluation.theory_report import write_rates

    def show(contents: Contents) -> None:
        print(write_rates(list(contents.latest().values()), command.markdown, command.figure))

    return run_experiment(rate_cells(), run_cell, MEASURED, command, show)


def _report(command: Report) -> int:
    if not command.store.is_file():
        raise UsageError(f"no results file {command.store}; `soctk leaderboard` makes one")
    contents = ResultsStore(command.store).read()
    rows, files = contents.newest(), command.files
    experiments = {row["experiment"] for row in rows}
    if experiments & {"equivalence", "rates"}:
        from soctk_evaluation.theory_report import write_equivalence, write_rates

        write = write_equivalence if "equivalence" in experiments else write_rates
        print(write(rows, files.markdown, files.figure))
    elif "timing" in experiments:
        from soctk_evaluation.timing_report import write_timing

        print(write_timing(rows, files.markdown, files.figure))
    elif experiments & {"smoothing", "restoration"}:
        from soctk_evaluation.structured_report import write_structured

        folder = command.store.with_suffix("")
        print(write_structured(rows, markdown=files.markdown, figure=files.figure, folder=folder))
    elif "approximation" in experiments:
        _show_errors(Contents(rows, contents.bad), (), files.markdown, files.figure)
    else:
        _show(contents, (), files)
    return 0


def _timing(command: Timing) -> int:
    for name in ("dims", "batches"):
        if any(value < 1 for value in getattr(command, name)):
            raise UsageError(f"--{name}: expected positive integers, got {getattr(command, name)}")
    if command.count < 1:
        raise UsageError(f"--count: expected a positive integer, got {command.count}")
    from soctk_evaluation.timing import run_race, timing_cells
    from soctk_evaluation.timing_report import write_timing

    store = ResultsStore(command.store)
    races = timing_cells(command.models, command.sets, command.dims, command.batches, command.count)
    for number, race in enumerate(races, start=1):
        done = store.done()
        if all(cell.key in done for cell in race):
            continue
        model = dict(race[0].config)["model"]
        print(f"[{number}/{len(races)}] d={race[0].dim} {race[0].task} {model}", file=sys.stderr)
        for row in list(run_race(race)):  # a race is stored whole or not at all: its ratios belong together
            store.append(row)
    wanted = {cell.key for race in races for cell in race}
    rows = [row for row in store.read().latest().values() if row["key"] in wanted]
    print(write_timing(rows, command.markdown, command.figure))
    return 0


def _leaderboard(command: Leaderboard) -> int:
    cells = _cells(command)
    from soctk_evaluation.leaderboard import MEASURED, run_cell

    return run_experiment(
        cells, run_cell, MEASURED, command, lambda contents: _show(contents, cells, command.files), command.backend
    )


def _approximation(command: Approximation) -> int:
    cells = _approximation_cells(command)
    from soctk_evaluation.approximation import MEASURED, run_cell

    def show(contents: Contents) -> None:
        _show_errors(contents, cells, command.markdown, command.figure)

    return run_experiment(cells, run_cell, MEASURED, command, show)


def _fit(command: Fit) -> int:
    from soctk_evaluation.logged import fit_logged

    return fit_logged(command)


def _decide(command: Decide) -> int:
    from soctk_evaluation.logged import decide_logged

    return decide_logged(command)


def _cells(command: Leaderboard) -> list[Cell]:
    """Return the cells asked for, after checking every name and number."""
    check_names(command.methods, known_methods(), "method")
    check_request(command)
    if command.backend == "dask":
        _check_dask()
    from soctk import FitConfig
    from soctk_tasks import TASKS

    check_names(command.tasks, TASKS, "task")
    from soctk_evaluation.leaderboard import leaderboard_cells

    dims, seeds = ((10,), (0,)) if command.quick else ((10, 20, 50), (0, 1, 2))
    return leaderboard_cells(
        command.tasks or TASKS,
        command.dims or dims,
        command.methods or default_methods(),
        command.seeds or seeds,
        command.protocol,
        fit=FitConfig(starts=QUICK_STARTS, level_iterations=QUICK_LEVEL_ITERATIONS) if command.quick else None,
    )


def _approximation_cells(command: Approximation) -> list[Cell]:
    """Return the cells asked for, after checking every name and number."""
    check_names(command.methods, tuple(name for name in known_methods() if name not in DECIDERS), "method")
    check_request(command)
    from soctk_tasks import TARGETS

    check_names(command.targets, TARGETS, "target")
    from soctk_evaluation.approximation import QUICK_RECIPE, approximation_cells

    dims, seeds = ((5, 10), (0,)) if command.quick else ((5, 10, 20, 50), (0, 1, 2))
    return approximation_cells(
        command.targets or TARGETS,
        command.dims or dims,
        command.methods or APPROXIMATORS,
        command.seeds or seeds,
        fit=QUICK_RECIPE if command.quick else None,
    )


def _check_dask() -> None:
    from importlib.util import find_spec

    if find_spec("distributed") is None:
        raise UsageError("--backend dask needs the package distributed: pip install distributed")


def _show(contents: Contents, cells: Sequence[Cell], files: Files) -> None:
    """Print the tables and write the files asked for."""
    from soctk_evaluation.report import print_tables, write_report
    from soctk_evaluation.summary import build_tables

    tables = build_tables(contents, cells)
    if not tables:
        print("no leaderboard rows yet")
    print_tables(tables)
    for kind in ("html", "markdown", "csv"):
        path: Path | None = getattr(files, kind)
        if path is not None:
            write_report(tables, kind, path)
            print(f"wrote {path}", file=sys.stderr)
    if files.figure is not None and tables:
        from soctk_evaluation.figures import regret_figure

        regret_figure(tables[0], files.figure)
        print(f"wrote {files.figure}", file=sys.stderr)


def _show_errors(contents: Contents, cells: Sequence[Cell], markdown: Path | None, figure: Path | None) -> None:
    """Print the approximation tables and write the files asked for."""
    from soctk_evaluation.measures import ERROR
    from soctk_evaluation.report import print_tables
    from soctk_evaluation.summary import build_tables

    tables = build_tables(contents, cells, ERROR)
    print_tables(tables)
    if markdown is not None and contents.rows:
        from soctk_evaluation.pages import write_approximation_page

        write_approximation_page(tables, markdown, contents.newest())
        print(f"wrote {markdown}", file=sys.stderr)
    if figure is not None:
        from soctk_evaluation.figures import error_figure

        error_figure(tables, figure)
        print(f"wrote {figure}", file=sys.stderr)


_RUN: dict[type, Callable[..., int]] = {
    Leaderboard: _leaderboard,
    Approximation: _approximation,
    Equivalence: _equivalence,
    Smoothing: _structured,
    Restoration: _structured,
    Rates: _rates,
    Timing: _timing,
    Report: _report,
    Fit: _fit,
    Decide: _decide,
}

if __name__ == "__main__":
    sys.exit(main())
