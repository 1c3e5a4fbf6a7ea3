"""The lift as cone data: Clarabel and SCS give the forward pass, its dual, and the decision."""

from __future__ import annotations

import dataclasses

import cvxpy as cp
import numpy as np
import pytest
import torch
from tolerances import CLARABEL, DOUBLE, TIGHT_OPTIONS, VALUE, close
from zoo import MODELS, SETS, shaken

from soctk import Box, ConicForm, ExactSurrogate, Simplex, Status, minimize
from soctk.forms.cone_program import _violations
from soctk.maps.linear import DenseMap
from soctk.terms import Huber, Logistic, LogSumExp
from soctk_tasks import TASKS, make_task

n = 4
SOLVERS = {"CLARABEL": TIGHT_OPTIONS, "SCS": {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iters": 100_000}}


def smooth_terms() -> ConicForm:
    """Return one function with a logistic, a log-sum-exp and a Huber term."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    terms = (
        Logistic(DenseMap(draw(1, 3, n)), draw(1, 1, 3), draw(1, 1, 3).abs()),
        LogSumExp(DenseMap(draw(1, 6, n)), draw(1, 1, 6), draw(1, 1, 2).abs(), 3),
        Huber(DenseMap(draw(1, 5, n)), draw(1, 1, 5), draw(1, 1, 5).abs(), 0.35),
    )
    return ConicForm(draw(1, 1), draw(1, 1, n), terms)


def forms() -> dict[str, ConicForm]:
    context = torch.tensor([0.4, -1.2, 0.3], dtype=DOUBLE)
    made = {name: shaken(make(n)).conic_form(context).detach() for name, make in MODELS.items()}
    return made | {"smooth": smooth_terms()}


@pytest.fixture(params=list(forms()))
def form(request: pytest.FixtureRequest) -> ConicForm:
    return forms()[request.param]


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_lift_at_a_point_is_the_forward_pass(form: ConicForm, solver: str, generator: torch.Generator) -> None:
    x = torch.randn(n, generator=generator, dtype=DOUBLE)
    solution = form.cone_program(x).solve(solver, **SOLVERS[solver])
    value = float(form.value(x))
    assert solution.status == Status.OPTIMAL
    assert solution.value == pytest.approx(value, abs=CLARABEL)
    assert solution.dual_value == pytest.approx(value, abs=CLARABEL)
    assert max(solution.violation, solution.dual_violation) <= CLARABEL


def test_the_solvers_multipliers_are_a_dual_point_of_the_form(form: ConicForm, generator: torch.Generator) -> None:
    x = torch.randn(n, generator=generator, dtype=DOUBLE)
    dual = form.cone_program(x).solve(**TIGHT_OPTIONS).dual
    if form.terms:
        assert float(form.dual_violation(dual)) <= CLARABEL
    assert float(form.dual_value(dual, x)) == pytest.approx(float(form.value(x)), abs=CLARABEL)


def test_the_closed_form_primal_is_feasible_and_its_objective_the_value(generator: torch.Generator) -> None:
    """z, s and t of the forward pass, put into the program by hand."""
    form = forms()["soc"]
    x = torch.randn(n, generator=generator, dtype=DOUBLE)
    program = form.cone_program(x)
    network, quadratic, *norms = form.terms
    w = np.zeros(program.q.size)
    for level, a in enumerate(network.preactivations(network.inner(x.reshape(1, 1, -1))), start=1):  # type: ignore[attr-defined]
        w[program.variables[f"z{level}"]] = torch.relu(a).flatten()
    q = quadratic.inner(x.reshape(1, 1, -1)).flatten().numpy()
    assert quadratic.blocks == (n,)
    w[program.variables["s"]] = 0.5 * np.sum(q**2)
    for index, norm in enumerate(norms):
        u = norm.inner(x.reshape(1, 1, -1)).reshape(-1, norm.size)
        w[program.variables["t" if index == 0 else f"t_{index + 1}"]] = torch.linalg.vector_norm(u, dim=-1)
    assert program._outside(program.b - program.A @ w, dual=False) <= VALUE[DOUBLE]
    assert program.q @ w + program.constant == pytest.approx(float(form.value(x)), abs=VALUE[DOUBLE])


def test_the_cvxpy_lift_has_the_theorems_variables(generator: torch.Generator) -> None:
    form = forms()["soc"]
    x = torch.randn(n, generator=generator, dtype=DOUBLE)
    problem = form.lift(x)
    assert {"z1", "z2", "s", "t"} <= set(problem.var_dict)
    assert problem.is_dcp()
    problem.solve(solver=cp.CLARABEL)
    assert problem.value == pytest.approx(float(form.value(x)), abs=CLARABEL)


@pytest.mark.parametrize("name", SETS)
def test_over_a_set_it_is_the_decision(form: ConicForm, name: str) -> None:
    feasible_set = SETS[name](n)
    solution = form.cone_program(feasible_set=feasible_set).solve()
    decision = minimize(ExactSurrogate.of(form), feasible_set, tol=1e-9)
    assert solution.status == Status.OPTIMAL
    assert solution.value == pytest.approx(float(decision.value), abs=CLARABEL)
    bound = float(form.lower_bound(solution.dual, feasible_set))
    scale = max(1.0, abs(float(decision.value)))
    assert float(decision.value) - CLARABEL * scale <= bound <= float(decision.value) + VALUE[DOUBLE] * scale


@pytest.mark.parametrize("name", TASKS)
def test_the_tasks_objectives_have_a_lift(name: str) -> None:
    task = make_task(name, dim=10)
    context = torch.randn(task.context_dim, generator=torch.Generator().manual_seed(2), dtype=DOUBLE)
    solution = task.surrogate().conic_form(context).cone_program(feasible_set=task.feasible_set).solve()
    assert solution.value == pytest.approx(float(task.solve(context).value), abs=CLARABEL)


def test_an_unbounded_program_says_so_and_gives_no_point() -> None:
    form = forms()["norm"]
    steep = dataclasses.replace(form, linear=form.linear + 100.0)
    for solver in SOLVERS:
        solution = steep.cone_program().solve(solver)
        assert solution.status == Status.UNBOUNDED
        assert np.isnan(solution.variables["x"]).all()
        assert np.isnan(solution.value)
    affine = forms()["affine"].cone_program().solve()
    assert affine.status == Status.UNBOUNDED


def test_a_limit_is_reported(generator: torch.Generator) -> None:
    form = forms()["soc"]
    solution = form.cone_program(feasible_set=Simplex(n)).solve(max_iter=2)
    assert solution.status == Status.ITERATION_LIMIT
    assert solution.violation > CLARABEL  # and what it left is measured, not believed


def test_what_does_not_fit_is_refused(form: ConicForm) -> None:
    with pytest.raises(ValueError, match=r"x: expected .*4"):
        form.cone_program(torch.zeros(3))
    with pytest.raises(ValueError, match="got both"):
        form.cone_program(torch.zeros(n), Box(n))
    with pytest.raises(ValueError, match="solver: expected"):
        form.cone_program(torch.zeros(n)).solve("GUROBI")
    several = MODELS["soc"](n).conic_form(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="expected one function"):
        several.lift(torch.zeros(n))


def test_the_data_are_what_the_solvers_take(generator: torch.Generator) -> None:
    form = forms()["softplus"]
    program = form.cone_program(torch.zeros(n, dtype=DOUBLE))
    data, cone = program.scs_data()
    assert data["A"].shape == (program.b.size, program.q.size)
    assert cone["z"] + cone["l"] + sum(cone["q"]) + 3 * cone["ep"] == program.b.size
    assert sum(part.stop - part.start for part in program.rows.values()) == program.b.size
    close(torch.from_numpy(program.clarabel_data()[1]), torch.from_numpy(data["c"]), VALUE)


@pytest.mark.parametrize(
    ("point", "dual", "expected"),
    [
        ((0.0, 1.0, 1.0), False, 0.0),
        ((-1.0, 0.0, 0.5), False, 0.0),  # the face where y = 0
        ((1.0, 0.0, 5.0), False, 1.0),
        ((-1.0, -5.0, 0.0), False, 5.0),
        ((-1.0, 1.0, np.exp(-1.0) - 0.25), False, 0.25),
        ((-1.0, -1.0, 1.0), True, 0.0),
        ((0.0, 1.0, 1.0), True, 0.0),  # the face where u = 0
        ((1.0, 0.0, 1.0), True, 1.0),
        ((0.0, -5.0, 1.0), True, 5.0),
        ((-1.0, -1.0, 0.5), True, 0.5),
    ],
)
def test_points_outside_of_exponential_cones_violate_them(point, dual: bool, expected: float) -> None:
    assert _violations("exp", np.array([point]), dual) == pytest.approx([expected])
