"""A CVXPY program that is compiled once and solved by Clarabel for many right-hand sides.

    minimise 1/2 u'P u + c'u  subject to  A u + s = b_0 + B theta, s in K

Only the parameters theta move; Clarabel keeps its ordering of the matrix from one solve to the next.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from soctk.lazy import clarabel
from soctk.lazy import cvxpy as cp

OPTIONS = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
SOLVED = ("Solved", "AlmostSolved", "InsufficientProgress")
"""How a solve may end for its numbers to be of use: bounds are lowered by the errors that they may have."""


class ProgramError(RuntimeError):
    """Clarabel found no solution, where there is one."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What one solve found.

    Attributes:
        u: all variables of the cone program.
        value: the smaller of the primal and the dual objective: what rounding leaves of a lower bound.
        slope: derivatives of the optimal value in theta.
    """

    u: np.ndarray
    value: float
    slope: np.ndarray


class RightHandSides:
    """The program with parameters that enter right-hand sides alone.

    Args:
        problem: a DPP problem whose objective has no constant.
        theta: its parameter, a vector.
    """

    def __init__(self, problem: cp.Problem, theta: cp.Parameter) -> None:
        count = theta.size
        theta.value = np.zeros(count)
        data = problem.get_problem_data(cp.CLARABEL)[0]
        self.A, self.c, self.b = sp.csc_matrix(data["A"]), data["c"], data["b"]
        self.P = sp.csc_matrix(data["P"]) if "P" in data else sp.csc_matrix((len(self.c), len(self.c)))
        columns = data["param_prob"].var_id_to_col  # none of variables that have attributes
        known = [variable for variable in problem.variables() if variable.id in columns]
        self._places = {v.name(): slice(columns[v.id], columns[v.id] + v.size) for v in known}
        self.B = np.empty((len(self.b), count))
        for k, row in enumerate(np.eye(count)):
            theta.value = row
            moved = problem.get_problem_data(cp.CLARABEL)[0]
            if (abs(moved["A"] - self.A) > 0).nnz or not np.array_equal(moved["c"], self.c):
                raise ValueError("problem: expected the parameter in right-hand sides alone")
            self.B[:, k] = moved["b"] - self.b
        self._dims = data["dims"]
        self._solver: Any = None

    @property
    def identity(self) -> str:
        """A hash of all of its numbers."""
        digest = hashlib.sha256()
        for matrix in (self.A, self.P):
            for part in (matrix.data, matrix.indices, matrix.indptr):
                digest.update(part.tobytes())
        for part in (self.c, self.b, self.B):
            digest.update(np.ascontiguousarray(part).tobytes())
        digest.update(repr(self._dims).encode())
        return digest.hexdigest()

    def solve(self, theta: np.ndarray) -> Solution:
        """Solve it for one vector of parameters.

        Raises:
            ProgramError: Clarabel says that there is no solution, or breaks down.
        """
        b = self.b + self.B @ theta
        if self._solver is None:  # made for one right-hand side, so that no answer depends on what was asked before
            self._solver = self._made(self.b)
        self._solver.update(b=b)
        found = self._solver.solve()
        if str(found.status) not in SOLVED:
            found = self._made(b).solve()  # with a scaling of its own
        if str(found.status) not in SOLVED:
            raise ProgramError(f"the cone program ended as {found.status}")
        return Solution(np.asarray(found.x), min(found.obj_val, found.obj_val_dual), -(np.asarray(found.z) @ self.B))

    def part(self, solution: Solution, name: str) -> np.ndarray:
        """Return a variable of the problem, flat, by its name."""
        return solution.u[self._places[name]]

    def _made(self, b: np.ndarray) -> Any:
        from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones

        settings = clarabel.DefaultSettings()
        settings.verbose, settings.presolve_enable, settings.max_threads = False, False, 1
        for name, value in OPTIONS.items():
            setattr(settings, name, value)
        upper = sp.triu(self.P, format="csc")
        return clarabel.DefaultSolver(upper, self.c, self.A, b, dims_to_solver_cones(self._dims), settings)
