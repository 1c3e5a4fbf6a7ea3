"""`soctk fit`: from a file of logged decisions to a saved surrogate."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import soctk
from soctk import ConvexSurrogate, FitConfig, FitReport, Log, Roles, ValueData
from soctk.assessment.quadratic import predicted
from soctk.assessment.rows import Rows
from soctk.files import try_writing
from soctk.io.checkpoint import check_saves
from soctk.losses import value_loss
from soctk.sets import SetAt
from soctk.tables.features import Category
from soctk.tables.table import Table, listed, quoted
from soctk_baselines import QuadraticRegression
from soctk_evaluation.cli.feasible import column_names, make_region, set_file
from soctk_evaluation.cli.interrupts import first_interrupt
from soctk_evaluation.cli.log_commands import Fit
from soctk_evaluation.cli.parts import Parts, fingerprint, split
from soctk_evaluation.cli.plan import check_names
from soctk_evaluation.harness.request import UsageError

if TYPE_CHECKING:
    from soctk_evaluation.harness.dask_executor import ClusterExecutor

FEWEST = 3
"""Decisions of a log: to learn from, to validate by and to measure on."""
FEW_ROWS = 20
"""Rows of a category below which it is mentioned."""


def fit_logged(command: Fit) -> int:
    """Learn from a file, measure on held-out contexts, save the model."""
    if command.scheduler is not None and command.members < 2:
        wanted = "expected --members of at least 2, as what its workers learn are members"
        raise UsageError(f"--scheduler: {wanted}, got {command.members}")
    if not 0 <= command.seed < 2**63:
        raise UsageError(f"--seed: expected 0 to 2^63 - 1, got {command.seed}")
    logged = soctk.read_log(command.data, _roles(command), drop_missing=command.drop_missing)
    data, output = logged.data, command.output or command.data.with_suffix(".safetensors")
    if logged.missing is not None and logged.missing.count:
        print(f"left out: {logged.missing}")
    if data.value.numel() < FEWEST:
        expected = f"expected at least {FEWEST} decisions, one each to learn from, to validate by and to measure on"
        raise UsageError(f"{command.data}: {expected}, got {data.value.numel()}")
    check_output(output, ("data", command.data), ("--set", set_file(command.feasible)))
    check_names(logged.columns.x)
    region = make_region(command.feasible, data.dim, logged.source if column_names(command.feasible) else None)
    if region is not None and logged.optima is None:
        raise UsageError("--set: a fit uses the set only with optimal decisions, and the file has none")
    _print_columns(logged)
    try:
        model = soctk.make_surrogate(command.model, data.dim, data.context_dim, command.max_parameters, command.seed)
        _check_saves(model, command.model)
        parts = split(logged, command.seed)
        sets = None if region is None else region.sets
        sets = sets.select(parts.rows) if isinstance(sets, SetAt) else sets
        known = {} if parts.optima is None else {"optima": parts.optima, "feasible_set": sets}
        report = _learn(command, model, parts, known)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    model = report.model or model
    if report.status == "diverged":
        return _refuse(f"the fit of {command.model} diverged")
    if not math.isfinite(float(value_loss(model, parts.test).detach())):
        return _refuse(f"the held-out error of {command.model} is not finite")
    soctk.save(model, output, notes=logged.columns.notes() | fingerprint(logged, parts, command.seed))
    print(f"{logged.shape}, in {data.dim} variables; {len(Rows.of(parts.test))} values held out")
    print(f"{command.model}: {model.parameter_count} weights, {report.seconds:.1f} s, {report.status}")
    if isinstance(model, soctk.AverageSurrogate):
        print(f"the mean of {len(model.members)} of {command.members} members")
    elif report.focus > 0:
        print("values near the best of each context counted most: held-out decisions are better for it")
    if command.context_units > 0 and model.traits.units is not None:
        kept = "are" if model.context_units > 0 else "are not"
        print(f"hidden units of the context {kept} kept: held-out values decide")
    if (structure := _structure(model)) and report.status not in ("time_limit", "stopped"):
        print(f"structure: {structure}")
    # Said at once, as judging the model takes seconds in which a second Ctrl-C may come.
    stopped = ", the best state when the fit was interrupted" if report.status == "stopped" else ""
    print(f"wrote {output}{stopped}", flush=True)
    models = {command.model: model, "least-squares quadratic": _quadratic(parts.train)}
    _print_errors(models, Rows.of(parts.test), Rows.of(data))
    _print_verdict(model, parts)
    if report.decision_errors is not None:
        before, after = report.decision_errors
        print(f"mean distance from held-out optima: {after:.3g} ({before:.3g} before learning from the others)")
    elif parts.optima is not None:
        print(f"the optima were not used: the fit ended before, {report.status}")
    return 0


def _check_saves(model: ConvexSurrogate, name: str) -> None:
    """Raise UsageError for a model that could be learned and not kept."""
    try:
        check_saves(model)
    except (TypeError, NotImplementedError) as error:
        raise UsageError(f"--model {name}: {error}") from error


def _learn(command: Fit, model: ConvexSurrogate, parts: Parts, known: Mapping[str, Any]) -> FitReport:
    """Fit the model, its members on a cluster where one is given; the first Ctrl-C ends it with the best state."""
    told = "stopping with the best state so far; Ctrl-C again ends at once"
    with _workers(command.scheduler) as executor, first_interrupt(told) as interrupted:
        jobs = None if executor is None else executor.workers
        names = ("members", "context_units", "seed", "time_limit")
        given = {name: getattr(command, name) for name in names}
        config = FitConfig(**given, jobs=jobs, progress=True)
        more = {**known, "stop": interrupted, "executor": executor}
        return soctk.fit(model, parts.train, config, parts.validation, **more)


@contextmanager
def _workers(scheduler: str | None) -> Iterator[ClusterExecutor | None]:
    """Yield what learns members: the workers of a cluster, once there are some, or none but this machine's."""
    if scheduler is None:
        yield None
        return
    from soctk_evaluation.harness.dask_client import connected
    from soctk_evaluation.harness.dask_executor import ClusterExecutor, workers_explained

    with connected(scheduler) as client:
        client.wait_for_workers(1)
        with workers_explained():
            yield ClusterExecutor(client)


