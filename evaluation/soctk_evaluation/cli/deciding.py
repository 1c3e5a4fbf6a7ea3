"""`soctk decide`: from a saved surrogate and a file of contexts to decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

import soctk
from soctk import Status
from soctk.decide.decision import Decision
from soctk.io.checkpoint import CheckpointError, read_notes
from soctk_evaluation.cli.commands import Decide
from soctk_evaluation.cli.feasible import EXPECTED, Region, column_names, make_region
from soctk_evaluation.cli.logged import COLUMNS, check_output, coordinates
from soctk_evaluation.cli.tabular import (
    COLUMN_FORMATS,
    Arrays,
    Table,
    check_format,
    read_arrays,
    read_columns,
    write_columns,
)
from soctk_evaluation.harness.request import UsageError


def decide_logged(command: Decide) -> int:
    """Decide in every context of a file, write the decisions with their gaps."""
    if command.feasible.set is None:
        raise UsageError(f"--set: {EXPECTED}")
    for name, number in (("time-limit", command.time_limit), ("scale", command.scale)):
        if number is not None and not 0 < number < float("inf"):
            raise UsageError(f"--{name}: expected a positive number, got {number}")
    try:
        model, notes = soctk.load(command.model), read_notes(command.model)
    except (FileNotFoundError, CheckpointError) as error:
        raise UsageError(str(error)) from None
    names = notes.get(COLUMNS, {})
    output = command.output or command.model.with_suffix(".decisions.csv")
    if output.suffix not in COLUMN_FORMATS:
        raise UsageError(f"--output: expected a file ending in {', '.join(COLUMN_FORMATS)}, got {output}")
    check_format(output)
    check_output(output, ("model", command.model), ("contexts", command.contexts))
    has_columns, path = bool(column_names(command.feasible)), command.contexts
    if path is not None and model.context_dim == 0 and not has_columns:
        raise UsageError(f"contexts: the model takes none, got {path}")
    source = None if path is None else read_columns(path)
    by_rows = command.prices or command.infeasible == "nearest"
    region = make_region(command.feasible, model.dim, source, by_rows=by_rows)
    assert region is not None
    context = read_contexts(source, model.context_dim, names.get("context"))
    try:
        limits = {"tol": command.tol, "scale": command.scale, "time_limit": command.time_limit}
        decision = soctk.minimize(model, region.sets, context, infeasible=command.infeasible, **limits)
    except (ValueError, NotImplementedError) as error:
        raise UsageError(str(error)) from None
    write_columns(_columns(decision, names.get("x") or coordinates("x", model.dim), region, command), output)
    print(_summary(decision, command.tol))
    print(f"wrote {output}")
    return 0 if bool(decision.optimal.all()) else 1


def read_contexts(source: Table | Arrays | None, context_dim: int, names: list[str] | None) -> Tensor | None:
    """Return the contexts (N, p) in a file, a table's columns by the names that the model was learned from.

    Raises:
        UsageError: a model that needs a file and has none, or a file that does not fit it.
    """
    if context_dim == 0:
        return None
    if source is None:
        raise UsageError(f"contexts: expected a file with contexts of {context_dim} numbers, as the model's")
    if isinstance(source, Arrays):
        context = read_arrays(source.path, ("context",))["context"]
        if context.ndim != 2 or context.shape[1] != context_dim:
            raise UsageError(f"{source.path}: context: expected shape (N, {context_dim}), got {context.shape}")
    else:
        context = source.numbers(names or coordinates("context", context_dim))
    if len(context) == 0:
        raise UsageError(f"{source.path}: expected at least one context, got none")
    return torch.from_numpy(context)


def _columns(decision: Decision, x_names: list[str], region: Region, command: Decide) -> dict[str, np.ndarray]:
    """Return what is written, column by column; NaN where there is no decision."""
    count = decision.status.size
    x = decision.x.reshape(count, -1).numpy()
    columns = {name: x[:, k] for k, name in enumerate(x_names)}
    for name in ("value", "lower_bound", "gap"):
        columns[name] = getattr(decision, name).reshape(count).numpy()
    empty = decision.status.reshape(count) == Status.INFEASIBLE
    columns["lower_bound"] = np.where(empty, np.nan, columns["lower_bound"])
    columns["status"] = decision.status.reshape(count).astype(str)
    if decision.relaxation is not None:
        columns["relaxation"] = decision.relaxation.reshape(count).numpy()
    if command.prices:
        columns |= _prices(decision, x_names, region)
    return columns


def _prices(decision: Decision, x_names: list[str], region: Region) -> dict[str, np.ndarray]:
    """Return the prices by name, those of one column added: the derivative of the value in that column.

    Bounds that no set has are left out.
    """
    prices, sets = decision.prices, region.sets
    assert prices is not None
    assert not isinstance(sets, soctk.Polyhedron)
    rows = sets.rows
    own = {side: [f"{side}_{name.removeprefix('x_')}" for name in x_names] for side in ("lower", "upper")}
    own |= {"f": coordinates("f", len(rows.E)) if rows.total is None else ["total"], "h": coordinates("h", len(rows.G))}
    found: dict[str, Any] = {}
    for side, usual in own.items():
        part = getattr(prices, side).reshape(decision.status.size, -1).numpy() + 0.0  # + 0.0: there is one zero
        bounded = torch.isfinite(torch.atleast_2d(getattr(sets, side))).any(dim=0)
        given = region.columns.get(side, tuple(usual))
        for k in np.flatnonzero(bounded.numpy()):
            name = f"price_{given[k if len(given) > 1 else 0]}"
            found[name] = found.get(name, 0.0) + part[:, k]
    return found


def _summary(decision: Decision, tol: float) -> str:
    """Return how many decisions are certified, in words."""
    count, empty = decision.status.size, int((decision.status == Status.INFEASIBLE).sum())
    parts = [f"{int(decision.optimal.sum())} of {count} decisions certified to a relative gap of {tol:g}"]
    gaps = decision.relative_gap.flatten()[torch.from_numpy(decision.status.flatten() != Status.INFEASIBLE)]
    if gaps.numel() > 0:
        parts.append(f"the largest is {float(gaps.max()):.2g}")
    if empty:
        parts.append(f"the set is proved empty for {empty}")
    moved = 0 if decision.relaxation is None else int((decision.relaxation > 0).sum())
    if moved:
        parts.append(f"rows were moved for {moved} whose set is empty")
    return "; ".join([*parts, f"{decision.seconds:.2g} s in all"])
