"""The lift of a conic form: the cone program whose value function it is, as sparse data for conic solvers.

For fixed x (Theorem "SOC-ICNN as an SOCP value function")

    f(x) = min  b0 + v'x + c'z_L + sum_h alpha_h s_h + sum_g lambda_g t_g
           s.t. z_l >= W_l x + U_l z_{l-1} + b_l,  z_l >= 0,  s_h >= ||B_h x + e_h||^2 / 2,  t_g >= ||A_g x + d_g||,

and with x free over a set its minimum is the decision. Every term brings its own rows (`Term.cones`); softplus,
logistic and log-sum-exp terms bring exponential cones. In standard form, w all variables together,

    min q'w + constant   s.t.  b - A w in K,     dual:  max -b'z + constant  s.t.  A'z + q = 0, z in K*.

The multipliers z give the term's dual point: with rows b - A w = ... + E u, y = -E'z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from soctk.checks import ArrayLike, as_tensor, check_last_dim, to_numpy
from soctk.forms.sum_of_terms import SumOfTerms
from soctk.lazy import clarabel, scs
from soctk.lazy import cvxpy as cp
from soctk.lazy import sparse as sp
from soctk.sets import FeasibleSet
from soctk.status import Status
from soctk.terms.base import Dual
from soctk.terms.cones import Affine, Cone, ConeBuilder, Rows, concat, free_name

ORDER: tuple[Cone, ...] = ("zero", "nonneg", "soc", "exp")
"""Rows are sorted so, as SCS wants them; Clarabel takes any order."""
CLARABEL_STATUS = {
    "Solved": Status.OPTIMAL,
    "AlmostSolved": Status.INACCURATE,
    "PrimalInfeasible": Status.INFEASIBLE,
    "AlmostPrimalInfeasible": Status.INFEASIBLE,
    "DualInfeasible": Status.UNBOUNDED,
    "AlmostDualInfeasible": Status.UNBOUNDED,
    "MaxIterations": Status.ITERATION_LIMIT,
    "MaxTime": Status.TIME_LIMIT,
}
SCS_STATUS = {
    1: Status.OPTIMAL,
    2: Status.INACCURATE,
    -1: Status.UNBOUNDED,
    -2: Status.INFEASIBLE,
    -6: Status.UNBOUNDED,
    -7: Status.INFEASIBLE,
}


@dataclass(frozen=True, eq=False)
class ConeSolution:
    """What a solver returned, and what became of it when it was put into the program.

    Attributes:
        status: the solver's word.
        variables: every variable by name, NaN where the solver has none.
        value: the objective at them.
        dual_value: the dual objective at the multipliers.
        dual: the dual point (y for each term) the multipliers give.
        violation: the largest distance of a row from its cone.
        dual_violation: the largest of |A'z + q| and of the distances of z from the dual cones.
        iterations: the solver's.
        seconds: the solver's own time, its setup included.
    """

    status: Status
    variables: dict[str, np.ndarray]
    value: float
    dual_value: float
    dual: Dual
    violation: float
    dual_violation: float
    iterations: int
    seconds: float


@dataclass(frozen=True, eq=False)
class ConeProgram:
    """min q'w + constant subject to b - A w in K.

    Attributes:
        q: (m,) costs.
        constant: what the objective adds.
        A: (k, m) sparse.
        b: (k,).
        cones: (kind, rows of one cone, number of rows) for consecutive rows, in the order zero, nonneg, soc, exp.
        variables: where each named variable lies in w: z1, ..., zL, s, t of the theorem, and x where it is free.
        rows: where each named constraint lies.
        inner: for each term the matrix E of its argument u in the rows.
    """

    q: np.ndarray
    constant: float
    A: sp.csc_array
    b: np.ndarray
    cones: tuple[tuple[Cone, int, int], ...]
    variables: dict[str, slice]
    rows: dict[str, slice]
    inner: tuple[sp.csr_array, ...]

    def solve(self, solver: str = "CLARABEL", **settings: Any) -> ConeSolution:
        """Solve by Clarabel or SCS, called directly.

        Args:
            solver: "CLARABEL" or "SCS".
            settings: the solver's own, e.g. `tol_gap_abs=1e-10` or `eps_abs=1e-6`.

        Raises:
            ValueError: an unknown solver.
        """
        if solver not in ("CLARABEL", "SCS"):
            raise ValueError(f'solver: expected "CLARABEL" or "SCS", got {solver!r}')
        if self.b.size == 0:  # solvers take no program without rows: a constant, or a linear function of a free x
            status = Status.UNBOUNDED if bool(self.q.any()) else Status.OPTIMAL
            return self._verified(status, np.zeros(self.q.size), np.zeros(0), 0, 0.0)
        return self._by_clarabel(settings) if solver == "CLARABEL" else self._by_scs(settings)

    def clarabel_data(self) -> tuple[sp.csc_matrix, np.ndarray, sp.csc_matrix, np.ndarray, list]:
        """Return (P, q, A, b, cones), the arguments of `clarabel.DefaultSolver` before its settings."""
        size = self.q.size
        kinds: list = []
        for kind, group, count in self.cones:
            if kind == "zero":
                kinds.append(clarabel.ZeroConeT(count))
            elif kind == "nonneg":
                kinds.append(clarabel.NonnegativeConeT(count))
            elif kind == "soc":
                kinds += [clarabel.SecondOrderConeT(group)] * (count // group)
            else:
                kinds += [clarabel.ExponentialConeT()] * (count // 3)
        return sp.csc_matrix((size, size)), self.q, sp.csc_matrix(self.A), self.b, kinds

    def scs_data(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (data, cone), the first two arguments of `scs.SCS`."""
        total = {kind: sum(count for k, _, count in self.cones if k == kind) for kind in ORDER}
        groups = [group for kind, group, count in self.cones if kind == "soc" for _ in range(count // group)]
        cone = {"z": total["zero"], "l": total["nonneg"], "q": groups, "ep": total["exp"] // 3}
        return {"A": sp.csc_matrix(self.A), "b": self.b, "c": self.q}, cone

    def to_cvxpy(self) -> cp.Problem:
        """Return the program as a `cp.Problem` whose variables have the theorem's names (`problem.var_dict`)."""
        if not self.variables:
            return cp.Problem(cp.Minimize(self.constant))
        variables = [cp.Variable(part.stop - part.start, name=name) for name, part in self.variables.items()]
        stacked = cp.hstack(variables)
        slack: Any = self.b - self.A @ stacked if self.b.size else None
        constraints: list[Any] = []
        start = 0
        for kind, group, count in self.cones:
            part = slack[start : start + count]
            start += count
            if kind == "zero":
                constraints.append(part == 0)
            elif kind == "nonneg":
                constraints.append(part >= 0)
            else:
                columns = cp.reshape(part, (group, count // group), order="F")
                soc = kind == "soc"
                constraints.append(cp.SOC(columns[0], columns[1:], axis=0) if soc else cp.ExpCone(*columns))
        return cp.Problem(cp.Minimize(self.q @ stacked + self.constant), constraints)

    # -- solvers -----------------------------------------------------------------------------------------

    def _by_clarabel(self, options: dict[str, Any]) -> ConeSolution:
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        for name, value in options.items():
            if not hasattr(settings, name):
                raise TypeError(f"{name}: Clarabel has no such setting")
            setattr(settings, name, value)
        answer = clarabel.DefaultSolver(*self.clarabel_data(), settings).solve()
        status = CLARABEL_STATUS.get(str(answer.status), Status.FAILED)
        return self._verified(status, answer.x, answer.z, answer.iterations, answer.solve_time)

    def _by_scs(self, options: dict[str, Any]) -> ConeSolution:
        answer = scs.SCS(*self.scs_data(), **{"verbose": False, **options}).solve()
        info = answer["info"]
        status = SCS_STATUS.get(info["status_val"], Status.FAILED)
        return self._verified(
            status, answer["x"], answer["y"], info["iter"], 1e-3 * (info["setup_time"] + info["solve_time"])
        )

    def _verified(self, status: Status, w: Any, z: Any, iterations: int, seconds: float) -> ConeSolution:
        point, multipliers = np.asarray(w, dtype=float), np.asarray(z, dtype=float)
        if status in (Status.INFEASIBLE, Status.UNBOUNDED, Status.FAILED) or not np.isfinite(point).all():
            point, multipliers = np.full(self.q.size, np.nan), np.full(self.b.size, np.nan)
        dual = Dual(tuple(torch.from_numpy(-(matrix.T @ multipliers)).reshape(1, 1, -1) for matrix in self.inner))
        stationarity = np.abs(self.A.T @ multipliers + self.q).max(initial=0.0)
        return ConeSolution(
            status=status,
            variables={name: point[part] for name, part in self.variables.items()},
            value=float(self.q @ point + self.constant),
            dual_value=float(self.constant - self.b @ multipliers),
            dual=dual,
            violation=self._outside(self.b - self.A @ point, dual=False),
            dual_violation=max(float(stationarity), self._outside(multipliers, dual=True)),
            iterations=int(iterations),
            seconds=float(seconds),
        )

    def _outside(self, rows: np.ndarray, *, dual: bool) -> float:
        """Return how far rows lie outside of the cones, or of the dual cones."""
        worst, start = 0.0, 0
        for kind, group, count in self.cones:
            part = rows[start : start + count]
            start += count
            worst = max(worst, float(np.nanmax(_violations(kind, part.reshape(-1, group), dual), initial=0.0)))
        return worst if np.isfinite(rows).all() else float("inf")


def _violations(kind: Cone, rows: np.ndarray, dual: bool) -> np.ndarray:
    """Return the violation of each cone of a product, rows (cones, group); the exponential cones' in logarithms."""
    if kind == "zero":
        return np.zeros(len(rows)) if dual else np.abs(rows).max(axis=1)
    if kind == "nonneg":
        return np.maximum(-rows, 0).max(axis=1)
    if kind == "soc":
        return np.maximum(np.linalg.norm(rows[:, 1:], axis=1) - rows[:, 0], 0)
    x, y, t = rows.T  # u, v and w in the dual cone
    # (x, y, t): y exp(x / y) <= t where y > 0, else x <= 0 = y <= t; (u, v, w): -u exp(v / u - 1) <= w, u = 0 <= v, w
    factor, product = (-x, x - y) if dual else (y, x)
    inside = factor > 0
    exponent = np.divide(product, factor, out=np.zeros_like(factor), where=inside)
    curved, flat = factor * np.exp(np.minimum(exponent, 700.0)) - t, np.maximum.reduce([x, -y, -t])
    return np.maximum(np.where(inside, curved, flat), 0)


def cone_program(form: SumOfTerms, x: ArrayLike | None = None, feasible_set: FeasibleSet | None = None) -> ConeProgram:
    """Return the lift of a form of one function.

    Args:
        form: one function (batch shape () or a selected one).
        x: (n,), the point to evaluate at; None to make x a variable.
        feasible_set: what a free x is constrained to; none for the set of all x.

    Raises:
        ValueError: several functions, a bad x, or both x and a set.
        NotImplementedError: a set without rows.
    """
    if form.size != 1:
        raise ValueError(f"form: expected one function, got batch shape {form.batch_shape}; select one first")
    if x is not None and feasible_set is not None:
        raise ValueError("expected a fixed x or a feasible set for a free one, got both")
    builder = ConeBuilder()
    free = x is None
    point = builder.variable("x", form.dim) if free else Affine(_fixed(x, form.dim))
    arguments, minima = [], []
    for index, term in enumerate(form.terms):
        # The argument is a variable of its own at first, so that its matrix in the rows is known; then it is replaced.
        name = f"argument {index}"  # no variable's name has a space
        u = Affine(np.zeros(term.map.rows), {name: sp.csr_array(sp.eye_array(term.map.rows))})
        data = {key: to_numpy(tensor[0]) for key, tensor in term.coefficients().items() if key != "A"}
        minima.append(_by_rows(builder, name, term.cones(builder, u, data)))
        arguments.append((name, point.times(term.map.to_sparse()) + Affine(data["offset"])))
    objective = point.times(to_numpy(form.linear[0])) + Affine.of(float(form.constant.detach()))
    for part in minima:
        objective = objective + part
    if feasible_set is not None:
        _constrain(builder, point, feasible_set)
    return _assemble(builder, objective, arguments)


def _by_rows(builder: ConeBuilder, argument: str, minimum: Affine) -> Affine:
    """Return a minimum in which no argument stands: a copy does, w = u, so that rows alone tell the dual of u."""
    matrix = minimum.parts.get(argument)
    if matrix is None:
        return minimum
    size = matrix.shape[1]
    w = builder.variable("w", size)
    builder.require("copy", "zero", w - Affine(np.zeros(size), {argument: sp.csr_array(sp.eye_array(size))}))
    others = {name: part for name, part in minimum.parts.items() if name != argument}
    return Affine(minimum.constant, others) + w.times(matrix)


def _constrain(builder: ConeBuilder, x: Affine, feasible_set: FeasibleSet) -> None:
    rows = feasible_set.rows()
    if rows is None:
        raise NotImplementedError(
            f"feasible_set: expected one with rows(), got {type(feasible_set).__name__}; put its constraints() beside "
            "form.expression(x) in a cp.Problem"
        )
    lower, upper = to_numpy(rows.lower), to_numpy(rows.upper)
    low, high = (np.flatnonzero(np.isfinite(side)) for side in (lower, upper))
    if low.size:
        builder.require("lower", "nonneg", x[low] - Affine(lower[low]))
    if high.size:
        builder.require("upper", "nonneg", Affine(upper[high]) - x[high])
    if len(rows.E):
        builder.require("equality", "zero", x.times(sp.csr_array(to_numpy(rows.E))) - Affine(to_numpy(rows.f)))
    if len(rows.G):
        builder.require("inequality", "nonneg", Affine(to_numpy(rows.h)) - x.times(sp.csr_array(to_numpy(rows.G))))


def _assemble(builder: ConeBuilder, objective: Affine, arguments: list[tuple[str, Affine]]) -> ConeProgram:
    rows = sorted(builder.rows, key=lambda part: ORDER.index(part.cone))
    stacked = concat([part.affine for part in rows]) if rows else Affine(np.zeros(0))
    inner = tuple(stacked.parts.get(name, sp.csr_array((stacked.size, u.size))) for name, u in arguments)
    final = Affine(stacked.constant, {n: m for n, m in stacked.parts.items() if n in builder.variables})
    for (_, u), matrix in zip(arguments, inner, strict=True):
        final = final + u.times(matrix)
    places, start = {}, 0
    for name, size in builder.variables.items():
        places[name], start = slice(start, start + size), start + size
    columns = [final.parts.get(n, sp.csr_array((final.size, size))) for n, size in builder.variables.items()]
    cost = [_row(objective.parts.get(name), size) for name, size in builder.variables.items()]
    return ConeProgram(
        q=np.concatenate([np.zeros(0), *cost]),
        constant=float(objective.constant[0]),
        A=sp.csc_array(-sp.hstack(columns)) if columns else sp.csc_array((final.size, 0)),
        b=final.constant,
        cones=tuple((part.cone, part.group, part.affine.size) for part in rows),
        variables=places,
        rows=_places(rows),
        inner=inner,
    )


def _places(rows: list[Rows]) -> dict[str, slice]:
    places: dict[str, slice] = {}
    start = 0
    for part in rows:
        name = free_name(part.name, places)
        places[name], start = slice(start, start + part.affine.size), start + part.affine.size
    return places


def _row(matrix: sp.csr_array | None, size: int) -> np.ndarray:
    return np.zeros(size) if matrix is None else np.asarray(matrix.toarray()).reshape(-1)


def _fixed(x: ArrayLike, dim: int) -> np.ndarray:
    point = as_tensor(x, "x")
    check_last_dim(point, dim, "x")
    if point.ndim != 1:
        raise ValueError(f"x: expected one point of shape ({dim},), got {tuple(point.shape)}")
    return to_numpy(point)
