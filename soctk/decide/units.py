"""Gaps in a unit of the caller's: functions rescaled, so that a solver's own constants fit them, and answers back.

In place of f a solver is given g = (f - a) / s, with a = f(x0), x0 where it starts, and s a power of two near the
unit, so that its own constants fit. Terms are linear in their weights and dividing by a power of two is exact, so
rounding enters by the constant alone: c = fl(b0 - a) with b0 - a = c + e, e exactly what rounding lost (Knuth 1969),

    f = s g + a + e.

A bound b of g thus gives s b + a + e. Its two additions err by at most u |sum| each, u = eps / 2, so that

    fl(fl(s b + a) + e) - 2 eps (|s b + a| + |e|)

is below it, by enough to cover the rounding of the margin itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.decide.exact import bound_given, exact_difference
from soctk.decide.problem import Problem
from soctk.decide.result import Result

LARGEST_EXPONENT = 160
"""Of s as a power of two: squares of numbers that are much smaller vanish, and with them a part of the bound."""


@dataclass(frozen=True, eq=False)
class Rescaled:
    """A problem in a unit, rescaled.

    Attributes:
        problem: to minimise g; its unit is the given one's divided by s.
        given: to minimise f.
        scale: s, (N,), powers of two.
        level: a, (N,).
        lost: e, (N,).
    """

    problem: Problem
    given: Problem
    scale: Tensor
    level: Tensor
    lost: Tensor

    @classmethod
    def of(cls, problem: Problem, start: Tensor | None, size: Tensor | None = None) -> Rescaled:
        """Return the rescaled problem.

        Args:
            problem: one with a unit.
            start: (N, n) as its solver will be given, the centre by default.
            size: (N,) what s is to be near, where it is positive; the unit by default.
        """
        form, unit = problem.form, problem.unit
        assert unit is not None
        first = problem.center if start is None else start
        level = form.evaluate(first.unsqueeze(1))
        size = unit if size is None else torch.where(size.isfinite() & (size > 0), size, unit)
        scale = torch.ldexp(torch.ones_like(unit), (torch.frexp(size).exponent - 1).clamp(max=LARGEST_EXPONENT))
        constant, lost = exact_difference(form.constant, level)
        rescaled = dataclasses.replace(form, constant=constant).scaled(1 / scale)
        inner = Problem(rescaled, problem.feasible_set, unit / scale)
        return cls(inner, problem, scale, level.squeeze(-1), lost.squeeze(-1))

    def back(self, result: Result) -> Result:
        """Return the solver's answer as one to the problem given."""
        eps = torch.finfo(result.lower_bound.dtype).eps
        result.lower_bound = bound_given(result.lower_bound, self.scale, self.level, self.lost, eps)
        value = self.given.form.evaluate(result.x.unsqueeze(1)).squeeze(-1)
        known = torch.isfinite(result.value)  # infinite where no point is
        result.value = torch.where(known, value, result.value)
        result.unit = self.given.unit
        result.rows = None if result.rows is None else result.rows.times(self.scale.cpu().numpy())
        return result
