"""Clarabel and SCS, called on the cone data that CVXPY makes for them."""

from __future__ import annotations

from typing import Any

import clarabel  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
import scs

ROUGH_SCS = 1e-3


def solve_directly(solver: str, data: dict[str, Any], start: Any = None) -> tuple[Any, float]:
    """Return the answer of CLARABEL or SCS to CVXPY's data for it, and its own seconds; SCS from an earlier answer."""
    return _direct_clarabel(data) if solver == "CLARABEL" else _direct_scs(data, start)


def _direct_clarabel(data: dict[str, Any]) -> tuple[Any, float]:
    from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL, dims_to_solver_cones

    settings = clarabel.DefaultSettings()  # pyright: ignore[reportAttributeAccessIssue]
    settings.verbose = False
    P = data["P"] if data.get("P") is not None else np.zeros((0, 0))
    program = (P, data["c"], data["A"], data["b"], dims_to_solver_cones(data[CLARABEL.DIMS]))
    solution = clarabel.DefaultSolver(*program, settings).solve()  # pyright: ignore[reportAttributeAccessIssue]
    return solution, solution.solve_time


def _direct_scs(data: dict[str, Any], start: dict[str, Any] | None) -> tuple[Any, float]:
    from cvxpy.reductions.solvers.conic_solvers.scs_conif import SCS, dims_to_solver_dict

    arguments = {name: data[name] for name in ("A", "b", "c")}
    if data.get("P") is not None:
        arguments["P"] = data["P"]
    options: dict[str, Any] = {"verbose": False, "eps_abs": ROUGH_SCS, "eps_rel": ROUGH_SCS}
    given = {"warm_start": False} if start is None else {name: start[name] for name in ("x", "y", "s")}
    solution = scs.SCS(arguments, dims_to_solver_dict(data[SCS.DIMS]), **options).solve(**given)
    return solution, solution["info"]["solve_time"] / 1000