def _roles(command: Fit) -> Roles:
    """Return which columns are what."""
    return Roles(
        context=command.context,
        x=command.decision,
        value=command.value,
        optimum=command.optimum,
        category=command.category,
        date_format=command.date_format,
        more=sum(column_names(command.feasible).values(), ()),
    )


def _print_columns(logged: Log) -> None:
    """Say what each column of the context was taken for, where some are not plain numbers."""
    kinds = {feature.name: str(feature) for feature in logged.columns.context}
    if set(kinds.values()) - {"a number"}:
        print("context: " + "; ".join(f"{quoted(name)} is {kind}" for name, kind in kinds.items()))
    for feature in logged.columns.context:
        if isinstance(feature, Category) and isinstance(logged.source, Table):
            counts = zip(feature.levels, feature.encode(logged.source).sum(axis=0), strict=True)
            few = [f"{level} ({count:.0f})" for level, count in counts if count < FEW_ROWS]
            if few:
                print(f"{quoted(feature.name)}: few rows have {listed(few)}; decisions there rest on little")


def _print_verdict(model: ConvexSurrogate, parts: Parts) -> None:
    """Say whether to decide with the model, as the held-out rows have it."""
    try:
        line = soctk.assess(model, parts.test, train=parts.train).line
        print(f"{line} (decisions within the smallest box around the logged ones; `soctk assess --set` for yours)")
    except (ValueError, NotImplementedError) as error:
        print(f"no verdict: {error}")


def _structure(model: ConvexSurrogate) -> str:
    """Say what the data asked for, where that is a function with one centre."""
    traits = model.traits
    if traits.structure >= len(traits.centred):
        return ""
    sizes = traits.centred[traits.structure].sizes
    branches = f"and {len(sizes)} conic branch{'es' if len(sizes) > 1 else ''} around its centre"
    return f"a quadratic {branches}" if sizes else "a quadratic; the rows ask for no more"


def _refuse(reason: str) -> int:
    """Say why no model is written."""
    print(f"{reason}: no model written; look for values far from the others", file=sys.stderr)
    return 1


def check_output(output: Path, *inputs: tuple[str, Path | None]) -> None:
    """Raise UsageError where the output cannot be written or would replace an input."""
    for name, path in inputs:
        if path is not None and output.resolve() == path.resolve():
            raise UsageError(f"--output: {output} is the {name} file")
    if (output.exists() and not output.is_file()) or not output.parent.is_dir():
        raise UsageError(f"--output: expected a file in a folder that exists, got {output}")
    try_writing(output)


def _quadratic(train: ValueData) -> QuadraticRegression:
    model = QuadraticRegression(train.dim, train.context_dim)
    soctk.fit(model, train, validation=train)  # it chooses nothing
    return model


def _print_errors(models: Mapping[str, ConvexSurrogate], test: Rows, rows: Rows) -> None:
    """Print root mean square errors on held-out values in units of all values' deviation; a constant's is about 1.

    Values that a log repeats to fill a context up count once.
    """
    residuals = {name: test.value - predicted(model, test.context, test.x) for name, model in models.items()}
    spread = _root_mean_square(rows.value - rows.value.mean())
    print(f"held-out error, in units of the values' deviation: {_listed(residuals, spread)}")
    within = {name: test.within(residual) for name, residual in residuals.items()}
    deviation = _root_mean_square(rows.within(rows.value))
    if deviation > 0 and len(test.within(test.value)) > 0:
        print(f"the same within contexts, which is what decides:   {_listed(within, deviation)}")


def _listed(residuals: Mapping[str, np.ndarray], unit: float) -> str:
    return ", ".join(f"{name} {_root_mean_square(each) / (unit or 1.0):.3g}" for name, each in residuals.items())


def _root_mean_square(residual: np.ndarray) -> float:
    return float(np.square(residual).mean() ** 0.5) if len(residual) else 0.0
