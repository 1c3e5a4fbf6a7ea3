"""A model and a set as a file that decides without PyTorch (`soctk.runtime`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import soctk
from soctk.decide.compiled.solve import OUTCOMES, Region, arguments, between_checks
from soctk.decide.decision import ROUNDING
from soctk.decide.minimize import FEASIBLE
from soctk.decide.newton import DEFAULT_ITERATIONS, SMALLEST_TOLERANCE, SmoothingNewton
from soctk.decide.packed_model import PackedForm, PackedModel
from soctk.decide.prepare import Prepared, prepare
from soctk.decide.ranges import LARGEST_SHARE
from soctk.exports.machine_code import ADVANCE, ASSEMBLE, machine_code
from soctk.function import ConvexFunction
from soctk.runtime.file import Contents, write
from soctk.sets import FeasibleSet

REMEDY = "deploy it with soctk.prepare"


def to_runtime(
    model: ConvexFunction,
    feasible_set: FeasibleSet,
    path: str | os.PathLike[str],
    *,
    notes: Mapping[str, Any] | None = None,
) -> str:
    """Write a file from which `soctk.runtime.load` decides without PyTorch: coefficients and compiled code.

    The decisions are those of `soctk.prepare(model, feasible_set)` for one context at a time, but that no other solver
    is tried for what Newton steps leave short of the tolerance. The code is for this kind of machine and system (such
    as Linux on x86-64); on another processor of the kind it is made again when the file is loaded.

    Args:
        model: a float64 surrogate with a context map, or without a context, of at most 500 variables.
        feasible_set: `Simplex`, `Box` or `Budget` without coordinates that are fixed.
        path: the file.
        notes: what else is to be known of it; anything JSON can hold.

    Returns:
        The file's sha256, which `soctk.runtime.load` compares when it is given.

    Raises:
        ValueError: the set has another dimension, or a weight is not finite or makes the function non-convex.
        NotImplementedError: a model or a set of another kind; the message says what to do.
        OSError: the file cannot be written; an old one is left as it was.
    """
    prepared = prepare(model, feasible_set)
    packed = _packed(prepared)
    contexts = torch.zeros(1, model.context_dim, dtype=torch.float64)
    moves = isinstance(packed, PackedModel) and model.context_dim > 0
    template = packed.template if moves else packed.at(contexts)
    assert template is not None
    region = Region.of(feasible_set)
    common, sides, state = arguments(template, region, 1e-6, DEFAULT_ITERATIONS)
    layout, n = template.layout, template.layout.sizes["n"]
    arrays = {"shared": template.shared, "common": common, "sides": sides, "data": template.data, "state": state}
    arrays |= {"layout": layout.numbers, "columns": layout.weights}
    arrays |= {"lower": region.lo[0], "upper": region.hi[0]}
    if region.total is not None:
        arrays["total"] = np.array([region.total])
    header: dict[str, Any] = {
        "soctk": soctk.__version__,
        "model": type(model).__name__,
        "set": repr(feasible_set),
        "dim": n,
        "context_dim": model.context_dim,
        "notes": dict(notes or {}),
        "support": None if model.support is None else model.support.plain(),
        "max_iter": DEFAULT_ITERATIONS,
        "steps": between_checks(template)[1],
        "outcomes": [str(each) for each in OUTCOMES],
        "state": _places(layout.state, "outcome best_value best_bound iterations first_gap best_x"),
        "common": _places(layout.common, "tol max_iter"),
        "rounding": ROUNDING[torch.float64],
        "share": LARGEST_SHARE,
        "smallest": SMALLEST_TOLERANCE,
        "feasible": FEASIBLE[torch.float64] * max(1.0, feasible_set.magnitude),
        "room": {"memory": [layout.sizes["memory_size"]]},
        "numbers": {"first": 0, "last": 1, "steps": 0},
        "calls": {"advance": ADVANCE},
    }
    if moves:
        _add_context(packed, header, arrays)
    return write(path, Contents(header, arrays, machine_code(template.kinds)))


def _packed(prepared: Prepared) -> PackedModel | PackedForm:
    """Return the model as the compiled method takes it, or say why it cannot be."""
    model, feasible_set = prepared.model, prepared.feasible_set
    rows, name = feasible_set.rows(), type(feasible_set).__name__
    if rows is None or not rows.at_most_a_sum:
        raise NotImplementedError(f"feasible_set: expected Simplex, Box or Budget, got {name}; {REMEDY}")
    if not feasible_set.presolve().trivial:
        raise NotImplementedError(
            f"feasible_set: expected every coordinate to be free, got a {name} that fixes some; {REMEDY}"
        )
    if model.dtype != torch.float64:
        raise NotImplementedError(f"model: expected float64 weights, got {model.dtype}; export model.double()")
    if not isinstance(prepared.solver, SmoothingNewton) or prepared.packed is None:
        raise NotImplementedError(
            f"model: expected one with a context map or without a context, of dense terms and at most 500 variables, "
            f"got {type(model).__name__} of {model.dim}; {REMEDY}"
        )
    return prepared.packed


def _places(places: Any, names: str) -> dict[str, Any]:
    """Return where parts of a vector are, as JSON can hold it."""
    found = {name: getattr(places, name) for name in names.split()}
    return {name: [at.start, at.stop] if isinstance(at, slice) else at for name, at in found.items()}


def _add_context(packed: PackedModel, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Add what coefficients are made from."""
    ridges, units, index = packed.outer
    arrays |= {"mean": packed.mean, "unit": packed.scale, "gain": packed.gain, "bias": packed.bias}
    arrays |= {"outer_ridges": ridges, "outer_units": units, "index": index}
    arrays |= {name: part for name, part in packed.numbers._asdict().items() if part is not None}
    header["rows"] = packed.sizes
    rows, weights, inner, tanhs, squares = packed.sizes
    counts = {"rows": rows, "weights": weights, "ridges": inner, "units": tanhs + squares}
    header["room"] |= {name: [1, count] for name, count in counts.items()}
    header["numbers"]["shift"] = packed.shift
    header["calls"]["assemble"] = ASSEMBLE
