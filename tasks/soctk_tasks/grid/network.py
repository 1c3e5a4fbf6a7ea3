"""The second-order cone relaxation of the AC equations of a meshed network.

With w_i = |V_i|^2 and W_ij = V_i conj(V_j) for every pair of buses that a branch joins, the powers into a branch of
admittance y, charging susceptance b and tap ratio T from bus i to bus j are linear,

    S_ij = (conj(y) - j b / 2) w_i / |T|^2 - conj(y) / T W_ij
    S_ji = (conj(y) - j b / 2) w_j - conj(y / T) conj(W_ij),

and |W_ij|^2 = w_i w_j is relaxed to <=. R. A. Jabr, Radial distribution load flow using conic programming, IEEE
Transactions on Power Systems 21(3), 2006; the bounds are those of PGLib-OPF (arXiv:1908.02788).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from soctk.lazy import cvxpy as cp
from soctk_tasks.grid.case import Case


@dataclass(frozen=True, eq=False)
class Network:
    """A network as parts of a CVXPY problem.

    Attributes:
        w: (B,), squared voltages, a variable named "w".
        real, imag: (E,), W_ij of each pair of buses i < j.
        p, q: (G,), powers of the generators, in units of the case's base, named "p" and "q".
        drawn_p, drawn_q: (B,), what buses send into the network less what generators give: minus the loads.
        constraints: all but the balances at the buses.
    """

    w: cp.Variable
    real: cp.Variable
    imag: cp.Variable
    p: cp.Variable
    q: cp.Variable
    drawn_p: cp.Expression
    drawn_q: cp.Expression
    constraints: list[cp.Constraint]


def network_of(case: Case) -> Network:
    """Return the relaxation of a case; the limits of its generators, voltages, angles and branches hold."""
    sizes = {"w": case.buses, "p": len(case.gen_bus), "q": len(case.gen_bus)}
    w, p, q = (cp.Variable(size, name=name) for name, size in sizes.items())
    pairs, pair, turn = pairs_of(case)
    real, imag = cp.Variable(len(pairs), name="real"), cp.Variable(len(pairs), name="imag")
    own, mutual = _at_start(case)
    other, back = _at_end(case)
    start, end = (_rows(buses, case.buses) for buses in (case.start, case.end))
    c, s = _rows(pair, len(pairs)) @ real, sp.diags(turn) @ _rows(pair, len(pairs)) @ imag
    flows = []
    for at, diagonal, between, sign in ((start, own, mutual, 1.0), (end, other, back, -1.0)):
        v = at @ w
        P = sp.diags(diagonal.real) @ v + sp.diags(between.real) @ c - sign * (sp.diags(between.imag) @ s)
        Q = sp.diags(diagonal.imag) @ v + sp.diags(between.imag) @ c + sign * (sp.diags(between.real) @ s)
        flows.append((at, P, Q))
    gens = _rows(case.gen_bus, case.buses).T
    drawn_p = sum(at.T @ P for at, P, _ in flows) + sp.diags(case.shunt.real) @ w - gens @ p
    drawn_q = sum(at.T @ Q for at, _, Q in flows) - sp.diags(case.shunt.imag) @ w - gens @ q
    first, second = (_rows(pairs[:, k], case.buses) @ w for k in (0, 1))
    limited = np.isfinite(case.limit)
    constraints = [
        w >= case.v_min**2,
        w <= case.v_max**2,
        p >= case.p_min,
        p <= case.p_max,
        q >= case.q_min,
        q <= case.q_max,
        cp.SOC(first + second, cp.vstack([2 * real, 2 * imag, first - second]), axis=0),
        s <= sp.diags(np.tan(case.angle_max)) @ c,
        s >= sp.diags(np.tan(case.angle_min)) @ c,
    ]
    if limited.any():
        within = case.limit[limited]
        constraints += [cp.SOC(within, cp.vstack([P[limited], Q[limited]]), axis=0) for _, P, Q in flows]
    return Network(w, real, imag, p, q, drawn_p, drawn_q, constraints)


def pairs_of(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs of buses with a branch, (E, 2), each branch's pair, (L,), and 1 or -1 as it runs along it."""
    ends = np.column_stack([case.start, case.end])
    pairs, pair = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)
    return pairs, pair.reshape(-1), np.where(case.start < case.end, 1.0, -1.0)


def _at_start(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of w_i and W_ij in S_ij, (L,) each."""
    y = np.conj(1 / case.impedance)
    return (y - 0.5j * case.charging) / np.abs(case.ratio) ** 2, -y / case.ratio


def _at_end(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of w_j and conj(W_ij) in S_ji, (L,) each."""
    y = np.conj(1 / case.impedance)
    return y - 0.5j * case.charging, -y / np.conj(case.ratio)


def _rows(index: np.ndarray, count: int) -> sp.csr_matrix:
    """Return the matrix that takes entries `index` of a vector of `count`."""
    return sp.csr_matrix((np.ones(len(index)), (np.arange(len(index)), index)), (len(index), count))
