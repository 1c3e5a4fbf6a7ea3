"""What is computed for one decision over a set: which compiled functions are called, in which order, with what.

Over bounds and at most a sum there are Newton steps alone. Where coordinates are fixed, or equalities leave fewer free,
the function is written in the free ones first; over rows, points and bounds are then proved in the rows as given
(`soctk.decide.polyhedral`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from soctk.decide.compiled.form import Packed, substituted
from soctk.decide.compiled.free_rows import SUSPECT, TOO_NARROW, UNBOUNDED
from soctk.decide.compiled.solve import OUTCOMES, Region, arguments, between_checks, of_proof
from soctk.decide.free_coordinates import Reduction
from soctk.decide.narrow import NARROW
from soctk.decide.newton import DEFAULT_ITERATIONS
from soctk.decide.packed_model import PackedModel
from soctk.exports.machine_code import ASSEMBLE
from soctk.sets import FeasibleSet, Polyhedron
from soctk.sets.rows import Rows

USUAL_TOLERANCE = 1e-6


@dataclass
class Search:
    """What a file has of a search.

    Attributes:
        arrays: float64, int64 and bool arrays by name.
        own: those of them that are written to.
        room: shapes of others that are.
        numbers: by name.
        calls: the arguments of compiled functions by name, in the order of their calls; lists of them are tuples.
        header: what else is to be known.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    own: list[str] = field(default_factory=list)
    room: dict[str, list[int]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)


def search_of(template: Packed, feasible_set: FeasibleSet) -> Search:
    """Return what is computed for one decision by functions packed as a template, over a set with rows."""
    rows = feasible_set.rows()
    assert rows is not None
    search = _of_function(template, rows)
    if type(feasible_set) is Polyhedron:
        _over_rows(search, template, feasible_set)
    else:
        presolved = feasible_set.presolve()
        region, inner = Region.of(presolved.reduced), template
        if not presolved.trivial:
            free = presolved.columns.numpy()
            basis, origin = (
                np.ascontiguousarray(np.eye(feasible_set.dim)[:, free]),
                presolved.point.numpy()[None].copy(),
            )
            origin[:, free] = 0.0
            inner = _substitute(search, template, basis, origin, 0)
            search.header["expand"] = True
        search.header["magnitude"] = feasible_set.magnitude
        search.arrays["away"] = _away(presolved.reduced, region)
        _advance(search, inner, region)
    return search


def add_context(packed: PackedModel, search: Search) -> None:
    """Add what coefficients are made from."""
    ridges, index = packed.outer
    search.arrays |= {"mean": packed.mean, "unit": packed.scale, "gain": packed.gain, "bias": packed.bias}
    search.arrays["shift"] = packed.shift
    if packed.context_range is not None:
        search.arrays["context_range"] = packed.context_range
    search.arrays |= {"outer_ridges": ridges, "index": index}
    search.arrays |= {name: part for name, part in packed.numbers._asdict().items() if part is not None}
    search.header["rows"] = packed.sizes
    counts = dict(zip(("rows", "weights", "ridges"), packed.sizes, strict=False))
    search.room |= {name: [1, count] for name, count in counts.items()}
    search.calls["assemble"] = ASSEMBLE


def _away(feasible_set: FeasibleSet, region: Region) -> np.ndarray:
    """Return points half of the way from where a search begins to vertices in three directions, (3, n).

    The minimum may be where it begins: how much f varies is measured there.
    """
    one, other = torch.arange(feasible_set.dim, dtype=torch.float64) + torch.tensor([[0.0], [0.5]])
    slopes = torch.stack([one.cos(), -one.cos(), (1.7 * other).sin()])
    return (region.start + feasible_set.linear_minimizer(slopes).numpy()) / 2


def _of_function(template: Packed, rows: Rows) -> Search:
    """Return the function and the set's rows."""
    search, layout = Search(), template.layout
    search.arrays = {"layout": layout.numbers, "shared": template.shared, "data": template.data}
    search.arrays |= {"columns": layout.weights, "lower": rows.lower.numpy(), "upper": rows.upper.numpy()}
    search.arrays |= {"stacked": rows.stacked, "right": np.concatenate([rows.f.numpy(), rows.h.numpy()])}
    search.own = ["data"]
    search.header |= {"equalities": len(rows.E), "outcomes": [str(each) for each in OUTCOMES]}
    return search


def _substitute(search: Search, template: Packed, basis: np.ndarray, origin: np.ndarray, constraints: int) -> Packed:
    """Add the substitution x = origin + basis w; return the functions of w."""
    inner = substituted(template, basis, origin, constraints)
    search.arrays |= {"basis": basis, "origin": origin}
    if basis.shape[0] != basis.shape[1]:
        search.arrays["inner_shared"] = inner.shared
        search.room["inner"] = list(inner.data.shape)
        search.numbers["term_rows"] = template.layout.sizes["rows"]
        search.calls["substitute"] = ["shared", "term_rows", "basis", "origin", "data", "inner"]
    return inner


