"""General polyhedra and a set of one's own against the contract; closed forms against the general oracles."""

from __future__ import annotations

import copy
import pickle
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ball import Ball
from hypothesis import given, reject
from hypothesis import strategies as st
from polyhedra import INF, POLYHEDRA, transport
from scipy.stats import kstest
from set_contract import SetContract, points
from tolerances import CONJUGATE, DOUBLE, GENERAL_PROJECTION, LINEAR_PROGRAM, VALUE, close

import soctk
from soctk import Box, Budget, FeasibleSet, Polyhedron, Simplex
from soctk.sets.general import General


class TestPolyhedron(SetContract):
    CASES: ClassVar = POLYHEDRA
    linear = LINEAR_PROGRAM


class TestOwnSet(SetContract):
    """What follows from the four required methods."""

    CASES: ClassVar = {"ball": lambda: Ball(4, 1.5, 0.25), "ball_of_one": lambda: Ball(1)}
    test_equal_descriptions_are_equal_and_hashable = None  # a set of one's own is itself unless it says otherwise


# -- closed forms against the general oracles ------------------------------------------------------------

CLOSED: dict[str, FeasibleSet] = {
    "simplex": Simplex(5, 2.0),
    "box": Box(4, [-1.0, 0.0, 0.5, 2.0], [1.0, 0.0, 0.7, 4.0]),
    "budget": Budget(6, 1.8),
    "uneven_budget": Budget(4, 1.0, [-1.0, 0.0, 0.1, 0.0], [0.5, 2.0, 0.4, 1.0]),
    "corner": Budget(5, 5.0),
    "tiny": Simplex(4, 1e-8),
    "huge": Budget(5, 1.2e8, 0.0, 1e8),
}


