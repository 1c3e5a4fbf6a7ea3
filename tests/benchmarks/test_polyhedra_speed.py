"""Decisions over polyhedra beside the solvers they replace, one thread, one run; quality beside time.

Run with: python -m pytest tests/benchmarks/test_polyhedra_speed.py --benchmark-only
Moreau is measured where it is installed (`pip install moreau`), at its best batch size.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from right_hand_sides import POLYHEDRA

import soctk
from soctk.decide.lifted import LiftedProblem
from soctk.forms.cone_program import ORDER, cone_program
from soctk.sets import SetAt

TOLERANCE = 1e-6
ONE_BY_ONE = 4
MOREAU_BATCHES = (1, 16, 64, 128)


def first(sets: SetAt, count: int) -> SetAt:
    return SetAt(sets.base, *(side if side.ndim == 1 else side[:count] for side in sets.sides))


class Race:
    """A model over sets of their own, and its rivals on the same cone program."""

    def __init__(self, kind: str, name: str, count: int = 1024) -> None:
        torch.set_num_threads(1)
        self.sets, self.context = POLYHEDRA[name](count)
        self.model = soctk.make_surrogate(kind, self.sets.dim, self.context.shape[1], max_parameters=None, seed=1)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for p in self.model.parameters():
                noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
                p.add_(0.3 * noise * p.abs().mean().clamp(min=0.1))

    def decide(self, count: int) -> soctk.Decision:
        return soctk.minimize(self.model, first(self.sets, count), self.context[:count], tol=TOLERANCE)

    def soctk_ms(self, count: int, repeats: int = 5) -> float:
        """Milliseconds a decision, the best of some calls."""
        self.decide(count)
        return min(self._timed(lambda: self.decide(count)) for _ in range(repeats)) / count

    def clarabel_ms(self) -> float:
        """Milliseconds for re-solving one parameterised program by CVXPY and Clarabel."""
        form = self.model.conic_form(self.context[: ONE_BY_ONE + 1]).detach()
        lifted = LiftedProblem(form, first(self.sets, ONE_BY_ONE + 1))
        values = [np.asarray(value) for value in lifted.parameter_values(form)]

        def solve(row: int) -> None:
            lifted.rows.set_row(row)
            status = lifted.solve([value[min(row, len(value) - 1)] for value in values], "CLARABEL", {})
            assert status in ("optimal", "inaccurate")

        solve(0)  # compiles the program
        return min(self._timed(lambda row=row: solve(row)) for row in range(1, ONE_BY_ONE + 1))

    def moreau_ms(self) -> dict[int, float]:
        """Milliseconds a decision by Moreau, for some batch sizes; its setup is not counted."""
        moreau = pytest.importorskip("moreau")
        count = max(MOREAU_BATCHES)
        form, sets = self.model.conic_form(self.context[:count]).detach(), first(self.sets, count).flat((count,))
        programs = [cone_program(form.select(torch.tensor([k])), None, sets.one(k)) for k in range(count)]
        A = [program.A.tocsr() for program in programs]
        one, found = programs[0], {}
        rows = {kind: [(size, number) for each, size, number in one.cones if each == kind] for kind in ORDER}
        cones = moreau.Cones(
            num_zero_cones=sum(number for _, number in rows["zero"]),
            num_nonneg_cones=sum(number for _, number in rows["nonneg"]),
            so_cone_dims=[size for size, number in rows["soc"] for _ in range(number // size)],
        )
        pattern = sum(abs(matrix) for matrix in A).tocsr()
        pattern.sort_indices()
        values = np.stack([np.asarray((matrix + 0 * pattern)[pattern.nonzero()]).ravel() for matrix in A])
        for batch in MOREAU_BATCHES:
            ipm = moreau.IPMSettings(tol_gap_abs=TOLERANCE, tol_gap_rel=TOLERANCE, tol_feas=TOLERANCE)
            settings = moreau.Settings(device="cpu", batch_size=batch, ipm_settings=ipm)
            solver = moreau.CompiledSolver(
                n=one.q.size,
                m=one.b.size,
                P_row_offsets=[0] * (one.q.size + 1),
                P_col_indices=[],
                A_row_offsets=pattern.indptr,
                A_col_indices=pattern.indices,
                cones=cones,
                settings=settings,
            )
            q, b = ([getattr(program, name) for program in programs[:batch]] for name in ("q", "b"))
            solver.setup(np.zeros((batch, 0)), values[:batch])
            solver.solve(q, b)
            found[batch] = min(self._timed(lambda s=solver, q=q, b=b: s.solve(q, b)) for _ in range(3)) / batch
        return found

    @staticmethod
    def _timed(call) -> float:
        started = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - started)


@pytest.fixture(scope="module", params=[(name, kind) for name in POLYHEDRA for kind in ("soc", "relu")], ids="-".join)
def race(request) -> Race:
    name, kind = request.param
    return Race(kind, name)


@pytest.mark.parametrize("batch", [1, 64, 1024])
def test_decisions(benchmark, race, batch) -> None:
    """Certified decisions for a batch, and how many times as long each rival takes for one."""
    decision = benchmark(race.decide, batch)
    assert bool(decision.optimal.all())
    benchmark.extra_info["gap_max"] = float(decision.relative_gap.max())
    benchmark.extra_info["violation_max"] = float(decision.violation.max())
    each = 1e3 * benchmark.stats["mean"] / batch
    benchmark.extra_info["cvxpy_clarabel_takes"] = race.clarabel_ms() / each
