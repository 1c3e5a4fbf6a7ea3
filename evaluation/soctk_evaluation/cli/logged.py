"""`soctk fit`: from a file of logged decisions to a saved surrogate."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import ConvexSurrogate, FitConfig, ValueData
from soctk.learn.data import HELD_OUT, split_indices
from soctk.losses import value_loss
from soctk.sets import SetAt
from soctk_baselines import QuadraticRegression
from soctk_evaluation.cli.commands import Fit
from soctk_evaluation.cli.feasible import column_names, make_region
from soctk_evaluation.cli.tabular import Table, read_arrays, read_columns, read_table
from soctk_evaluation.harness.request import UsageError

MOST_REPEATS = 2
COLUMNS = "columns"
"""The note of a saved model that holds the names of its inputs."""


@dataclass(frozen=True, eq=False)
class Logged:
    """What a file of logged decisions holds.

    Attributes:
        data: contexts, decisions and their values.
        optima: (N, n), or None.
        names: of the context's and the decision's coordinates.
        contexts: (N,), which of the different contexts each instance has.
        rows: (N,), the row of the file with each instance's optimum.
        shape: how many contexts and decisions there are, in words.
    """

    data: ValueData
    optima: Tensor | None
    names: dict[str, list[str]]
    contexts: Tensor
    rows: Tensor
    shape: str


def fit_logged(command: Fit) -> int:
    """Learn from a file, measure on held-out contexts, save the model."""
    logged = read_logged(command.data)
    data, output = logged.data, command.output or command.data.with_suffix(".safetensors")
    if data.value.numel() < 2:
        raise UsageError(f"{command.data}: expected at least two decisions, one to measure the error on, got one")
    check_output(output, ("data", command.data))
    source = read_columns(command.data) if column_names(command.feasible) else None
    region = make_region(command.feasible, data.dim, source)
    if region is not None and logged.optima is None:
        raise UsageError("--set: a fit uses the set only with optimal decisions, and the file has none")
    try:
        model = soctk.make_surrogate(command.model, data.dim, data.context_dim, command.max_parameters, command.seed)
        config = FitConfig(seed=command.seed, time_limit=command.time_limit, progress=sys.stderr.isatty())
        parts = _split(logged, command.seed)
        sets = None if region is None else region.sets
        sets = sets.select(parts.rows) if isinstance(sets, SetAt) else sets
        known = {} if parts.optima is None else {"optima": parts.optima, "feasible_set": sets}
        report = soctk.fit(model, parts.train, config, parts.validation, **known)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from None
    if report.status == "diverged":
        return _refuse(f"the fit of {command.model} diverged")
    models = {command.model: model, "least-squares quadratic": _quadratic(parts.train)}
    if not math.isfinite(float(value_loss(model, parts.test).detach())):
        return _refuse(f"the held-out error of {command.model} is not finite")
    soctk.save(model, output, notes={COLUMNS: logged.names})
    print(f"{logged.shape}, in {data.dim} variables; {parts.test.value.numel()} values held out")
    print(f"{command.model}: {model.parameter_count} weights, {report.seconds:.1f} s, {report.status}")
    _print_errors(models, parts.test, data)
    if report.decision_errors is not None:
        before, after = report.decision_errors
        print(f"mean distance from held-out optima: {after:.3g} ({before:.3g} before learning from the others)")
    elif parts.optima is not None:
        print("the optima were not used: the time limit came first")
    print(f"wrote {output}")
    return 0


def _refuse(reason: str) -> int:
    """Say why no model is written."""
    print(f"{reason}: no model written; look for values far from the others", file=sys.stderr)
    return 1


def read_logged(path: Path) -> Logged:
    """Return the logged decisions in a file.

    Raises:
        UsageError: no such file, another kind of file, missing names, or numbers that are not.
    """
    if path.suffix == ".npz":
        return _from_arrays(path)
    return _from_table(read_table(path), path)


def check_output(output: Path, *inputs: tuple[str, Path | None]) -> None:
    """Raise UsageError where the output cannot be written or would replace an input."""
    for name, path in inputs:
        if path is not None and output.resolve() == path.resolve():
            raise UsageError(f"--output: {output} is the {name} file")
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"--output: expected a file in a folder that exists, got {output}")


def coordinates(name: str, count: int) -> list[str]:
    """Return the names of coordinates that have none of their own."""
    return [f"{name}_{k}" for k in range(count)]


def _from_arrays(path: Path) -> Logged:
    arrays = read_arrays(path, ("x", "value"), ("context", "optimum"))
    x, value, optima = arrays["x"], arrays["value"], arrays.get("optimum")
    single = x.ndim == 2 and value.ndim == 1
    context = arrays["context"] if "context" in arrays else np.zeros((*x.shape[:1], 0))
    try:
        # Checks the shapes: of one decision in each row as of several.
        data = _value_data(context, x[:, None], value[:, None]) if single else _value_data(context, x, value)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if optima is not None and optima.shape != (data.instances, data.dim):
        raise UsageError(f"{path}: optimum: expected shape {(data.instances, data.dim)}, got {optima.shape}")
    names = {"context": coordinates("context", data.context_dim), "x": coordinates("x", data.dim)}
    if single:
        return _by_context(context, x, value, optima, names)
    contexts, ids = _different(context)
    shape = f"{contexts} contexts of {data.context_dim} numbers, {data.candidates} decision(s) in each row"
    known = None if optima is None else torch.from_numpy(optima)
    return Logged(data, known, names, torch.from_numpy(ids), torch.arange(len(ids)), shape)


def _from_table(table: Table, path: Path) -> Logged:
    names = {kind: table.names_of(kind) for kind in ("context", "x")}
    if not names["x"]:
        raise UsageError(f"{path}: expected columns x_*, the decisions; the columns are {table.listing}")
    context, x, value = table.numbers(names["context"]), table.numbers(names["x"]), table.numbers(["value"])[:, 0]
    if len(x) == 0:
        raise UsageError(f"{path}: expected at least one row, got none")
    optima = None
    if table.names_of("optimum"):
        optima = table.numbers([f"optimum_{name.removeprefix('x_')}" for name in names["x"]])
    return _by_context(context, x, value, optima, names)


def _by_context(
    context: np.ndarray, x: np.ndarray, value: np.ndarray, optima: np.ndarray | None, names: dict[str, list[str]]
) -> Logged:
    """Put the rows of a context together, as its candidates.

    Where contexts have unequally many rows, shorter ones repeat some of theirs, up to `MOST_REPEATS` times: what
    values vary by within a context is what decides. Beyond that each row stands alone.
    """
    contexts, ids = _different(context)
    counts = np.bincount(ids)
    least, most = int(counts.min()), int(counts.max())
    told = f"{contexts} contexts of {context.shape[1]} numbers, "
    if most > MOST_REPEATS * least:
        rows, told = np.arange(len(x))[:, None], told + f"{least} to {most} decisions each, taken one by one"
    else:
        order, ends = np.argsort(ids, kind="stable"), np.cumsum(counts)
        places = (ends - counts)[:, None] + np.arange(most) % counts[:, None]
        rows = order[places]
        told += f"{most} decision(s) each" if least == most else f"{least} to {most} decisions each, some repeated"
    first = rows[:, 0]
    data, known = _value_data(context[first], x[rows], value[rows]), None if optima is None else optima[first]
    optimal = None if known is None else torch.from_numpy(known)
    return Logged(data, optimal, names, torch.from_numpy(ids[first]), torch.from_numpy(first), told)


def _different(context: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the number of different contexts and which of them each row has."""
    ids = np.unique(context, axis=0, return_inverse=True)[1].reshape(-1)
    return int(ids.max(initial=-1)) + 1, ids