@pytest.mark.parametrize("name", CLOSED)
@given(data=st.data())
def test_closed_forms_and_general_oracles_agree(name: str, data: st.DataObject) -> None:
    closed = CLOSED[name]
    general = General(closed.rows())
    size = closed.magnitude if name != "tiny" else 1e-8
    y = data.draw(points(closed.dim))
    reach = max(size, float(y.abs().max()))
    atol = GENERAL_PROJECTION[DOUBLE] * reach
    torch.testing.assert_close(general.project(y), closed.project(y), rtol=0, atol=atol)
    minima = general.linear_minimum(y), closed.linear_minimum(y)
    # A lower bound, whatever the programme's own accuracy, and close.
    assert float(minima[0]) <= float(minima[1]) + 1e-14 * closed.dim * size * float(y.abs().max())
    torch.testing.assert_close(*minima, rtol=0, atol=1e-9 * size * float(y.abs().max()))


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms_and_general_oracles_know_the_same_set(name: str, generator: torch.Generator) -> None:
    closed = CLOSED[name]
    general = General(closed.rows())
    size = closed.magnitude if name != "tiny" else 1e-8
    for mine, theirs in zip(general.hull(), closed.hull(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12 * size)
    columns = closed.presolve().columns
    assert torch.nonzero(general.free()).squeeze(-1).tolist() == columns.tolist()
    assert float(closed.violation(general.center())) <= 1e-12 * size
    assert float(closed.violation(general.sample(50, generator)).max()) <= 1e-12 * size


@pytest.mark.parametrize("name", POLYHEDRA)
def test_large_sets_are_found_the_same_interior_by_interior_points(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds with equality throughout, and a point strictly inside of the rest."""
    rows = POLYHEDRA[name]().rows()
    usual = General(rows)
    monkeypatch.setattr("soctk.sets.interior.FEW_NUMBERS", 0)
    found = General(rows)
    assert torch.equal(found.free(), usual.free())
    assert found.inside.span.shape == usual.inside.span.shape
    assert (found.inside.heights > found.inside.normals @ found.inside.point).all()


@pytest.mark.parametrize("size", [1.0, 1e-4])
@pytest.mark.parametrize("large", [1e9, 1e12])
def test_a_row_or_bound_that_no_point_reaches_changes_nothing(size: float, large: float) -> None:
    """Rounding was taken to be that of the largest number: coordinates counted as fixed, sets as empty."""
    upper, G, h = size * np.array([1.0, 1e-1, 1.0]), np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 0.0]]), size * 1.5
    usual = Polyhedron(3, 0.0, upper, G=G[:1], h=[h])
    y = size * torch.tensor([[0.9, 0.04, 2.0], [-1.0, 0.09, 0.3]], dtype=DOUBLE)
    free = Polyhedron(3, 0.0, [size, 0.1 * size, large], E=[[1.0, 0.0, -1.0]], f=[0.0])
    for one, other in (
        (usual, Polyhedron(3, 0.0, upper, G=G, h=[h, large])),
        (Polyhedron(3, 0.0, [size, 0.1 * size, size], E=[[1.0, 0.0, -1.0]], f=[0.0]), free),
    ):
        torch.testing.assert_close(other.project(y), one.project(y), rtol=0, atol=1e-9 * size)
        for mine, theirs in zip(other.hull(), one.hull(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9 * size)
        assert other.presolve().columns.tolist() == one.presolve().columns.tolist()


def test_a_polyhedron_of_bounds_and_a_sum_has_closed_forms(generator: torch.Generator) -> None:
    y = torch.randn(50, 4, generator=generator, dtype=DOUBLE)
    pairs = (
        (Simplex(4, 2.0), Polyhedron(4, E=np.ones((1, 4)), f=[2.0])),
        (Budget(4, 1.0, 0.0, 0.5), Polyhedron(4, 0.0, 0.5, E=np.ones(4), f=1.0)),
        (Box(4, -1.0, 2.0), Polyhedron(4, -1.0, 2.0)),
    )
    for named, plain in pairs:
        assert torch.equal(named.project(y), plain.project(y))
        assert torch.equal(named.linear_minimizer(y), plain.linear_minimizer(y))
        assert isinstance(named, Polyhedron)
        assert named != plain
    scaled = Polyhedron(4, E=3.0 * np.ones((1, 4)), f=[6.0]).presolve().reduced
    close(scaled.project(y), Simplex(4, 2.0).project(y), VALUE)
    assert scaled.rows().total == pytest.approx(2.0)


@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(1, 7))
def test_the_box_that_bounds_rest_on_holds_the_set(seed: int, n: int, m: int) -> None:
    """Ends that follow from rows, and from multipliers, never cut anything off."""
    generator = np.random.default_rng(seed)
    G, inside = generator.normal(size=(m, n)) * (generator.random((m, n)) < 0.6), generator.uniform(-1, 1, n)
    lower, upper = np.where(generator.random((2, n)) < 0.7, [[-2.0], [2.0]], [[-INF], [INF]])
    E = generator.choice([0.5, 1.0, -2.0]) * np.ones((1, n))
    try:
        general = General(Polyhedron(n, lower, upper, E, E @ inside, G, G @ inside + 0.3).rows())
    except ValueError:
        reject()  # not bounded
    for sign, end, hull in zip((1, -1), general.box, general.hull(), strict=True):
        assert np.isfinite(end).all()
        assert (sign * general.system.unit * end <= sign * hull.numpy() + 1e-9).all()


# -- projections far away and in many dimensions ---------------------------------------------------------


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(0, 30), st.sampled_from([0.0, 1.0, 1e3, 1e6]))
def test_projections_onto_random_polyhedra_are_optimal(seed: int, n: int, m: int, far: float) -> None:
    """The variational inequality (z - x)'(y - x) <= 0 for all z, which linear programmes check exactly."""
    generator = np.random.default_rng(seed)
    G, inside = generator.normal(size=(m, n)), generator.uniform(-0.9, 0.9, n)
    if m > 2:
        G[1], G[2] = G[0], -G[0]  # redundant, and an implicit equality
    h = G @ inside + np.where(generator.random(m) < 0.3, 0.0, generator.uniform(0.0, 1.0, m))
    polyhedron = Polyhedron(n, -1.0, 1.0, G=G, h=h)
    y = torch.from_numpy(generator.normal(size=(3, n)) * (1 + far))
    x = polyhedron.project(y)
    assert float(polyhedron.violation(x).max()) <= 1e-10
    excess = ((y - x) * x).sum(dim=-1) + polyhedron.linear_minimum(x - y)
    assert float(excess.abs().max()) <= 1e-8 * (1 + far)


def test_a_large_polyhedron(generator: torch.Generator) -> None:
    numbers = np.random.default_rng(0)
    n, m = 60, 80
    G, inside = numbers.normal(size=(m, n)), numbers.uniform(0.2, 0.8, n)
    E = sp.random(5, n, density=0.3, random_state=1, format="csc")
    polyhedron = Polyhedron(n, 0.0, 1.0, E, E @ inside, G, G @ inside + numbers.uniform(0.01, 1.0, m))
    y = 3 * torch.randn(3, n, generator=generator, dtype=DOUBLE)
    x = polyhedron.project(y)
    assert float(polyhedron.violation(x).max()) <= 1e-12 * n
    close(((x - y) * x).sum(dim=-1), polyhedron.linear_minimum(x - y), CONJUGATE)


# -- samples ---------------------------------------------------------------------------------------------

LEVEL = 1e-3
COUNT = 2000


def test_a_set_of_ones_own_is_sampled_uniformly(generator: torch.Generator) -> None:
    """Of a uniform point of a ball in n dimensions |x|^n is uniform."""
    x = Ball(3, 2.0, 1.0).sample(COUNT, generator)
    assert kstest((((x - 1.0).norm(dim=1) / 2.0) ** 3).numpy(), "uniform").pvalue > LEVEL


def test_a_flat_set_of_ones_own_has_its_center_inside() -> None:
    """A square on edge in the plane x_3 = 0: its extreme points along the axes all lie on one diagonal each."""

    class Disc(Ball):
        def _project(self, y):
            flat = y.clone()
            flat[..., -1] = 0.0
            return super()._project(flat)

        def _linear_minimizer(self, g):
            flat = g.clone()
            flat[..., -1] = 0.0
            return super()._linear_minimizer(flat)

        def _violation(self, x):
            return torch.maximum(super()._violation(x), x[..., -1].abs())

    x = Disc(3).sample(200, torch.Generator().manual_seed(0))
    assert float(x[:, -1].abs().max()) == 0.0
    assert np.linalg.matrix_rank(x[:, :2].numpy()) == 2
    assert float(Disc(3).center().norm()) <= 1e-12


# -- descriptions ----------------------------------------------------------------------------------------


def test_polyhedra_are_compared_by_their_numbers() -> None:
    kinds = (list, np.array, lambda v: torch.tensor(v, dtype=DOUBLE), lambda v: sp.csr_array(np.array(v)))
    rows, heights = [[1.0, 2.0, 0.0], [0.0, -1.0, 1.0]], [1.0, 0.5]
    same = {Polyhedron(3, 0.0, 2.0, G=kind(rows), h=heights) for kind in kinds}
    assert len(same) == 1
    one = same.pop()
    assert one == Polyhedron(3, [0.0, 0.0, -0.0], (2.0, 2.0, 2.0), G=rows, h=torch.tensor(heights, dtype=DOUBLE))
    assert one != Polyhedron(3, 0.0, 2.0, G=rows, h=[1.0, 0.6])
    assert one != Polyhedron(3, 0.0, 2.0, E=rows, f=heights)
    assert Polyhedron(3, 0.0, 2.0, G=[1.0, 0.0, 0.0], h=1.0) != Polyhedron(3, 0.0, 2.0, G=[0.0, 1.0, 0.0], h=1.0)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert other == one
        assert hash(other) == hash(one)
        assert torch.equal(other.center(), one.center())
    assert "2 inequalities" in repr(one)


def test_what_is_kept_is_in_no_file() -> None:
    for used in (transport(), Budget(3, 1.0)):
        fresh = pickle.dumps(copy.copy(used))
        used.project(torch.zeros(used.dim))
        used.presolve()
        used.hull()
        _ = used.reach, used.magnitude, used.coordinates
        assert pickle.dumps(used) == fresh


def test_arrays_given_are_copied_and_cannot_be_changed() -> None:
    G = np.array([[1.0, 1.0]])
    polyhedron = Polyhedron(2, 0.0, 1.0, G=G, h=[1.0])
    G[0, 0] = 9.0
    assert polyhedron.G.tolist() == [[1.0, 1.0]]
    with pytest.raises(ValueError, match="read-only"):
        polyhedron.G[0, 0] = 2.0
    with pytest.raises(AttributeError):
        polyhedron.lower = 3.0
    with pytest.raises(AttributeError):
        del polyhedron.h


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Polyhedron(0), "dim: expected an integer"),
        (lambda: Polyhedron(2, 0.0, 1.0, E=[[1.0, 1.0]]), "f: expected it beside E"),
        (lambda: Polyhedron(2, 0.0, 1.0, h=[1.0]), "G: expected it beside h"),
        (lambda: Polyhedron(2, 0.0, 1.0, E=[[1.0, 1.0, 1.0]], f=[1.0]), r"E: expected shape \(rows, 2\)"),
        (lambda: Polyhedron(2, 0.0, 1.0, E=np.ones((2, 2, 2)), f=[1.0]), r"E: expected shape \(rows, 2\)"),
        (lambda: Polyhedron(2, 0.0, 1.0, G=[[1.0, 1.0]], h=[1.0, 2.0]), "h: expected 1 numbers, one for each row of G"),
        (lambda: Polyhedron(2, 0.0, 1.0, G=[[1.0, float("nan")]], h=[1.0]), "G: expected finite"),
        (lambda: Polyhedron(2, 0.0, 1.0, G=[[1.0, 1.0]], h=[INF]), "h: expected finite"),
        (lambda: Polyhedron(2, 0.0, float("nan")), "upper: expected finite bounds or inf"),
        (lambda: Polyhedron(2, INF, INF), "lower: expected finite bounds or -inf"),
        (lambda: Polyhedron(2, 1.0, [2.0, 0.0]), "lower > upper at coordinate 1"),
        (lambda: Polyhedron(2, [0.0, 0.0, 0.0]), "lower: expected a number or 2 numbers"),
        (lambda: Polyhedron(2), "coordinate 0 has no end above.*give a finite bound"),
        (lambda: Polyhedron(2, -INF, 1.0), "coordinate 0 has no end below"),
        (lambda: Polyhedron(3, 0.0, [1.0, 1.0, INF], G=[1.0, 1.0, -1.0], h=0.0), "coordinate 2 has no end above"),
        (lambda: Polyhedron(3, -INF, INF, E=np.eye(3)[:2], f=[0.0, 0.0]), "coordinate 2 has no end below"),
        (lambda: Polyhedron(3, 0.0, 1.0, E=np.ones(3), f=3.5), "f: expected a number between.*cannot be met"),
        (
            lambda: Polyhedron(3, 0.0, 1.0, G=[-1.0, -1.0, 0.0], h=-2.5),
            r"empty one: row 0 of G, upper\[0\], upper\[1\]",
        ),
        (
            lambda: Polyhedron(2, 0.0, 1.0, E=[[1.0, 1.0], [2.0, 2.0]], f=[1.0, 3.0]),
            "equalities contradict one another",
        ),
        (lambda: Polyhedron(2, 0.0, 1.0, E=[[0.0, 0.0]], f=[1.0]), "row 0 of E is zero"),
        (lambda: Polyhedron(2, 0.0, 1.0, G=[[1.0, 0.0], [0.0, 0.0]], h=[1.0, -1.0]), "row 1 of G is zero"),
    ],
)
def test_impossible_polyhedra_are_refused_at_construction(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(TypeError, match="G: expected numbers"):
        Polyhedron(2, 0.0, 1.0, G=[["a", "b"]], h=[1.0])


@pytest.mark.parametrize("kind", [Simplex, Box, Budget, Polyhedron])
def test_the_sets_of_the_library_are_final(kind: type) -> None:
    with pytest.raises(TypeError, match=r"final.*soctk\.Polyhedron.*soctk\.FeasibleSet"):
        type("Mine", (kind,), {})


def test_of_many_coordinates_no_programs_are_solved_for_how_far_rounding_reaches() -> None:
    n, rng = 150, np.random.default_rng(0)
    G = np.abs(rng.normal(size=(4, n)))
    feasible_set = Polyhedron(n, 0.0, np.inf, E=np.ones((1, n)), f=[1.0], G=G, h=G.max(axis=1))
    model = soctk.ReLUICNN(n, 0, hidden=(4,), seed=0)
    found = soctk.minimize(model, feasible_set, method="newton", tol=1e-6)
    assert found.status == "optimal"
    assert "_hull" not in vars(feasible_set)
    largest, total = feasible_set.reach
    lo, hi = feasible_set.hull()
    assert bool((largest >= (1 - 1e-9) * torch.maximum(lo.abs(), hi.abs())).all())
    assert total >= 1.0


def test_of_many_coordinates_a_sum_and_bounds_are_presolved_without_programs() -> None:
    n = 150
    given = Polyhedron(n, 0.0, np.inf, E=2 * np.ones((1, n)), f=[1.0], G=np.eye(3, n), h=[0.2, 0.1, 0.05])
    reduced = given.presolve().reduced
    assert "_hull" not in vars(given)
    assert reduced.rows().at_most_a_sum
    g = torch.randn(5, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    g[:, :3] -= 5.0  # the rows that bound single coordinates hold
    torch.testing.assert_close(reduced.linear_minimum(g), given.linear_minimum(g), rtol=1e-9, atol=1e-9)
    assert bool((reduced.linear_minimizer(g)[:, 0] == 0.2).all())


@pytest.mark.parametrize("make", [torch.from_numpy, np.array])
def test_right_hand_sides_are_the_sets_own(make) -> None:
    sides = {"f": (1, 1.0), "h": (1, 0.5), "lower": (3, 0.0), "upper": (3, 1.0)}
    buffers = {name: make(np.full((2, count), value)) for name, (count, value) in sides.items()}
    sets = Polyhedron(3, 0.0, 1.0, E=[[1.0] * 3], f=[1.0], G=[[1.0, -1.0, 0.0]], h=[0.5]).at(**buffers)
    before = sets.one(0).center()
    for buffer in buffers.values():
        buffer += 7
    torch.testing.assert_close(sets.one(0).center(), before, rtol=0, atol=0)


def test_rows_without_entries_that_hold_are_no_harm() -> None:
    polyhedron = Polyhedron(2, 0.0, 1.0, E=[[0.0, 0.0]], f=[0.0], G=[[0.0, 0.0], [1.0, 1.0]], h=[1.0, 1.5])
    y = torch.tensor([2.0, 2.0], dtype=DOUBLE)
    torch.testing.assert_close(polyhedron.project(y), torch.tensor([0.75, 0.75], dtype=DOUBLE))


@pytest.mark.parametrize(("width", "big"), [(1e-4, 1e9), (1e-5, 1e8), (1e-7, 1e6)])
def test_a_narrow_coordinate_beside_large_ones_is_no_contradiction(width: float, big: float) -> None:
    feasible_set = Polyhedron(3, 0.0, [width, big, 1.0], G=[[1.0, 1.0, 1.0]], h=[0.75 * big])
    center = feasible_set.center()
    assert float(feasible_set.violation(center)) <= width
    assert 0.0 < float(center[1]) < big


@given(
    st.integers(2, 4),
    st.integers(1, 8),
    st.sampled_from([1e-12, 1e-11, 1e-10, 1e-9, 3e-9, 1e-8, 1e-6]),
    st.integers(0, 2**16),
)
def test_sides_that_face_each_other_closely_hold_a_point(dim: int, pairs: int, width: float, seed: int) -> None:
    """More pairs than unknowns leave no point half-way between all of them, and one within rounding of each."""
    rng = np.random.default_rng(seed)
    A, inside, share = rng.normal(size=(pairs, dim)), rng.uniform(0.2, 0.8, size=dim), rng.uniform(size=pairs)
    sides = A @ inside + width * share, -A @ inside + width * (1 - share)
    feasible_set = Polyhedron(dim, 0.0, 1.0, G=np.vstack([A, -A]), h=np.concatenate(sides))
    assert float(feasible_set.violation(feasible_set.center())) < 1e-8
    assert float(feasible_set.violation(feasible_set.project(torch.rand(dim, dtype=DOUBLE)))) < 1e-8
    apart = 1e-6 * (1 + np.abs(A).sum(axis=1))
    with pytest.raises(ValueError, match="empty"):
        Polyhedron(dim, 0.0, 1.0, G=np.vstack([A, -A]), h=np.concatenate([side - width - apart for side in sides]))
