"""The parameterised program: one structure, solved again for every context and any number of them."""

from __future__ import annotations

import pytest
import torch
from reference import clarabel_optimum
from tolerances import CLARABEL, DOUBLE, LINEAR_PROGRAM
from zoo import shaken

from soctk import SOCICNN, Box, Budget, Polyhedron, ReLUICNN, Simplex, SoftplusICNN, minimize
from soctk.decide.lifted import LiftedProblem

MODELS = {
    "soc": lambda: SOCICNN(4, 2, hidden=(5, 4), quadratics=(3,), norms=(2, 2), hyperbolics=2),
    "additive": lambda: SOCICNN(4, 2, quadratics=(3,), norms=(2,), conditioning="additive"),
    "softplus": lambda: SoftplusICNN(4, 2, hidden=(5, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_dpp_and_takes_any_number_of_contexts(name: str) -> None:
    model = MODELS[name]()
    lifted = LiftedProblem(model.conic_form(torch.zeros(2, 2, dtype=DOUBLE)).detach(), Simplex(4))
    assert lifted.problem.is_dcp(dpp=True)
    for count in (1, 3):
        context = torch.randn(count, 2, dtype=DOUBLE)
        form = model.conic_form(context).detach()
        values = lifted.parameter_values(form)
        assert [tuple(value.shape) for value in values] == [(count, *p.shape) for p in lifted.parameters]
        for row in range(count):
            assert lifted.solve([value[row].numpy() for value in values], "CLARABEL", {}) == "optimal"
            found = float(lifted.problem.value) + float(form.constant.expand(count, 1)[row, 0])
            assert found == pytest.approx(clarabel_optimum(model, Simplex(4), context[row]), abs=CLARABEL)


@pytest.mark.parametrize("feasible_set", [Simplex(4), Box(4), Budget(4, 1.5)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", MODELS)
def test_the_solvers_multipliers_are_optimal_duals(name: str, feasible_set) -> None:
    """y from the links u = A x + d bounds the minimum to the solver's accuracy, at kinks too."""
    model = MODELS[name]()
    context = torch.randn(3, 2, dtype=DOUBLE)
    decision = minimize(model, feasible_set, context, method="cvxpy", tol=CLARABEL)
    assert (decision.status == "optimal").all()
    assert bool((decision.gap <= CLARABEL * decision.value.abs().clamp(min=1.0)).all())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "place",
    [Simplex(10), Budget(10, 3.0), Polyhedron(10, -1.0, 1.0, G=[[1.0, -1.0] * 5, [1.0, 2.0] * 5], h=[1.0, 2.0])],
    ids=["simplex", "budget", "polyhedron"],
)
def test_linear_programs_end_at_a_vertex(place, seed: int) -> None:
    """Interior points leave gaps of up to 3e-6 on such models; simplex steps but rounding."""
    model = shaken(ReLUICNN(10, 4, seed=seed), 1.0)
    context = torch.randn(20, 4, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    decision = minimize(model, place, context, method="cvxpy", tol=LINEAR_PROGRAM)
    assert (decision.status == "optimal").all()
    for words in ({"solver_options": {"tol_feas": 1e-9}}, {"max_iter": 50}):  # Clarabel's, of which HiGHS knows nothing
        assert (minimize(model, place, context[:2], method="cvxpy", tol=1e-4, **words).status == "optimal").all()
