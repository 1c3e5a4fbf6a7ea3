"""The AC power flow of a radial feeder, for many loadings at once, differentiable.

On a tree the current of a branch is the sum of those that the buses beyond it draw. With A[j, k] = 1 where branch k
lies on the way from the slack bus to bus j, Z = A diag(z) A' and powers s injected at the buses,

    V = V_0 + Z conj(s / V).                                                            (1)

Iterated, this is the backward/forward sweep; it contracts by about |Z| |s| / |V|^2, a few tenths at most on feeders
that can carry their load. The losses are sum_k r_k |I_k|^2 with I = A' conj(s / V).

D. Shirmohammadi, H. W. Hong, A. Semlyen and G. X. Luo, A compensation-based power flow method for weakly meshed
distribution and transmission networks, IEEE Transactions on Power Systems 3(2), 1988.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from soctk_tasks.grid.case import Case

ACCURACY = 1e-13
MOST_SWEEPS = 200


class PowerFlowError(RuntimeError):
    """A loading for which the sweep finds no voltages."""


@dataclass(frozen=True, eq=False)
class Feeder:
    """A tree of B - 1 branches; bus 0 is the slack bus, and branch k ends at bus k + 1, of which it is the only feed.

    Powers are in MVA, voltages in per unit.

    Attributes:
        parent: (B - 1,), the bus from which branch k comes, at most k.
        impedance: (B - 1,), complex, in per unit of 1 MVA.
        voltage: of the slack bus.
    """

    parent: np.ndarray
    impedance: np.ndarray
    voltage: float = 1.0

    @cached_property
    def paths(self) -> Tensor:
        """A: whether branch k is on the way to bus j + 1, float64 (B - 1, B - 1)."""
        A = np.eye(len(self.parent))
        for k, bus in enumerate(self.parent):
            if bus > 0:
                A[k] += A[bus - 1]
        return torch.from_numpy(A)

    @cached_property
    def _matrix(self) -> Tensor:
        """Z, complex (B - 1, B - 1), symmetric."""
        A = self.paths.to(torch.complex128)
        return A @ torch.diag(torch.from_numpy(self.impedance)) @ A.mT

    def voltages(self, injected: Tensor) -> Tensor:
        """Return V of all buses but the slack.

        Args:
            injected: complex powers s, (*batch, B - 1); the result is differentiable in them.

        Raises:
            PowerFlowError: loads beyond what the feeder carries.
        """
        s = injected.detach()
        V = torch.full_like(s, self.voltage)
        for _ in range(MOST_SWEEPS):
            before, V = V, self.voltage + (s / V).conj() @ self._matrix
            if not bool(torch.isfinite(V).all()):
                break
            if float((V - before).abs().max()) <= ACCURACY:
                return self._attached(V, injected) if injected.requires_grad else V
        raise PowerFlowError(f"no voltages found: the loads, at most {float(s.abs().max()):.3g}, are beyond the feeder")

    def _attached(self, V: Tensor, injected: Tensor) -> Tensor:
        """Return a solution V as a function of the powers: V - F'(V)^-1 F(V, s), F'(V) constant, has V's derivatives.

        F is the difference of the two sides of (1), F'(V) dV = dV + Z (conj(s / V^2) conj(dV)) as a real matrix.
        """
        F = V - self.voltage - (injected / V).conj() @ self._matrix
        C = self._matrix * (injected.detach() / V**2).conj().unsqueeze(-2)
        one = torch.eye(V.shape[-1], dtype=torch.float64)
        J = torch.cat([torch.cat([one + C.real, C.imag], dim=-1), torch.cat([C.imag, one - C.real], dim=-1)], dim=-2)
        step = torch.linalg.solve(J, torch.cat([F.real, F.imag], dim=-1).unsqueeze(-1)).squeeze(-1)
        return V - torch.complex(*step.chunk(2, dim=-1))

    def losses(self, injected: Tensor, V: Tensor) -> Tensor:
        """Return the active power lost in the branches, (*batch), in MW."""
        current = (injected / V).conj() @ self.paths.to(torch.complex128)
        r = torch.from_numpy(self.impedance.real.copy())
        return (r * (current.real.square() + current.imag.square())).sum(dim=-1)


def feeder_of(case: Case) -> Feeder:
    """Return a radial case as a feeder with the case's numbering of buses.

    Raises:
        ValueError: no tree, branches or buses that are not numbered outwards, or charging, shunts or tap ratios.
    """
    order = np.argsort(case.end)
    buses = case.buses
    tree = case.slack == 0 and np.array_equal(case.end[order], np.arange(1, buses))
    if not tree or not (case.start[order] < case.end[order]).all():
        raise ValueError(f"{case.name}: expected a tree of branches that lead outwards from the first bus")
    if case.charging.any() or case.shunt.any() or (case.ratio != 1).any():
        raise ValueError(f"{case.name}: expected branches of series impedances alone, and no shunts")
    return Feeder(case.start[order], case.impedance[order] / case.base)
