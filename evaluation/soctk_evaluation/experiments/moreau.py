"""Moreau, a batched conic solver in C, on finished cone data: the programs of one lift, each over a set of its own.

What it is given and asked for is the same as what CVXPY hands to a solver; making the data is left to the caller, who
decides whether that counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk import ConicForm, FeasibleSet
from soctk.forms.cone_program import ORDER, ConeProgram, cone_program

BATCHES = (1, 16, 64, 128)
"""Sizes that are tried: beyond, a decision takes it longer again."""
MISSING = {"status": 'not installed: pip install "soctk[rivals]"'}


class MoreauBatch:
    """Cone programs of one structure, solved at once.

    Args:
        form: the functions.
        sets: the set of each.
        tol: all of its tolerances.
        device: "cpu" or "cuda".
        copies: how often all programs are solved, one after the other in a batch.

    Raises:
        ImportError: it is not installed.
    """

    def __init__(
        self, form: ConicForm, sets: Sequence[FeasibleSet], tol: float, *, device: str = "cpu", copies: int = 1
    ) -> None:
        import moreau  # pyright: ignore[reportMissingImports]

        programs = [cone_program(form.select(torch.tensor([k])), None, own) for k, own in enumerate(sets)]
        matrices, self._one = [program.A.tocsr() for program in programs], programs[0]
        pattern = sum(abs(matrix) for matrix in matrices).tocsr()
        pattern.sort_indices()
        places = pattern.nonzero()
        limits = moreau.IPMSettings(tol_gap_abs=tol, tol_gap_rel=tol, tol_feas=tol)
        self._solver = moreau.CompiledSolver(
            n=self._one.q.size,
            m=self._one.b.size,
            P_row_offsets=[0] * (self._one.q.size + 1),
            P_col_indices=[],
            A_row_offsets=pattern.indptr,
            A_col_indices=pattern.indices,
            cones=moreau.Cones(**_cones(self._one)),
            settings=moreau.Settings(device=device, batch_size=copies * len(sets), ipm_settings=limits),
        )
        self._q = np.tile([program.q for program in programs], (copies, 1))
        self._b = np.tile([program.b for program in programs], (copies, 1))
        numbers = np.stack([np.asarray(matrix[places]).ravel() for matrix in matrices])
        self._solver.setup(np.zeros((copies * len(sets), 0)), np.tile(numbers, (copies, 1)))

    def solve(self) -> Any:
        """Solve all programs; this alone is worth timing."""
        return self._solver.solve(self._q, self._b)

    def points(self, answer: Any) -> Tensor:
        """Return the decisions of an answer, (batch, n)."""
        return torch.from_numpy(np.asarray(answer.x)[:, self._one.variables["x"]])


def _cones(program: ConeProgram) -> dict[str, Any]:
    """Return the cones of a program as Moreau takes them."""
    rows = {kind: [(size, count) for each, size, count in program.cones if each == kind] for kind in ORDER}
    return {
        "num_zero_cones": sum(count for _, count in rows["zero"]),
        "num_nonneg_cones": sum(count for _, count in rows["nonneg"]),
        "so_cone_dims": [size for size, count in rows["soc"] for _ in range(count // size)],
    }
