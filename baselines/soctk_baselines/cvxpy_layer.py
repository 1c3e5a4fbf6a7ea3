"""Decisions through a real cvxpylayers layer, with what it leaves unchecked checked.

cvxpylayers returns plausible numbers for infeasible, NaN or iteration-limited problems, and one failing
instance can lose a whole batch. Here every instance is solved on its own, its context checked first, its
answer verified (finite, feasible, certified gap), and a failing one is marked while its neighbours are safe.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk import ConvexSurrogate, Decision, FeasibleSet, Status
from soctk.checks import ArrayLike, check_positive
from soctk.decide.certificate import best_bound
from soctk.decide.decision import relative_gap
from soctk.decide.lifted import LiftedProblem

FEASIBILITY_TOLERANCE = 1e-5


class CvxpyLayerDecider:
    """argmin of a surrogate over a set as a cvxpylayers layer (Agrawal et al. 2019).

    The layer's program is the surrogate's lift, DPP in all coefficients that depend on the context.

    Args:
        model: a surrogate with a conic form.
        feasible_set: a set of the model's dimension.
        tol: relative gap that counts as optimal.
        solver_args: for the layer's solver; Clarabel's with a time limit of 10 s an instance by default.
    """

    def __init__(
        self,
        model: ConvexSurrogate,
        feasible_set: FeasibleSet,
        *,
        tol: float = 1e-6,
        solver_args: dict[str, Any] | None = None,
    ) -> None:
        check_positive(tol, "tol")
        self.model, self.feasible_set, self.tol = model, feasible_set, tol
        self.solver_args = {"solve_method": "Clarabel", "time_limit": 10.0} if solver_args is None else solver_args
        # Two contexts make the coefficients that depend on the context show; only the structure is used.
        template = model.conic_form(torch.zeros(2, model.context_dim, dtype=model.dtype)).detach()
        self._lifted = LiftedProblem(template, feasible_set)
        if not self._lifted.problem.is_dpp():
            raise ValueError(f"{type(model).__name__}: its lift is not DPP, so cvxpylayers cannot take it")
        from cvxpylayers.torch import CvxpyLayer  # pyright: ignore[reportPrivateImportUsage] # slow to import

        self._layer = CvxpyLayer(self._lifted.problem, self._lifted.parameters, [self._lifted.x])

    def layer(self, context: Tensor) -> Tensor:
        """Return decisions (N, n) for contexts (N, p), differentiable in context and weights.

        Raises:
            RuntimeError: an instance failed; a gradient through it would be meaningless.
        """
        values = self._lifted.parameter_values(self.model.form_at(context))
        rows = [self._solve_one([value[row] for value in values]) for row in range(context.shape[0])]
        bad = [row for row, x in enumerate(rows) if x is None]
        if bad:
            raise RuntimeError(f"cvxpylayers failed on instance {bad[0]} of {len(rows)}; decide() marks such instances")
        return torch.stack(rows)  # type: ignore[arg-type]

    @torch.no_grad()
    def decide(self, context: ArrayLike) -> Decision:
        """Return verified decisions for contexts (N, p), one status each; a failed instance has x = NaN."""
        started = time.perf_counter()
        contexts = self.model.check_context(context)
        form = self.model.form_at(contexts).check()
        values = self._lifted.parameter_values(form)
        size = form.size
        x = torch.full((size, self.model.dim), torch.nan, dtype=form.dtype)
        for row in range(size):
            answer = self._solve_one([value[row] for value in values])
            if answer is not None and float(self.feasible_set.violation(answer)) <= FEASIBILITY_TOLERANCE:
                x[row] = self.feasible_set.project(answer)
        solved = torch.isfinite(x).all(dim=-1)
        points = torch.where(solved.unsqueeze(-1), x, self.feasible_set.center(form.dtype)).unsqueeze(1)
        value = torch.where(solved, form.evaluate(points).squeeze(-1), torch.nan)
        lower = torch.where(solved, best_bound(form, self.feasible_set, points).squeeze(-1), -torch.inf)
        confirmed = (relative_gap(value, lower) <= self.tol).numpy()
        status = np.where(confirmed, Status.OPTIMAL, Status.INACCURATE).astype(object)
        status[~solved.numpy()] = Status.FAILED
        batch = form.batch_shape
        return Decision(
            x.reshape(*batch, self.model.dim),
            value.reshape(batch),
            lower.reshape(batch),
            status.reshape(batch),
            torch.zeros(batch, dtype=torch.int64),
            time.perf_counter() - started,
            scale=None,
            solver=np.full(batch, "cvxpylayers", dtype=object),
            violation=self.feasible_set.violation(points.squeeze(1)).reshape(batch),
        )

    def _solve_one(self, values: list[Tensor]) -> Tensor | None:
        try:
            (answer,) = self._layer(*values, solver_args=dict(self.solver_args))
        except Exception:
            return None
        return answer if bool(torch.isfinite(answer).all()) else None
