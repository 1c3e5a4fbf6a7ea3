"""A model and a set as a file that decides without PyTorch (`soctk.runtime`)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import torch

import soctk
from soctk.checks import as_json, check_notes
from soctk.decide.decision import ROUNDING
from soctk.decide.newton import DEFAULT_ITERATIONS, SMALLEST_TOLERANCE, SmoothingNewton
from soctk.decide.packed_model import PackedForm, PackedModel
from soctk.decide.prepare import Prepared, prepare
from soctk.decide.ranges import LARGEST_SHARE, SMALLEST_UNIT, resolved_share
from soctk.function import ConvexFunction, check_function
from soctk.runtime.file import Contents, write
from soctk.sets import FeasibleSet, Polyhedron
from soctk.sets.rounding import FEASIBLE

REMEDY = "deploy it with soctk.prepare"


def to_runtime(
    model: ConvexFunction,
    feasible_set: FeasibleSet,
    path: str | os.PathLike[str],
    *,
    notes: Mapping[str, Any] | None = None,
) -> str:
    """Write a file from which `soctk.runtime.load` decides without PyTorch: coefficients and compiled code.

    The decisions are those of `soctk.prepare(model, feasible_set)` for one context at a time, but that nothing else is
    tried for what the first search by Newton steps leaves short of the tolerance. The code is for this kind of machine
    and system (such as Linux on x86-64); on another processor of the kind it is made again when the file is loaded.

    Args:
        model: a float64 surrogate with a context map, or without a context, of at most 500 variables.
        feasible_set: `Simplex`, `Box`, `Budget` or `Polyhedron`, its right-hand sides as they are.
        path: the file.
        notes: what else is to be known of it; anything JSON can hold.

    Returns:
        The file's sha256, which `soctk.runtime.load` compares when it is given.

    Raises:
        ValueError: the set has another dimension, or a weight is not finite or makes the function non-convex.
        NotImplementedError: a model or a set of another kind; the message says what to do.
        OSError: the file cannot be written; an old one is left as it was.
    """
    from soctk.exports.machine_code import machine_code  # Numba is loaded when it is needed
    from soctk.exports.searches import add_context, search_of

    check_function(model)
    model = model.on_processor()
    prepared = prepare(model, feasible_set)
    packed = _packed(prepared)
    moves = isinstance(packed, PackedModel) and model.context_dim > 0
    contexts = torch.zeros(1, model.context_dim, dtype=torch.float64)
    template = packed.template if moves else packed.at(contexts)
    assert template is not None
    search = search_of(template, feasible_set)
    if moves:
        add_context(packed, search)
    header: dict[str, Any] = {
        "soctk": soctk.__version__,
        "model": type(model).__name__,
        "set": repr(feasible_set),
        "dim": model.dim,
        "context_dim": model.context_dim,
        "notes": json.loads(as_json(check_notes(notes or {}), "notes")),
        "support": None if model.support is None else model.support.plain(),
        "max_iter": DEFAULT_ITERATIONS,
        "rounding": ROUNDING[torch.float64],
        "share": LARGEST_SHARE,
        "smallest_unit": SMALLEST_UNIT[torch.float64],
        "resolved": resolved_share(template.layout.sizes["rows"], model.dim),
        "smallest": SMALLEST_TOLERANCE,
        "feasible": FEASIBLE,
        **{name: getattr(search, name) for name in ("own", "room", "numbers", "calls")},
        **search.header,
    }
    return write(path, Contents(header, search.arrays, machine_code(template.kinds)))


def _packed(prepared: Prepared) -> PackedModel | PackedForm:
    """Return the model as the compiled method takes it, or say why it cannot be."""
    model, feasible_set = prepared.model, prepared.feasible_set
    if not isinstance(feasible_set, Polyhedron):
        name = type(feasible_set).__name__
        raise NotImplementedError(f"feasible_set: expected Simplex, Box, Budget or Polyhedron, got {name}; {REMEDY}")
    if model.dtype != torch.float64:
        raise NotImplementedError(f"model: expected float64 weights, got {model.dtype}; export model.double()")
    if not isinstance(prepared.solver, SmoothingNewton) or prepared.packed is None:
        raise NotImplementedError(
            f"model: expected one with a context map or without a context, of dense terms and at most 500 variables, "
            f"got {type(model).__name__} of {model.dim}; {REMEDY}"
        )
    if feasible_set.presolve().single_point:
        raise NotImplementedError("feasible_set: expected more than one point; there is nothing to decide")
    return prepared.packed
