"""The AC power flow of a meshed network, by Newton steps in polar coordinates.

W. F. Tinney and C. E. Hart, Power flow solution by Newton's method, IEEE Transactions on Power Apparatus and Systems
86(11), 1967.
"""

from __future__ import annotations

import numpy as np

from soctk_tasks.grid.case import Case
from soctk_tasks.grid.feeder import PowerFlowError

ACCURACY = 1e-10
MOST_STEPS = 30


def admittances(case: Case) -> np.ndarray:
    """Return the bus admittance matrix Y, complex (B, B): I = Y V."""
    Y = np.diag(case.shunt).astype(complex)
    y, half = 1 / case.impedance, 0.5j * case.charging
    for i, j, series, charge, ratio in zip(case.start, case.end, y, half, case.ratio, strict=True):
        Y[i, i] += (series + charge) / abs(ratio) ** 2
        Y[j, j] += series + charge
        Y[i, j] -= series / np.conj(ratio)
        Y[j, i] -= series / ratio
    return Y


def flows(case: Case, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the complex powers that enter the branches at their two ends, (L,) each, at voltages V."""
    y, half = 1 / case.impedance, 0.5j * case.charging
    start, end = V[case.start], V[case.end]
    into = (y + half) / np.abs(case.ratio) ** 2 * start - y / np.conj(case.ratio) * end
    back = (y + half) * end - y / case.ratio * start
    return start * np.conj(into), end * np.conj(back)


def power_flow(case: Case, injected: np.ndarray, magnitude: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the complex voltages, (B,).

    Args:
        case: the network.
        injected: (B,), complex: active power counts at all buses but the slack bus, reactive power where magnitudes are
            not held.
        magnitude: (B,), the magnitudes that are held, elsewhere where the search starts.
        held: bool (B,); the slack bus's is held in any case.

    Raises:
        PowerFlowError: Newton's steps end nowhere.
    """
    Y, B = admittances(case), case.buses
    turns = np.flatnonzero(np.arange(B) != case.slack)
    moves = np.flatnonzero(~held & (np.arange(B) != case.slack))
    angle, size = np.zeros(B), np.asarray(magnitude, float).copy()
    for _ in range(MOST_STEPS):
        V = size * np.exp(1j * angle)
        current = Y @ V
        missing = V * np.conj(current) - injected
        F = np.r_[missing.real[turns], missing.imag[moves]]
        if not np.isfinite(F).all():
            break
        if np.abs(F).max() <= ACCURACY:
            return V
        unit = V / size
        by_angle = 1j * V[:, None] * np.conj(np.diag(current) - Y * V)
        by_size = V[:, None] * np.conj(Y * unit) + np.diag(np.conj(current) * unit)
        J = np.block(
            [
                [by_angle.real[np.ix_(turns, turns)], by_size.real[np.ix_(turns, moves)]],
                [by_angle.imag[np.ix_(moves, turns)], by_size.imag[np.ix_(moves, moves)]],
            ]
        )
        step = np.linalg.solve(J, -F)
        angle[turns] += step[: len(turns)]
        size[moves] += step[len(turns) :]
    raise PowerFlowError(f"{case.name}: no voltages found for these powers")
