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

from collections.abc import Callable

import numpy as np

from soctk.lazy import cvxpy as cp
from soctk_tasks.grid.feeder import Feeder
from soctk_tasks.grid.right_hand_sides import RightHandSides

Objective = Callable[["cp.Expression", "cp.Expression"], "cp.Expression"]
"""Losses and squared voltages w (B - 1,) -> the expression to minimise, best of order one."""


class BranchFlow:
    """The relaxation, compiled once and solved for many loads.

    Args:
        feeder: the feeder.
        objective: what to minimise.
        place: (B - 1, n), the reactive powers injected at the buses by decisions x.
        limit: (n,), of |x|.
    """

    def __init__(self, feeder: Feeder, objective: Objective, place: np.ndarray, limit: np.ndarray) -> None:
        count, n = place.shape
        x, injected = cp.Variable(n, name="x"), cp.Parameter(2 * count)
        constraints, losses, w = relaxed(feeder, injected[:count], injected[count:] + place @ x)
        problem = cp.Problem(cp.Minimize(objective(losses, w)), [*constraints, cp.abs(x) <= limit])
        self._program = RightHandSides(problem, injected)

    def solve(self, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, float]:
        """Return x and the optimal value.

        Args:
            p, q: (B - 1,), powers injected at the buses, in MVA, those of x aside.

        Raises:
            ProgramError: Clarabel does not solve it.
        """
        found = self._program.solve(np.concatenate([p, q]))
        return self._program.part(found, "x"), found.value


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
