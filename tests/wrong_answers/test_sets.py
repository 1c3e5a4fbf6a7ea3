"""What once was a wrong answer, each as the attack that found it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import soctk


class TestStaleSetCache:
    """A: answers for one set were kept for others that compare equal."""

    def test_sets_of_ones_own_are_decided_each_for_itself(self) -> None:
        class Interval(soctk.FeasibleSet):
            """[0, hi]^n, hi outside of what is compared."""

            def __init__(self, dim: int, hi: float) -> None:
                self.dim, self.hi = dim, hi

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Interval) and self.dim == other.dim

            def __hash__(self) -> int:
                return hash(self.dim)

            def _project(self, y):
                return y.clamp(0.0, self.hi)

            def _linear_minimizer(self, g):
                return torch.where(g < 0, self.hi, 0.0).to(g)

            def _violation(self, x):
                return torch.maximum(-x, x - self.hi).amax(dim=-1).clamp(min=0)

            def constraints(self, x):
                return [x >= 0, x <= self.hi]

        model = soctk.from_quadratic(torch.eye(2, dtype=torch.float64), -10.0 * torch.ones(2, dtype=torch.float64), 0.0)
        for method in (None, "first_order", "cvxpy", "projected_gradient"):
            for hi, minimum in ((1.0, -19.0), (2.0, -36.0), (3.0, -51.0)):
                decision = soctk.minimize(model, Interval(2, hi), method=method, max_iter=2000)
                assert float(decision.value) == pytest.approx(minimum, rel=1e-5)
                assert float(decision.lower_bound) <= minimum + 1e-9
                assert float(soctk.certify(model, Interval(2, hi), decision.x).lower_bound) == pytest.approx(
                    minimum, rel=1e-5
                )

    def test_equal_polyhedra_of_other_numbers_do_not_exist(self) -> None:
        """The same call with three sets made anew each time."""
        model = soctk.from_quadratic(torch.eye(2, dtype=torch.float64), -10.0 * torch.ones(2, dtype=torch.float64), 0.0)
        for make in (
            lambda hi: soctk.Box(2, 0.0, hi),
            lambda hi: soctk.Polyhedron(2, 0.0, hi),
            lambda hi: soctk.Polyhedron(2, G=np.eye(2), h=[hi, hi]),
            lambda hi: soctk.Polyhedron(2, G=[[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]], h=[2 * hi, 0.0, 0.0]),
        ):
            values = [float(soctk.minimize(model, make(hi)).value) for hi in (1.0, 2.0, 3.0)]
            assert values == pytest.approx([-19.0, -36.0, -51.0], rel=1e-6)


class TestOverriddenConstraints:
    """B: solvers that do not use `constraints` decided over the set without them."""

    def test_closed_forms_cannot_be_given_more_constraints(self) -> None:
        with pytest.raises(TypeError, match=r"final.*soctk\.Polyhedron"):

            class Capped(soctk.Simplex):
                def constraints(self, x):
                    return [*super().constraints(x), x[0] <= 0.1]

    def test_the_set_meant_is_a_polyhedron_and_is_decided_so(self) -> None:
        meant = soctk.Polyhedron(3, E=np.ones(3), f=1.0, G=[[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], h=[0.1, 0.4])
        model = soctk.from_quadratic(1e-3 * torch.eye(3, dtype=torch.float64), torch.tensor([-3.0, -2.0, -1.0]), 0.0)
        best = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
        for method in (None, "newton", "cvxpy", "first_order"):
            decision = soctk.minimize(model, meant, method=method)
            assert decision.status == soctk.Status.OPTIMAL
            torch.testing.assert_close(decision.x, best, rtol=0, atol=1e-6)
            assert float(meant.violation(decision.x)) <= 1e-12
            assert float(soctk.certify(model, meant, decision.x).relative_gap) <= 1e-6
        with pytest.raises(NotImplementedError, match="bounds alone"):
            soctk.minimize(model, meant, method="newton_cg")
        torch.testing.assert_close(soctk.DecisionLayer(model, meant)(), best, rtol=0, atol=1e-6)

    def test_every_finite_bound_is_a_constraint(self) -> None:
        """One infinite upper bound once dropped them all."""
        import cvxpy as cp

        mixed = soctk.Polyhedron(
            3, [0.0, -float("inf"), 0.0], [0.2, 0.5, float("inf")], E=np.ones(3), f=1.0, G=[0, -1, 1], h=1
        )
        x = cp.Variable(3)
        for side in (1.0, -1.0):
            for coordinate in range(3):
                problem = cp.Problem(cp.Minimize(side * x[coordinate]), mixed.constraints(x))
                problem.solve(solver="CLARABEL")
                ends = mixed.hull()[0 if side > 0 else 1]
                assert side * problem.value == pytest.approx(float(ends[coordinate]), abs=1e-6)


def test_dependent_rows_do_not_contradict_each_other_by_rounding() -> None:
    """What fixed coordinates take of large right-hand sides made a set empty that has a point."""
    lower, upper = [1001711.38, 1001217.54, 1000289.2], [1002103.89, 1001274.5700000001, 1000742.2999999999]
    E, f = [[0.3, -0.3, 0.3], [0.0, -0.6, 0.6]], [300353.19899999996, -438.18300000005297]
    feasible_set = soctk.Polyhedron(3, lower, upper, E=E, f=f)
    decision = soctk.minimize(soctk.from_quadratic(np.eye(3), np.zeros(3)), feasible_set)
    assert decision.status == "optimal"
    assert float(decision.violation) <= 1e-9 * 1e6


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e8])
def test_rows_that_others_imply_do_not_contradict_them_by_rounding(size: float) -> None:
    """Of large numbers: twice the same equality, and more rows than unknowns that meet in one point."""
    random = np.random.default_rng(0)
    for _ in range(30):
        n = int(random.integers(2, 5))
        x = size * random.normal(size=n)
        lower, upper = x - size * random.random(n), x + size * random.random(n)
        E, G = np.round(random.normal(size=(1, n)), 1), np.round(random.normal(size=(n, n)), 1)
        for rows in ({"E": np.vstack([E, 3.3 * E])}, {"E": E, "G": np.vstack([G, -G])}):
            sides = {"f": rows["E"] @ x} | ({"h": rows["G"] @ x} if "G" in rows else {})
            feasible_set = soctk.Polyhedron(n, lower, upper, **rows, **sides)
            assert float(feasible_set.violation(feasible_set.center())) <= 1e-9 * size
    with pytest.raises(ValueError, match="contradict one another"):
        soctk.Polyhedron(n, lower, upper, E=np.vstack([E, E]), f=np.append(E @ x, E @ x + 1e-6 * size))


def test_a_set_with_cones_can_be_pickled() -> None:
    feasible_set = soctk.ConicSet(soctk.Box(3), [(np.eye(3), 0.0, 0.0, 0.5)])
    copied = pickle.loads(pickle.dumps(feasible_set))
    y = torch.tensor([[2.0, -1.0, 0.7]], dtype=torch.float64)
    torch.testing.assert_close(copied.project(y), feasible_set.project(y))


def test_bounds_may_be_part_of_a_graph_and_what_is_no_number_is_named() -> None:
    upper = torch.ones(2, requires_grad=True)
    assert soctk.Box(2, 0.0, upper).upper == (1.0, 1.0)
    assert soctk.Polyhedron(2, 0.0, upper).upper == (1.0, 1.0)
    soctk.ConicSet(soctk.Box(2), [(torch.eye(2, requires_grad=True), 0.0, 0.0, 0.5)])
    box = soctk.Polyhedron(2, 0.0, 1.0, E=[[1.0, 1.0]], f=1.0)
    assert box.at(f=1.0).refutes(torch.ones(1, requires_grad=True), torch.zeros(0)).shape == ()
    with pytest.raises(TypeError, match=r"^lower: expected numbers"):
        box.at(lower="a")
    with pytest.raises(ValueError, match=r"^lower: expected finite numbers"):
        box.at(lower=[None, 0.0])
    with pytest.raises(TypeError, match=r"^feasible_set: expected one set, got SetAt"):
        soctk.SOCICNN(2).conic_form().lipschitz(box.at(f=1.2))
