"""Decisions through a real cvxpylayers layer, with what it leaves unchecked checked.

cvxpylayers returns plausible numbers for infeasible, NaN or iteration-limited problems, and one failing
instance can lose a whole batch. Here every instance is solved on its own, its context checked first, its
answer verified (finite, feasible, certified gap), and a failing one is marked while its neighbours are safe.

`CvxpyLayers` is the same as a method of `soctk.minimize`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from soctk import ConvexSurrogate, Decision, FeasibleSet, Status
from soctk.checks import ArrayLike, check_positive
from soctk.decide.certificate import best_bound
from soctk.decide.decision import relative_gap
from soctk.decide.lifted import LiftedProblem
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result
from soctk.decide.solver import Solver

if TYPE_CHECKING:
    from cvxpylayers.torch import CvxpyLayer  # pyright: ignore[reportPrivateImportUsage]

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
        self._decide = self._program(trained=False)

    def _program(self, *, trained: bool) -> tuple[LiftedProblem, CvxpyLayer]:
        """Return the lift and its layer, in whose parameters the shared coefficients are if they are to be trained."""
        from cvxpylayers.torch import CvxpyLayer  # pyright: ignore[reportPrivateImportUsage] # slow to import

        # Two contexts make the coefficients that depend on the context show; only the structure is used.
        template = self.model.conic_form(torch.zeros(2, self.model.context_dim, dtype=self.model.dtype))
        lifted = LiftedProblem(template if trained else template.detach(), self.feasible_set, trained=trained)
        if not lifted.problem.is_dpp():
            raise ValueError(f"{type(self.model).__name__}: its lift is not DPP, so cvxpylayers cannot take it")
        return lifted, CvxpyLayer(lifted.problem, lifted.parameters, [lifted.x])

    @cached_property
    def _train(self) -> tuple[LiftedProblem, CvxpyLayer]:
        with torch.enable_grad():
            return self._program(trained=True)

    def layer(self, context: Tensor, *, weights: bool = True) -> Tensor:
        """Return decisions (N, n) for contexts (N, p), differentiable in context and weights.

        Args:
            context: (N, p).
            weights: False for no derivatives in weights that all contexts share, which makes a smaller program.

        Raises:
            ValueError: the program with shared weights as parameters is not DPP.
            RuntimeError: an instance failed; a gradient through it would be meaningless.
        """
        lifted, layer = self._train if weights else self._decide
        values = lifted.parameter_values(self.model.form_at(context))
        rows = [self._solve_one(layer, [value[row] for value in values]) for row in range(context.shape[0])]
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
        lifted, layer = self._decide
        values = lifted.parameter_values(form)
        size = form.size
        x = torch.full((size, self.model.dim), torch.nan, dtype=form.dtype)
        for row in range(size):
            answer = self._solve_one(layer, [value[row] for value in values])
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
            violation=torch.where(solved, self.feasible_set.violation(points.squeeze(1)), torch.nan).reshape(batch),
        )

    def _solve_one(self, layer: CvxpyLayer, values: list[Tensor]) -> Tensor | None:
        try:
            (answer,) = layer(*values, solver_args=dict(self.solver_args))
        except Exception:
            return None
        return answer if bool(torch.isfinite(answer).all()) else None


@dataclass(frozen=True)
class CvxpyLayers(Solver):
    """Decisions by `CvxpyLayerDecider` as it is, for `soctk.minimize(method=CvxpyLayers())`; of limits `tol` counts."""

    name = "cvxpylayers"

    def refuses(self, problem: Problem) -> str | None:
        """Return why it cannot solve the problem: without a conic form there is no lift."""
        if problem.has_form and isinstance(problem.model, ConvexSurrogate):
            return None
        return f'{type(problem.model).__name__} has no conic form; use method="cvxpy"'

    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        """Minimise every function of the problem: see `Solver.solve`."""
        assert isinstance(problem.model, ConvexSurrogate)
        decision = CvxpyLayerDecider(problem.model, problem.feasible_set, tol=limits.tol).decide(problem.contexts)
        return Result(decision.x, decision.value, decision.lower_bound, decision.iterations, decision.status, self.name)
