"""Decisions under a learned limit beside the cone programs they solve, one thread, one run: rows of the same groups.

Run with: python -m pytest tests/benchmarks/test_limit_speed.py --benchmark-only
"""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import pytest
import torch
from torch import Tensor

import soctk
from soctk.forms.embedding import FormEmbedding

TOLERANCE = 1e-6
MODELS = {
    "soc": lambda dim, seed: soctk.SOCICNN(dim, 5, quadratics=(dim,), norms=(dim,), hyperbolics=4, seed=seed),
    "relu": lambda dim, seed: soctk.ReLUICNN(dim, 5, hidden=(32, 32), seed=seed),
}


class Case:
    """A cost and a limit on a box, and contexts under which the limit costs something."""

    def __init__(self, kind: str, dim: int, count: int) -> None:
        torch.set_num_threads(1)
        self.box = soctk.Box(dim, -1.0, 1.0)
        self.cost, self.limit = MODELS[kind](dim, 0), MODELS[kind](dim, 1)
        generator = torch.Generator().manual_seed(0)
        self.many = torch.randn(64, 5, generator=generator, dtype=torch.float64)
        self.contexts = self.many[:count]
        with torch.no_grad():
            for parameter in (*self.cost.parameters(), *self.limit.parameters()):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
            self.limit.x_scale.neg_()  # what costs little is what the limit is about
            free = soctk.minimize(self.cost, self.box, self.contexts)
            least = soctk.minimize(self.limit, self.box, self.contexts).value
            self.limit.value_mean.sub_(float((least + 0.5 * (self.limit(free.x, self.contexts) - least)).max()))

    def decide(self) -> Tensor:
        """Decide all contexts by `soctk.minimize`."""
        return soctk.minimize(self.cost, self.box, self.contexts, subject_to=[self.limit], tol=TOLERANCE).x

    def programs(self) -> Callable[[], Tensor]:
        """Return what solves one program, compiled by CVXPY, for each context by Clarabel.

        Its structure is that of many contexts: what one alone has no parameters for would be constants.
        """
        forms = [model.conic_form(self.many).detach() for model in (self.cost, self.limit)]
        x = cp.Variable(self.box.dim)
        parts = [FormEmbedding(form, x) for form in forms]
        constraints = [c for part in parts for c in part.constraints] + self.box.constraints(x)
        program = cp.Problem(cp.Minimize(parts[0].value), [*constraints, parts[1].value <= 0])
        parameters = [parameter for part in parts for parameter in part.parameters]
        values = [v.numpy() for part, form in zip(parts, forms, strict=True) for v in part.parameter_values(form)]

        def run() -> Tensor:
            answers = []
            for row in range(len(self.contexts)):
                for parameter, value in zip(parameters, values, strict=True):
                    parameter.value = value[row]
                program.solve(solver="CLARABEL")
                answers.append(torch.from_numpy(x.value))
            return torch.stack(answers)

        run()  # compiled once, as a user would
        return run


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("dim", [10, 50])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name", ["soctk.minimize", "CVXPY with Clarabel"])
def test_decisions_under_a_limit(benchmark, name: str, kind: str, dim: int, count: int) -> None:
    """Both meet the limit and cost the same, to 1e-5."""
    case = Case(kind, dim, count)
    benchmark.group = f"{count} decisions under a limit, {kind}, d = {dim}"
    points = benchmark(case.decide if name == "soctk.minimize" else case.programs())
    decision = soctk.minimize(case.cost, case.box, case.contexts, subject_to=[case.limit], tol=TOLERANCE)
    assert bool(decision.optimal.all())
    assert bool((decision.multipliers > 1e-6).any()), "the limit costs nothing anywhere"
    cost, above = case.cost(points, case.contexts).detach(), case.limit(points, case.contexts).detach()
    assert bool((cost <= decision.value + 1e-5 * decision.value.abs().clamp(min=1)).all())
    assert float(above.max()) <= 1e-5
    benchmark.extra_info.update(limit_max=float(above.max()), gap_max=float(decision.gap.max()))
