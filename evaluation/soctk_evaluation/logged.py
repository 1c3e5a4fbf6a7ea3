"""`soctk fit` and `soctk decide`: from a file of logged decisions to a saved surrogate, and from that to decisions."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import Box, Budget, FeasibleSet, FitConfig, Simplex, ValueData
from soctk.learn.data import split_indices
from soctk.losses import relative_error
from soctk.persist import CheckpointError, read_notes
from soctk_baselines import QuadraticRegression
from soctk_evaluation.commands import Decide, Feasible, Fit
from soctk_evaluation.running import UsageError
from soctk_evaluation.tabular import COLUMN_FORMATS, Table, read_arrays, read_table, write_columns

TEST_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Logged:
    """What a file of logged decisions holds.

    Attributes:
        data: contexts, decisions and their values.
        optima: (N, n), or None.
        names: of the context's and the decision's coordinates.
    """

    data: ValueData
    optima: Tensor | None
    names: dict[str, list[str]]


def fit_logged(command: Fit) -> int:
    """Learn from a file, measure on held-out contexts, save the model."""
    logged = read_logged(command.data)
    data, output = logged.data, command.output or command.data.with_suffix(".safetensors")
    if output.resolve() == command.data.resolve():
        raise UsageError(f"--output: {output} is the data's file")
    if not output.parent.is_dir():
        raise UsageError(f"--output: no folder {output.parent}")
    try:
        model = soctk.make_surrogate(command.model, data.dim, data.context_dim, command.max_parameters, command.seed)
        config = FitConfig(seed=command.seed, time_limit=command.time_limit, progress=sys.stderr.isatty())
        feasible_set = make_set(command.feasible, data.dim)
        if feasible_set is not None and logged.optima is None:
            raise UsageError("--set: a fit uses the set only with optimal decisions, and the file has none")
        train, test, optima = _held_out(logged, command.seed)
        report = soctk.fit(model, train, config, optima=optima, feasible_set=feasible_set)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    soctk.save(model, output, notes=logged.names)
    print(
        f"{data.instances} contexts of {data.context_dim} numbers, {data.candidates} decision(s) each in "
        f"{data.dim} variables; {test.value.numel()} values held out"
    )
    print(f"{command.model}: {model.parameter_count} weights, {report.seconds:.1f} s, {report.status}")
    print(f"error on held-out values, relative to their spread: {_error(model, test):.3g}")
    print(f"                      the same of a least-squares quadratic: {_error(_quadratic(train), test):.3g}")
    if report.decision_errors is not None:
        before, after = report.decision_errors
        print(f"mean distance from held-out optima: {after:.3g} ({before:.3g} before learning from the others)")
    print(f"wrote {output}")
    return 0


def decide_logged(command: Decide) -> int:
    """Decide in every context of a file, write the decisions with their gaps."""
    if command.feasible.set is None:
        raise UsageError("--set: expected simplex, box or budget")
    if command.time_limit is not None and command.time_limit <= 0:
        raise UsageError(f"--time-limit: expected a positive number, got {command.time_limit}")
    try:
        model, names = soctk.load(command.model), read_notes(command.model)
    except (FileNotFoundError, CheckpointError) as error:
        raise UsageError(str(error)) from None
    output = command.output or command.model.with_suffix(".decisions.csv")
    if output.suffix not in COLUMN_FORMATS:
        raise UsageError(f"--output: expected a file ending in {', '.join(COLUMN_FORMATS)}, got {output}")
    feasible_set = make_set(command.feasible, model.dim)
    assert feasible_set is not None
    context = read_contexts(command.contexts, model.context_dim, names.get("context"))
    try:
        decision = soctk.minimize(model, feasible_set, context, tol=command.tol, time_limit=command.time_limit)
    except ValueError as error:
        raise UsageError(str(error)) from None
    count = decision.status.size
    x = decision.x.reshape(count, -1).numpy()
    columns = {name: x[:, k] for k, name in enumerate(names.get("x") or coordinates("x", model.dim))}
    for name in ("value", "lower_bound", "gap"):
        columns[name] = getattr(decision, name).reshape(count).numpy()
    columns["status"] = decision.status.reshape(count).astype(str)
    write_columns(columns, output)
    optimal = int((columns["status"] == "optimal").sum())
    print(
        f"{optimal} of {count} decisions certified to a relative gap of {command.tol:g}; the largest is "
        f"{float(decision.relative_gap.max()):.2g}; {decision.seconds:.2g} s in all"
    )
    print(f"wrote {output}")
    return 0 if optimal == count else 1


def read_logged(path: Path) -> Logged:
    """Return the logged decisions in a file.

    Raises:
        UsageError: no such file, another kind of file, missing names, or numbers that are not.
    """
    if path.suffix == ".npz":
        return _from_arrays(path)
    return _from_table(read_table(path), path)


def read_contexts(path: Path | None, context_dim: int, names: list[str] | None) -> Tensor | None:
    """Return the contexts (N, p) in a file, a table's columns by the names that the model was learned from.

    Raises:
        UsageError: a model that needs a file and has none or the other way round, or a file that does not fit it.
    """
    if context_dim == 0:
        if path is not None:
            raise UsageError(f"contexts: the model takes none, got {path}")
        return None
    if path is None:
        raise UsageError(f"contexts: expected a file with contexts of {context_dim} numbers, as the model's")
    if path.suffix == ".npz":
        context = read_arrays(path, ("context",))["context"]
        if context.ndim != 2 or context.shape[1] != context_dim:
            raise UsageError(f"{path}: context: expected shape (N, {context_dim}), got {context.shape}")
    else:
        table = read_table(path)
        names = names or coordinates("context", context_dim)
        context = table.numbers(names)
    if len(context) == 0:
        raise UsageError(f"{path}: expected at least one context, got none")
    return torch.from_numpy(context)


def make_set(asked: Feasible, dim: int) -> FeasibleSet | None:
    """Return the feasible set asked for, None where none is.

    Raises:
        UsageError: bounds of a wrong number, or a total that cannot be met.
    """
    bounds = {name: _bound(getattr(asked, name), name, dim) for name in ("lower", "upper") if getattr(asked, name)}
    if asked.set is None:
        if bounds or asked.total is not None:
            raise UsageError("--set: expected simplex, box or budget with --total, --lower and --upper")
        return None
    unused = [f"--{name}" for name in bounds] if asked.set == "simplex" else []
    if asked.set == "box" and asked.total is not None:
        unused = ["--total"]
    if unused:
        raise UsageError(f"{', '.join(unused)}: a {asked.set} has none")
    if asked.set == "budget" and asked.total is None:
        raise UsageError("--total: expected the sum of a budget's decisions")
    try:
        if asked.set == "simplex":
            return Simplex(dim, 1.0 if asked.total is None else asked.total)
        if asked.set == "box":
            return Box(dim, **bounds)
        assert asked.total is not None
        return Budget(dim, asked.total, **bounds)
    except ValueError as error:
        raise UsageError(f"--{error}") from None


def coordinates(name: str, count: int) -> list[str]:
    """Return the names of coordinates that have none of their own."""
    return [f"{name}_{k}" for k in range(count)]


def _bound(values: tuple[float, ...], name: str, dim: int) -> float | tuple[float, ...]:
    if len(values) not in (1, dim):
        raise UsageError(f"--{name}: expected 1 or {dim} numbers, got {len(values)}")
    return values[0] if len(values) == 1 else values


def _from_arrays(path: Path) -> Logged:
    arrays = read_arrays(path, ("x", "value"), ("context", "optimum"))
    x, value = arrays["x"], arrays["value"]
    context, optima = arrays.get("context", np.zeros((len(x), 0))), arrays.get("optimum")
    single = x.ndim == 2 and value.ndim == 1
    try:
        # Checks the shapes: of one decision in each row as of several.
        data = ValueData(
            *map(torch.from_numpy, (context, x[:, None], value[:, None]) if single else (context, x, value))
        )
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if optima is not None and optima.shape != (data.instances, data.dim):
        raise UsageError(f"{path}: optimum: expected shape {(data.instances, data.dim)}, got {optima.shape}")
    names = {"context": coordinates("context", data.context_dim), "x": coordinates("x", data.dim)}
    if single:
        return _by_context(context, x, value, optima, names)
    return Logged(data, None if optima is None else torch.from_numpy(optima), names)


def _from_table(table: Table, path: Path) -> Logged:
    names = {kind: table.names_of(kind) for kind in ("context", "x", "optimum")}
    if not names["x"]:
        raise UsageError(f"{path}: expected columns x_*, the decisions; the columns are {table.listing}")
    if names["optimum"] and len(names["optimum"]) != len(names["x"]):
        raise UsageError(
            f"{path}: expected as many columns optimum_* as x_*, got {len(names['optimum'])} and {len(names['x'])}"
        )
    context, x, value = table.numbers(names["context"]), table.numbers(names["x"]), table.numbers(["value"])[:, 0]
    if len(x) == 0:
        raise UsageError(f"{path}: expected at least one row, got none")
    optima = table.numbers(names["optimum"]) if names["optimum"] else None
    return _by_context(context, x, value, optima, {kind: names[kind] for kind in ("context", "x")})


def _by_context(
    context: np.ndarray, x: np.ndarray, value: np.ndarray, optima: np.ndarray | None, names: dict[str, list[str]]
) -> Logged:
    """Put rows of equal contexts together where all contexts have equally many; else each row stands alone."""
    together = context if optima is None else np.hstack([context, optima])
    groups = np.unique(together, axis=0, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(groups)
    alike = bool((counts == counts[0]).all()) and counts[0] > 1
    rows = np.argsort(groups, kind="stable").reshape(-1, counts[0]) if alike else np.arange(len(x))[:, None]
    first = rows[:, 0]
    return Logged(
        ValueData(*map(torch.from_numpy, (context[first], x[rows], value[rows]))),
        None if optima is None else torch.from_numpy(optima[first]),
        names,
    )


def _held_out(logged: Logged, seed: int) -> tuple[ValueData, ValueData, Tensor | None]:
    """Return data to learn from, data to measure the error on, and the optima of the former."""
    data, optima = logged.data, logged.optima
    if data.instances == 1:
        return *data.split(TEST_SHARE, seed), optima
    learned, held = split_indices(data.instances, TEST_SHARE, seed)
    return data.rows(learned), data.rows(held), None if optima is None else optima[learned]


def _quadratic(train: ValueData) -> QuadraticRegression:
    model = QuadraticRegression(train.dim, train.context_dim)
    soctk.fit(model, train)
    return model


def _error(model: soctk.ConvexSurrogate, data: ValueData) -> float:
    """Return the relative error of values counted from their mean, so that a constant model has 1."""
    spread = (data.value - data.value.mean()).norm() / data.value.norm().clamp(min=1e-300)
    return relative_error(model, replace(data)) / max(float(spread), 1e-300)
