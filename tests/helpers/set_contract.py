"""What every feasible set promises. A set's test class supplies CASES only."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, nnls
from tolerances import (
    CLARABEL,
    CONJUGATE,
    DOUBLE,
    GENERAL_PROJECTION,
    LINEAR,
    PROJECTION,
    SINGLE,
    TIGHT_OPTIONS,
    VALUE,
    close,
)
from torch import Tensor

from soctk import FeasibleSet
from soctk.sets import Rows


def points(dim: int) -> st.SearchStrategy[Tensor]:
    """Return a strategy of points with ties, huge and tiny scales, and coordinates of mixed scales."""
    number = st.one_of(st.floats(-4, 4, width=32), st.sampled_from([0.0, 0.5, 1.0, -1.0]))
    vector = st.lists(number, min_size=dim, max_size=dim)
    scale = st.sampled_from([1.0, 1e-8, 1e-4, 1e4, 1e8])
    shift = st.sampled_from([0.0, 1.0, -1e8, 3e7])
    outlier = st.integers(0, dim - 1)

    def make(parts: tuple[list[float], float, float, int, float]) -> Tensor:
        values, factor, moved, index, pushed = parts
        y = factor * torch.tensor(values, dtype=DOUBLE) + moved
        y[index] += pushed
        return y

    return st.tuples(vector, scale, shift, outlier, st.sampled_from([0.0, 0.0, 1e8, -1e8])).map(make)


@cache
def samples(case: Callable[[], FeasibleSet], count: int) -> Tensor:
    """Return points of a case's set, the same for every example, as drawing them may take long."""
    return case().sample(count, torch.Generator().manual_seed(1))


def accuracy(feasible_set: FeasibleSet, y: Tensor) -> float:
    """Return how exact the set promises to be at y: to the set's own size in closed form, else to that of y as well."""
    rows = feasible_set.rows()
    if rows is not None and rows.at_most_a_sum:
        return PROJECTION[y.dtype] * feasible_set.magnitude
    return GENERAL_PROJECTION[y.dtype] * max(feasible_set.magnitude, float(y.abs().max()))


def row_size(feasible_set: FeasibleSet) -> float:
    """Return the size of the numbers that rows add, which the rounding of a violation is relative to."""
    rows = feasible_set.rows()
    lengths = [] if rows is None else torch.cat([rows.E, rows.G]).norm(dim=1).tolist()
    return feasible_set.magnitude * max([1.0, *lengths])


def kkt_residual(feasible_set: FeasibleSet, y: Tensor, x: Tensor, slack: float) -> float:
    """Return how far one feasible x is from being the projection of y; 0 where the set has no rows."""
    rows = feasible_set.rows()
    if rows is None:
        return 0.0
    return sum_residual(rows, y, x, slack) if rows.at_most_a_sum else cone_residual(rows, y, x, slack)


def cone_residual(rows: Rows, y: Tensor, x: Tensor, slack: float) -> float:
    """Return the distance of y - x from the cone of the rows that hold with equality at x: 0 at the projection."""
    x, y = x.double(), y.double()
    axes = torch.eye(x.numel(), dtype=DOUBLE)
    normals = torch.cat([rows.G, axes, -axes])
    room = torch.cat([rows.h - rows.G @ x, rows.upper - x, x - rows.lower])
    active = torch.cat([rows.E, -rows.E, normals[room <= slack * normals.norm(dim=1).clamp(min=1.0)]])
    if len(active) == 0:
        return float((y - x).norm())
    return nnls((active / active.norm(dim=1, keepdim=True)).T.numpy(), (y - x).numpy())[1]


def sum_residual(rows: Rows, y: Tensor, x: Tensor, slack: float) -> float:
    """Return how far x is from the projection of y onto a box or a capped simplex, in exact arithmetic.

    It is so if and only if for one multiplier tau (0 without a sum): y_i - x_i <= tau wherever x_i < hi_i and
    y_i - x_i >= tau wherever x_i > lo_i. The residual is the least violation over tau.
    """
    lo, hi = (bound.to(x.dtype).tolist() for bound in (rows.lower, rows.upper))
    tau = [] if rows.total is not None else [Fraction(0)]
    least, most = list(tau), list(tau)
    for yi, xi, low, high in zip(y.tolist(), x.tolist(), lo, hi, strict=True):
        difference = Fraction(yi) - Fraction(xi)
        if low < high and xi < high - slack:
            least.append(difference)
        if low < high and xi > low + slack:
            most.append(difference)
    return float(max(least) - min(most)) if least and most else 0.0


