"""The `soctk` command line: finds the command asked for and carries it out. Light, so that `--help` is fast."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import cast

import tyro

from soctk.plugins import PluginError
from soctk.tables.errors import TableError
from soctk_evaluation.cli.commands import ACTIONS, EXPERIMENTS
from soctk_evaluation.cli.report import check_files, show
from soctk_evaluation.experiments import experiment_names, find_experiment
from soctk_evaluation.harness.experiment import Experiment
from soctk_evaluation.harness.request import Run, Sweep, UsageError, check_request
from soctk_evaluation.harness.store import ResultsStore, StoreError, cell_of, is_done, is_late, is_measured


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: the arguments; `sys.argv[1:]` by default.

    Returns:
        0; 1 where cells failed or a file could not be written; 2 for a wrong argument; 130 after Ctrl-C; 141 where
        whoever read the output has left, as `head` does.
    """
    args = sys.argv[1:] if args is None else args
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever began the process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no dash is no reason to stop
    try:
        return _answer(args, _commands(args[:1]))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (UsageError, TableError, PluginError) as error:
        return _fail(str(error), 2)
    except (StoreError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be written has no reader
            return 141
        return _fail(str(error), 1)


def _answer(args: Sequence[str], commands: dict[str, type]) -> int:
    """Carry out what is asked for and return the exit code; all that is printed has been written then."""
    try:
        request = tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="soctk",
            args=args,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitSubcommandPrefixes),
            description="Learn a convex objective and decide with it.",
        )
        return _carry_out(next(name for name, kind in commands.items() if type(request) is kind), request)
    finally:
        sys.stdout.flush()  # after --help too, which ends by SystemExit


def _carry_out(name: str, request: object) -> int:
    """Carry out a command and return the exit code."""
    if name in ACTIONS:
        module, _, function = ACTIONS[name][1].partition(":")
        return getattr(import_module(module), function)(request)
    return run_experiment(find_experiment(name), cast(Run, request))


def _reader_left() -> bool:
    """Whether nobody reads the output any more: another pipe, to a worker, may be what broke."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _commands(asked: Sequence[str]) -> dict[str, type]:
    """Return what each command takes; another package's experiment is imported only when it is asked for."""
    commands: dict[str, type] = dict(EXPERIMENTS)
    for name in (name for name in experiment_names() if name not in EXPERIMENTS and name not in ACTIONS):
        options = find_experiment(name).options if name in asked else Sweep
        text = options.__doc__ if name in asked else f"An experiment of another package; see soctk {name} --help."
        commands[name] = type(name, (options,), {"__doc__": text})
    return commands | {name: kind for name, (kind, _) in ACTIONS.items()}


def run_experiment(experiment: Experiment, request: Run) -> int:
    """Run the cells asked for that the store lacks, show all that were asked for, return the exit code."""
    check_request(request)
    check_files(request, ResultsStore(request.store))
    cells = experiment.cells(request)
    # A cluster's workers have other folders to begin at: what they are told is the whole path.
    store = ResultsStore(request.store.resolve() if _on_cluster(request) else request.store)
    limit = request.cell_time_limit
    before = store.read()
    rows = before.newest() if request.any_code else []
    earlier = {cell_of(row): row["key"] for row in rows if is_measured(row)}
    asked = {cell: earlier.get(cell_of(cell.identity)) for cell in cells}
    missing = [cell for cell, key in asked.items() if key is None]
    keys = {key or experiment.key(cell) for cell, key in asked.items()}
    from soctk_evaluation.harness.sweep import run_cells

    try:
        with _workers(request) as (jobs, backend):
            report = run_cells(missing, experiment, store, jobs=jobs, backend=backend, time_limit=limit)
    except KeyboardInterrupt:
        stored = len(keys & (store.done(limit) | set(asked.values())))
        return _fail(f"interrupted: {stored} of {len(asked)} cells are in {store.path}; run it again for the rest", 130)
    stored = len(asked) - len(missing) + report.skipped
    if stored:
        late = sum(is_late(row) and is_done(row, limit) for key, row in before.latest().items() if key in keys)
        over = f", {late} of them without a result, a time limit having ended them: a larger one tries them again"
        print(f"{stored} of {len(asked)} cells were in {store.path} already{over if late else ''}", file=sys.stderr)
    show(experiment, store, request, cells, keys)
    remedies = {
        "failed; the same command tries them again": report.failed,
        "reached the time limit; a larger one tries them again": report.late,
        f"killed their worker twice and are not tried again; their rows in {store.path} say how": report.quarantined,
    }
    for what, outcomes in remedies.items():
        if outcomes:
            print(f"soctk: {sum(len(each.job.cells) for each in outcomes)} cells {what}", file=sys.stderr)
    return 1 if report.failed or report.late or report.quarantined else 0


@contextmanager
def _workers(request: Run) -> Iterator[tuple[int, str]]:
    """Yield the number of workers and their backend, connected to the scheduler asked for."""
    if not isinstance(request, Sweep):
        yield 1, "loky"
        return
    jobs = request.jobs or os.cpu_count() or 1
    if not _on_cluster(request):
        yield jobs, request.backend
        return
    from soctk_evaluation.harness.dask_client import connected

    with connected(request.scheduler):
        yield jobs, "dask"


def _on_cluster(request: Run) -> bool:
    return isinstance(request, Sweep) and (request.backend == "dask" or request.scheduler is not None)


def _fail(message: str, code: int) -> int:
    """Print a message for the user and return the exit code."""
    print(f"soctk: {message}", file=sys.stderr)
    return code