def _advance(search: Search, inner: Packed, region: Region) -> None:
    """Add Newton steps."""
    common, sides, state = arguments(inner, region, USUAL_TOLERANCE, DEFAULT_ITERATIONS)
    search.arrays |= {"common": common, "sides": sides, "state": state, "inner_layout": inner.layout.numbers}
    search.own += ["common", "state"]
    search.room["memory"] = [inner.layout.sizes["memory_size"]]
    shared, data = ("inner_shared", "inner") if "inner" in search.room else ("shared", "data")
    vectors = ["common", "sides", data, "state", "memory", "memory", "places"]
    search.numbers |= {"first": 0, "last": 1, "steps": 0}
    search.calls["advance"] = ["inner_layout", shared, *vectors, "first", "last", "steps"]
    search.header["steps"] = between_checks(inner)[1]
    names = "outcome best_value best_bound iterations first_gap x best_x best_cache best_multiplier"
    search.header["state"] = _places(inner.layout.state, names)
    search.header["common"] = _places(inner.layout.common, "tol max_iter")


def _over_rows(search: Search, template: Packed, feasible_set: Polyhedron) -> None:
    """Add everything over a polyhedron.

    Raises:
        NotImplementedError: it is one point.
    """
    reduction = Reduction.of(feasible_set.at().arrays)
    e, n = reduction.elimination, template.layout.sizes["n"]
    if e.dim == 0:
        raise NotImplementedError("feasible_set: expected more than one point")
    inner = _substitute(search, template, e.basis, reduction.origin, len(e.R))
    _advance(search, inner, reduction.region(None, 0.0))
    search.arrays |= {"inside": reduction.sets.inside[0], "free": e.free}
    search.arrays |= {"R": e.R, "inverse": e.inverse, "length": e.length}
    search.arrays |= {"basic": e.basic, "above": e.above, "below": e.below, "ends": reduction.sides}
    given = dict(zip(("given_lower", "given_upper", "given_f", "given_h"), reduction.given, strict=True))
    given |= dict(zip(("box_lower", "box_upper"), reduction.box, strict=True))
    search.arrays |= given | {"proof_common": of_proof(template)[0], "empty": np.zeros(1, dtype=bool)}
    search.own += ["proof_common", "empty"]
    if not reduction.flags & UNBOUNDED:
        _reduce(search, reduction, [*given][:4], inner)
    rows, sizes = search.arrays["stacked"].shape[0], inner.layout.sizes
    search.room |= {"proof_memory": [template.layout.sizes["memory_size"]], "points": [1, e.dim]}
    search.room |= {"passes": [1, sizes["kept"]], "multipliers": [1, sizes["constraints"]]}
    search.room |= {"of_constraints": [e.length.size], "of_axes": [e.dim]}
    search.room |= {"x": [1, n], "y": [1, rows], "w": [1, n], "proved": [4, 1]}
    matrices, places = ["basis", "R", "inverse", "length", "stacked"], ["basic", "above", "below"]
    sets, found = [matrices, places, ["origin", "ends"], [*given]], ["points", "passes", "multipliers"]
    answers = ["x", "y", "w", "proved"]
    function = ["layout", "shared", "proof_common", "data", "proof_memory"]
    search.calls["prove"] = [*function, sets, found, "empty", ["of_constraints", "of_axes"], answers]


def _reduce(search: Search, reduction: Reduction, given: list[str], inner: Packed) -> None:
    """Add what follows from other right-hand sides f and h."""
    e = reduction.elimination
    search.arrays |= {"lift": e.lift, "G": e.G, "constant_rows": e.constant, "every_f": reduction.f}
    search.own += ["every_f", "origin", "ends", "sides", "right", *given[2:]]
    search.room |= {"low": list(reduction.low.shape), "high": list(reduction.high.shape), "taken": [len(e.G)]}
    search.room |= {"middle": [1, e.dim], "largest": [e.dim]}
    search.numbers |= {"axes": e.dim, "narrow": NARROW}
    groups, sides = ["below", "above", "constant_rows"], [*given[:2], "every_f", given[3]]
    found = ["origin", "ends", "low", "high", "middle", "largest"]
    search.calls["reduce"] = [["lift", "G", "length"], groups, sides, "axes", "narrow", "taken", *found]
    search.header["narrow"] = SUSPECT | TOO_NARROW
    search.header["common"] |= _places(inner.layout.common, "largest most")


def _places(places: Any, names: str) -> dict[str, Any]:
    """Return where parts of a vector are, as JSON can hold it."""
    found = {name: getattr(places, name) for name in names.split()}
    return {name: [at.start, at.stop] if isinstance(at, slice) else at for name, at in found.items()}
