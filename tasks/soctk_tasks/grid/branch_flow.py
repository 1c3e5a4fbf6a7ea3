"""The branch-flow cone relaxation of a radial feeder: a lower bound of what any reactive powers can reach.

For branch k from bus i to bus j, with sending powers P_k and Q_k, squared current l_k and squared voltages w,

    P_k = sum of P_m over the branches m that leave j - p_j + r_k l_k
    Q_k = sum of Q_m over the branches m that leave j - q_j + x_k l_k
    w_j = w_i - 2 (r_k P_k + x_k Q_k) + |z_k|^2 l_k
    l_k w_i = P_k^2 + Q_k^2,

of which the last is relaxed to >=. With that the losses sum_k r_k l_k and every convex function of w are minimised by a
cone program, whose optimal value is a lower bound of the power flow's; where its decision has that value in the power
flow, it is optimal. M. Farivar and S. H. Low, Branch flow model: relaxations and convexification, IEEE Transactions on
Power Systems 28(3), 2013.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from soctk.lazy import cvxpy as cp
from soctk_tasks.grid.feeder import Feeder

OPTIONS = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
Objective = Callable[["cp.Expression", "cp.Expression"], "cp.Expression"]
"""Losses and squared voltages w (B - 1,) -> the expression to minimise, best of order one."""


class BranchFlow:
    """The relaxation as a CVXPY program with the loads as parameters, solved again and again.

    Args:
        feeder: the feeder.
        objective: what to minimise.
        place: (B - 1, n), the reactive powers injected at the buses by decisions x.
        limit: (n,), of |x|.
    """

    def __init__(self, feeder: Feeder, objective: Objective, place: np.ndarray, limit: np.ndarray) -> None:
        count, n = place.shape
        self.p, self.q = cp.Parameter(count), cp.Parameter(count)
        self.x = cp.Variable(n)
        constraints, losses, w = relaxed(feeder, self.p, self.q + place @ self.x)
        bounds = cp.abs(self.x) <= limit
        self.problem = cp.Problem(cp.Minimize(objective(losses, w)), [*constraints, bounds])

    def solve(self, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, float]:
        """Return x and the optimal value.

        Args:
            p, q: (B - 1,), powers injected at the buses, in MVA, those of x aside.

        Raises:
            RuntimeError: Clarabel does not solve it.
        """
        self.p.value, self.q.value = p, q
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 1e-9 is at the edge of what it reaches; what it reached shows in the gap
            self.problem.solve(solver="CLARABEL", **OPTIONS)
        if self.problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            raise RuntimeError(f"the relaxation is {self.problem.status}")
        return np.asarray(self.x.value), float(self.problem.value)


def relaxed(
    feeder: Feeder, p: cp.Expression, q: cp.Expression
) -> tuple[list[cp.Constraint], cp.Expression, cp.Expression]:
    """Return the constraints, the losses and the squared voltages w (B - 1,) at injected powers p and q (B - 1,)."""
    count = len(feeder.parent)
    P, Q, current, w = (cp.Variable(count) for _ in range(4))
    r, x = feeder.impedance.real, feeder.impedance.imag
    leaves = np.zeros((count, count))  # leaves[j, m]: branch m leaves the end of branch j
    for m, bus in enumerate(feeder.parent):
        if bus > 0:
            leaves[bus - 1, m] = 1.0
    before = leaves.T @ w + feeder.voltage**2 * (feeder.parent == 0)
    constraints = [
        leaves @ P - P == p - cp.multiply(r, current),
        leaves @ Q - Q == q - cp.multiply(x, current),
        w == before - 2 * (cp.multiply(r, P) + cp.multiply(x, Q)) + cp.multiply(r**2 + x**2, current),
        cp.SOC(current + before, cp.vstack([2 * P, 2 * Q, current - before]), axis=0),
    ]
    return constraints, r @ current, w