def _value_data(context: np.ndarray, x: np.ndarray, value: np.ndarray) -> ValueData:
    return ValueData(*map(torch.from_numpy, (context, x, value)))


class Parts(NamedTuple):
    """Data to learn from, to choose the state kept (None: `fit` takes some of the former), and to measure on.

    The optima are those of the former, from the rows `rows` of the file.
    """

    train: ValueData
    validation: ValueData | None
    test: ValueData
    optima: Tensor | None
    rows: Tensor


def _split(logged: Logged, seed: int) -> Parts:
    """Split by contexts, so that none is on two sides; a single context by its candidates."""
    data, optima = logged.data, logged.optima
    contexts = int(logged.contexts.max()) + 1
    if contexts == 1:
        train, test = data.split(seed=seed)
        return Parts(train, None, test, optima if train.instances == data.instances else None, logged.rows)
    rest, test = split_indices(contexts, HELD_OUT, seed)
    validation = rest[:0]
    if len(rest) > 1:
        learned, held = split_indices(len(rest), HELD_OUT, seed)
        rest, validation = rest[learned], rest[held]
    train, validation, test = (torch.isin(logged.contexts, part).nonzero()[:, 0] for part in (rest, validation, test))
    chosen = data.rows(validation) if len(validation) else None
    known = None if optima is None else optima[train]
    return Parts(data.rows(train), chosen, data.rows(test), known, logged.rows[train])


def _quadratic(train: ValueData) -> QuadraticRegression:
    model = QuadraticRegression(train.dim, train.context_dim)
    soctk.fit(model, train, validation=train)  # it chooses nothing
    return model


def _print_errors(models: Mapping[str, ConvexSurrogate], test: ValueData, data: ValueData) -> None:
    """Print root mean square errors on held-out values in units of all values' deviation; a constant's is about 1."""
    spread = float(_deviation(data.value - data.value.mean()))
    print(f"held-out error, in units of the values' deviation: {_listed(models, test, spread)}")
    within = float(_deviation(data.value - data.value.mean(dim=1, keepdim=True)))
    if within > 0:
        print(f"the same within contexts, which is what decides:   {_listed(models, test, within, level=0.0)}")


def _listed(models: Mapping[str, ConvexSurrogate], test: ValueData, unit: float, level: float = 1.0) -> str:
    errors = {name: float(value_loss(model, test, level).detach().sqrt()) for name, model in models.items()}
    return ", ".join(f"{name} {error / (unit or 1.0):.3g}" for name, error in errors.items())


def _deviation(residual: Tensor) -> Tensor:
    return residual.square().mean().sqrt()