class SetContract:
    """CASES: name -> maker of a set."""

    linear = LINEAR

    @given(data=st.data())
    def test_projection_is_feasible_and_optimal(self, case, data: st.DataObject) -> None:
        feasible_set = case()
        y = data.draw(points(feasible_set.dim))
        x = feasible_set.project(y)
        tolerance = accuracy(feasible_set, y)
        assert x.dtype == DOUBLE
        assert float(feasible_set.violation(x)) <= row_size(feasible_set) * PROJECTION[DOUBLE]
        assert kkt_residual(feasible_set, y, x, tolerance) <= tolerance

    @given(data=st.data())
    def test_projection_in_single_precision(self, case, data: st.DataObject) -> None:
        feasible_set = case()
        y = data.draw(points(feasible_set.dim)).float()
        x = feasible_set.project(y)
        tolerance = accuracy(feasible_set, y)
        assert x.dtype == SINGLE
        assert float(feasible_set.violation(x)) <= row_size(feasible_set) * PROJECTION[SINGLE]
        assert kkt_residual(feasible_set, y, x, tolerance) <= tolerance

    @given(data=st.data())
    def test_projection_satisfies_the_variational_inequality(self, case, data: st.DataObject) -> None:
        feasible_set = case()
        y = data.draw(points(feasible_set.dim))
        x = feasible_set.project(y)
        others = samples(case, 50)
        others = torch.cat([others, feasible_set.linear_minimizer(x - y).unsqueeze(0)])
        products = ((others - x) * (x - y)).sum(dim=-1)
        # Each product is rounded at eps times its own size.
        rounding = 1e-15 * feasible_set.dim * float((others - x).abs().max() + 1) * float((x - y).abs().max() + 1)
        assert float(products.min()) >= -rounding - accuracy(feasible_set, y) * feasible_set.magnitude

    @given(data=st.data())
    def test_projection_is_idempotent_and_keeps_feasible_points(self, case, data: st.DataObject) -> None:
        feasible_set = case()
        tolerance = PROJECTION[DOUBLE] * row_size(feasible_set)
        x = feasible_set.project(data.draw(points(feasible_set.dim)))
        torch.testing.assert_close(feasible_set.project(x), x, rtol=0, atol=tolerance)
        inside = samples(case, 20)
        torch.testing.assert_close(feasible_set.project(inside), inside, rtol=0, atol=tolerance)

    def test_projection_agrees_with_clarabel(self, case, generator: torch.Generator) -> None:
        feasible_set = case()
        for y in 2 * torch.randn(2, feasible_set.dim, generator=generator, dtype=DOUBLE):
            variable = cp.Variable(feasible_set.dim)
            problem = cp.Problem(cp.Minimize(cp.sum_squares(variable - y.numpy())), feasible_set.constraints(variable))
            problem.solve(solver="CLARABEL", **TIGHT_OPTIONS)
            # The value is accurate to 1e-9, and so the point to its square root at worst.
            np.testing.assert_allclose(feasible_set.project(y).numpy(), variable.value, atol=10 * CLARABEL)

    def test_batch_shapes_and_rows(self, case, generator: torch.Generator) -> None:
        feasible_set = case()
        y = 3 * torch.randn(2, 5, feasible_set.dim, generator=generator, dtype=DOUBLE)
        for method in (feasible_set.project, feasible_set.linear_minimizer):
            x = method(y)
            assert x.shape == y.shape
            assert method(y[:0]).shape == (0, 5, feasible_set.dim)
            for row in range(2):
                for column in range(5):
                    # A row does not depend on its neighbours, but its sums may be vectorised otherwise.
                    torch.testing.assert_close(method(y[row, column]), x[row, column], rtol=1e-14, atol=1e-14)
            torch.testing.assert_close(method(y.flip(0)), x.flip(0), rtol=0, atol=0)
            assert torch.equal(method(y[:1].expand(3, 5, -1)), method(y[:1]).expand(3, 5, -1))

    def test_unusual_inputs_are_accepted_and_left_alone(self, case, generator: torch.Generator) -> None:
        feasible_set = case()
        n = feasible_set.dim
        y = 3 * torch.randn(n, 4, generator=generator, dtype=DOUBLE)
        readonly = y.T.numpy().copy()
        readonly.setflags(write=False)
        expanded = y[:, :1].T.expand(4, n)
        before = y.clone()
        for method in (feasible_set.project, feasible_set.linear_minimizer, feasible_set.violation):
            expected = method(y.T.contiguous())  # strided memory is summed in another order
            torch.testing.assert_close(method(y.T), expected, rtol=1e-14, atol=1e-14)
            torch.testing.assert_close(method(readonly), expected, rtol=0, atol=0)
            torch.testing.assert_close(method(y.T.tolist()), expected, rtol=0, atol=0)
            torch.testing.assert_close(method(readonly[::-1]), expected.flip(0), rtol=1e-14, atol=1e-14)
            torch.testing.assert_close(method(expanded), expected[:1].expand_as(expected), rtol=1e-14, atol=1e-14)
            integers = y.T.round().to(torch.int64)
            torch.testing.assert_close(method(integers), method(integers.double()), rtol=0, atol=0)
        assert torch.equal(y, before)

    def test_a_result_never_shares_memory_with_its_input(self, case, generator: torch.Generator) -> None:
        feasible_set = case()
        y = feasible_set.sample(3, generator)
        before = y.clone()
        feasible_set.project(y).add_(1.0)
        feasible_set.linear_minimizer(y).add_(1.0)
        assert torch.equal(y, before)
        lo, hi = (bound.clone() for bound in feasible_set.hull())
        feasible_set.sample(3, generator).add_(1.0)
        feasible_set.center().add_(1.0)
        for end in feasible_set.hull():
            end.add_(1.0)
        assert torch.equal(feasible_set.hull()[0], lo)
        assert torch.equal(feasible_set.hull()[1], hi)

    @pytest.mark.parametrize("method", ["project", "linear_minimizer", "violation", "contains"])
    def test_bad_points_are_refused(self, case, method: str) -> None:
        feasible_set = case()
        call = getattr(feasible_set, method)
        y = torch.zeros(3, feasible_set.dim, dtype=DOUBLE)
        for bad in (torch.nan, torch.inf):
            y[2, 0] = bad
            with pytest.raises(ValueError, match=r"row \[2\]"):
                call(y)
        with pytest.raises(ValueError, match=f"dimension {feasible_set.dim}.*{feasible_set.dim + 1}"):
            call(torch.zeros(feasible_set.dim + 1))
        with pytest.raises(TypeError):
            call("many")

    @given(data=st.data())
    def test_linear_minimizer_is_feasible_and_optimal(self, case, data: st.DataObject) -> None:
        feasible_set = case()
        g = data.draw(points(feasible_set.dim))
        x = feasible_set.linear_minimizer(g)
        scale = feasible_set.magnitude
        assert float(feasible_set.violation(x)) <= PROJECTION[DOUBLE] * row_size(feasible_set)
        others = samples(case, 50)
        # In exact units: only differences of g matter under a sum, and rounding is relative to |g| |x|.
        slack = self.linear * feasible_set.dim * float(g.abs().max()) * scale
        assert float((others @ g).min()) >= float(x @ g) - slack
        # It may fall below the minimum by what rounding may have added, which grows with the rows; never exceed it.
        rows, below = feasible_set.rows(), float(x @ g) - float(feasible_set.linear_minimum(g))
        terms = 1 if rows is None else 1 + len(rows.E) + len(rows.G)
        assert -slack <= below <= slack * terms + 1e-12 * abs(float(x @ g))

    def test_linear_minimizer_agrees_with_linprog(self, case, generator: torch.Generator) -> None:
        feasible_set = case()
        rows = feasible_set.rows()
        if rows is None:
            pytest.skip("no rows")
        bounds = torch.stack([rows.lower, rows.upper], dim=1).numpy()
        for g in torch.randn(5, feasible_set.dim, generator=generator, dtype=DOUBLE).round(decimals=1):  # with ties
            reference = linprog(g.numpy(), rows.G.numpy(), rows.h.numpy(), rows.E.numpy(), rows.f.numpy(), bounds)
            value = float(feasible_set.linear_minimizer(g) @ g)
            assert value == pytest.approx(reference.fun, abs=1e-7 * feasible_set.magnitude)

    def test_the_linear_minimum_is_never_above_the_value_of_a_point(self, case, generator: torch.Generator) -> None:
        """Bounds of decisions rest on it: what rounding allows, in single precision too, and no more."""
        feasible_set = case()
        for dtype in (DOUBLE, SINGLE):
            g = torch.randn(4, 5, feasible_set.dim, generator=generator, dtype=dtype)
            least, x = feasible_set.linear_minimum(g), feasible_set.linear_minimizer(g)
            assert least.shape == (4, 5)
            assert least.dtype == x.dtype == dtype
            close(least, (g * x).sum(dim=-1), VALUE)

    def test_the_hull_is_the_smallest_box(self, case) -> None:
        feasible_set = case()
        axes = torch.eye(feasible_set.dim, dtype=DOUBLE)
        lo, hi = feasible_set.hull()
        close(lo, feasible_set.linear_minimizer(axes).diagonal(), VALUE)
        close(hi, feasible_set.linear_minimizer(-axes).diagonal(), VALUE)
        assert [end.dtype for end in feasible_set.hull(SINGLE)] == [SINGLE, SINGLE]

    def test_the_center_can_be_left_in_every_direction_of_the_set(self, case) -> None:
        """In the relative interior: from a vertex through the center one comes to a point that is still in the set."""
        feasible_set = case()
        center = feasible_set.center()
        axes = torch.eye(feasible_set.dim, dtype=DOUBLE)
        for end in torch.cat([feasible_set.linear_minimizer(axes), feasible_set.linear_minimizer(-axes)]):
            beyond = center + 1e-3 * (center - end)
            assert float(feasible_set.violation(beyond)) <= PROJECTION[DOUBLE] * row_size(feasible_set)

    def test_presolving_keeps_the_set(self, case, generator: torch.Generator) -> None:
        feasible_set = case()
        presolved = feasible_set.presolve()
        scale = row_size(feasible_set)
        assert float(feasible_set.violation(presolved.point)) <= PROJECTION[DOUBLE] * scale
        assert presolved.trivial == (presolved.columns.numel() == feasible_set.dim)
        assert presolved.single_point == (presolved.columns.numel() == 0)
        x = samples(case, 20)
        if presolved.single_point:
            torch.testing.assert_close(x, presolved.point.expand(20, -1), rtol=0, atol=1e-9 * scale)
            return
        free = x[:, presolved.columns]
        torch.testing.assert_close(presolved.expand(free), x, rtol=0, atol=1e-9 * scale)
        assert float(presolved.reduced.violation(free).max()) <= 1e-9 * scale
        g = torch.randn(3, feasible_set.dim, generator=generator, dtype=DOUBLE)
        there = presolved.expand(presolved.reduced.linear_minimizer(g[:, presolved.columns]))
        close((g * there).sum(dim=-1), feasible_set.linear_minimum(g), CONJUGATE)
        inner = presolved.reduced.presolve()
        assert inner.trivial

    def test_samples_are_feasible_and_reproducible(self, case) -> None:
        feasible_set = case()
        x = feasible_set.sample((4, 30), torch.Generator().manual_seed(5))
        assert x.shape == (4, 30, feasible_set.dim)
        assert x.dtype == DOUBLE
        assert float(feasible_set.violation(x).max()) <= PROJECTION[DOUBLE] * row_size(feasible_set)
        assert torch.equal(x, feasible_set.sample((4, 30), torch.Generator().manual_seed(5)))
        assert feasible_set.sample().shape == (feasible_set.dim,)
        assert feasible_set.sample(0).shape == (0, feasible_set.dim)

    def test_violation_measures_every_constraint(self, case) -> None:
        feasible_set = case()
        scale = feasible_set.magnitude
        center = feasible_set.center()
        assert float(feasible_set.violation(center)) <= PROJECTION[DOUBLE] * row_size(feasible_set)
        assert bool(feasible_set.contains(center, atol=PROJECTION[DOUBLE] * row_size(feasible_set)))
        rows = feasible_set.rows()
        lo, hi = feasible_set.hull() if rows is None else (rows.lower, rows.upper)
        for place, sign in ((lo, -1.0), (hi, 1.0)):
            if bool(torch.isfinite(place[0])):
                outside = center.clone()
                outside[0] = place[0] + sign * 0.25 * scale
                assert not bool(feasible_set.contains(outside))
                if rows is not None:
                    assert float(feasible_set.violation(outside)) >= 0.25 * scale * (1 - 1e-12)
        if rows is None:
            return
        for row, side in (*zip(rows.E, rows.f, strict=True), *zip(rows.G, rows.h, strict=True)):
            if bool(row.any()):
                outside = center + row * ((side + scale - row @ center) / (row @ row))
                assert float(feasible_set.violation(outside)) >= scale * (1 - 1e-9)

    def test_constraints_in_cvxpy_are_the_set(self, case, generator: torch.Generator) -> None:
        feasible_set = case()
        x = cp.Variable(feasible_set.dim)
        g = torch.randn(feasible_set.dim, generator=generator, dtype=DOUBLE)
        problem = cp.Problem(cp.Minimize(g.numpy() @ x), feasible_set.constraints(x))
        problem.solve(solver="CLARABEL")
        assert problem.value == pytest.approx(float(feasible_set.linear_minimum(g)), abs=CLARABEL)
        with pytest.raises(ValueError, match="shape"):
            feasible_set.constraints(cp.Variable(feasible_set.dim + 1))

    def test_equal_descriptions_are_equal_and_hashable(self, case) -> None:
        assert case() == case()
        assert hash(case()) == hash(case())
        with pytest.raises(AttributeError):
            case().dim = 7
