"""Exact imports: the function is reproduced to rounding, and its minimiser is Clarabel's."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import CERTIFIED, CLARABEL, DOUBLE, VALUE, close, size

from soctk import (
    Box,
    Budget,
    ExactSurrogate,
    ReLUICNN,
    Simplex,
    certify,
    from_cvxpy,
    from_max_affine,
    from_quadratic,
    load,
    minimize,
    save,
    tangent_planes,
)
from soctk.imports.expression import ATOMS
from soctk.terms.registry import BUILT_IN

n = 4
RNG = np.random.default_rng(5)
S, s = RNG.normal(size=(5, n)), RNG.normal(size=5)
Q = (lambda R: R.T @ R)(RNG.normal(size=(3, n)))
A, b = RNG.normal(size=(30, n)), RNG.normal(size=30)
a = RNG.normal(size=n)
SETS = (Simplex(n), Box(n, -1.0, 1.0), Budget(n, 1.5))
X = cp.Variable(n)
COLUMN, ROW = cp.reshape(X[:2], (2, 1), order="F"), cp.reshape(X[2:], (1, 2), order="F")
WEIGHTS = np.array([[1.0, 2.0], [3.0, 4.0]])
EXPRESSIONS = {
    "affine": a @ X + 3,
    "power 1 inside an atom": cp.norm1(cp.power(X, 1) - 1),
    "power 1 beside another term": cp.sum(cp.power(X, 1) + X) + cp.norm1(cp.power(X, 1) + X),
    "largest of a column and a row": cp.sum(cp.maximum(COLUMN, ROW)),
    "largest of columns and rows": cp.sum(cp.maximum(COLUMN, ROW, -COLUMN, -ROW)),
    "sum of a column and a row": cp.sum(cp.multiply(WEIGHTS, cp.abs(COLUMN) + cp.square(ROW))),
    "two signs of a quadratic": -cp.quad_form(X, -Q),
    "quad_form": 0.5 * cp.quad_form(X, Q) + a @ X + 1,
    "sum_squares": cp.sum_squares(S @ X + s) / 3,
    "weighted squares": abs(s) @ cp.square(S @ X + s),
    "quad_over_lin": cp.quad_over_lin(S @ X, 2.0),
    "norm": cp.norm(S @ X + s) + 0.3 * cp.norm(X - 1),
    "norm1": 2 * cp.norm1(S @ X + s),
    "norm_inf": cp.norm_inf(S @ X + s),
    "abs": 3 * cp.abs(X[0] - 1) + cp.square(X[1]),
    "max": cp.max(A @ X + b),
    "maximum": cp.maximum(S[0] @ X, S[1] @ X + 1, S[2] @ X),
    "vector maximum": cp.sum(cp.maximum(S @ X, 0.3, s)),
    "minus the least": 2 - 3 * cp.min(A @ X + b),
    "minus the smaller": cp.sum(cp.multiply(-abs(s), cp.minimum(S @ X, 0.3, s))) + cp.sum_squares(X),
    "pos": cp.sum(cp.multiply(abs(s), cp.pos(S @ X + s))),
    "huber": cp.sum(cp.huber(S @ X, 0.5)),
    "logistic": cp.sum(cp.multiply(abs(s), cp.logistic(S @ X))),
    "log_sum_exp": cp.log_sum_exp(S @ X + s),
    "all together": cp.norm(S @ X) + cp.sum_squares(X) - a @ X + cp.max(A @ X + b) + 0.1 * cp.norm1(X),
}


def optimum(expression: cp.Expression, x: cp.Variable, feasible_set) -> float:
    problem = cp.Problem(cp.Minimize(expression), feasible_set.constraints(x))
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


def points(count: int = 100) -> torch.Tensor:
    return 3 * torch.randn(count, n, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)


def check_minimisers(model: ExactSurrogate, expression: cp.Expression) -> None:
    for feasible_set in SETS:
        decision = minimize(model, feasible_set, tol=CERTIFIED)
        assert decision.status == "optimal"
        reference = optimum(expression, X, feasible_set)
        assert float(decision.value) == pytest.approx(reference, abs=2 * CERTIFIED, rel=2 * CERTIFIED)


def test_quadratic_plus_norms() -> None:
    norms = [(0.7, S[:2], s[:2]), (1.3, S[2:], s[2:])]
    model = from_quadratic(Q, a, 0.5, norms)
    x = points()
    expected = 0.5 * torch.einsum("ni,ij,nj->n", x, torch.from_numpy(Q), x) + x @ torch.from_numpy(a) + 0.5
    for weight, matrix, offset in norms:
        inner = x @ torch.from_numpy(matrix).mT + torch.from_numpy(offset)
        expected = expected + weight * torch.linalg.vector_norm(inner, dim=-1)
    close(model(x), expected, VALUE)
    expression = 0.5 * cp.quad_form(X, Q) + a @ X + 0.5 + sum(w * cp.norm(M @ X + d) for w, M, d in norms)
    check_minimisers(model, expression)


@pytest.mark.parametrize("pieces", [1, 2, 30])
def test_max_affine_is_exact_with_weights_of_one(pieces: int) -> None:
    model = from_max_affine(A[:pieces], b[:pieces])
    x = points()
    close(model(x), (x @ torch.from_numpy(A[:pieces]).mT + torch.from_numpy(b[:pieces])).amax(-1), VALUE)
    network = model.conic_form().network
    if pieces > 1:
        assert network is not None
        assert network.widths == (1,) * (pieces - 1)
        assert all(bool((U == 1).all()) for U in network.mixing)
    check_minimisers(model, cp.max(A[:pieces] @ X + b[:pieces]))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**16), st.sampled_from([1e-6, 1.0, 1e6]))
def test_any_max_affine_function_is_reproduced(dim: int, pieces: int, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    slopes, heights, x = (
        scale * torch.randn(*shape, generator=generator, dtype=DOUBLE)
        for shape in ((pieces, dim), (pieces,), (20, dim))
    )
    slopes[pieces // 2] = slopes[0]  # parallel pieces
    expected = (x @ slopes.mT + heights).amax(-1)
    error = (from_max_affine(slopes, heights)(x) - expected).abs().max()
    assert float(error) <= VALUE[DOUBLE] * float((x @ slopes.mT).abs().max() + heights.abs().max())


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_cvxpy_expression_is_reproduced(name: str) -> None:
    expression = EXPRESSIONS[name]
    model = from_cvxpy(expression, X)
    values = []
    for point in points().numpy():
        X.value = point
        values.append(float(np.asarray(expression.value).item()))
    close(model(points()), torch.tensor(values, dtype=DOUBLE), VALUE)
    check_minimisers(model, expression)


def test_reading_an_expression_leaves_the_variable_as_it_was() -> None:
    X.value = np.arange(n, dtype=float)
    from_cvxpy(EXPRESSIONS["all together"], X)
    assert (X.value == np.arange(n)).all()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (cp.square(cp.norm(X)), "no exact counterpart"),
        (cp.exp(X[0]), "no exact counterpart"),
        (cp.sqrt(X[0]), "expected a convex one"),
        (cp.sum_squares(X) + cp.Variable(), "no variable but x"),
        (cp.Parameter(nonneg=True) * cp.norm(X), "no parameters"),
        (S @ X, "expected a scalar"),
        (cp.norm(X, 3), "no exact counterpart"),
        (cp.sum(cp.norm(S @ cp.diag(X), "inf", axis=1)), "no exact counterpart"),
        (cp.sum(cp.norm1(S @ cp.diag(X), axis=1)), "no exact counterpart"),
        (cp.norm(X + 1j), "real arguments"),
    ],
)
def test_what_has_no_exact_counterpart_is_refused(expression: cp.Expression, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_cvxpy(expression, X)


def test_the_message_names_what_is_understood() -> None:
    with pytest.raises(ValueError, match="huber") as caught:
        from_cvxpy(cp.exp(X[0]), X)
    assert all(name in str(caught.value) for name in (*ATOMS, *(name for kind in BUILT_IN for name in kind.atoms)))


def test_units_of_variables_take_nothing_from_a_quadratic() -> None:
    """One variable in W and the others in units of up to 10 GW: eigenvalues of Q from 1e-20 to 1e20."""
    units = 10.0 ** np.array([-10, -3, 4, 10])
    scaled = Q * units[:, None] * units
    y = cp.Variable(n)
    for f in (from_quadratic(scaled, a * units), from_cvxpy(0.5 * cp.quad_form(y, scaled) + (a * units) @ y, y)):
        for x in RNG.normal(size=(5, n)):
            close(f(torch.from_numpy(x / units)), torch.tensor(0.5 * x @ Q @ x + a @ x, dtype=DOUBLE), VALUE)


def test_coefficients_beside_large_constants_are_exact() -> None:
    y = cp.Variable(1, nonneg=True)
    f = from_cvxpy(cp.abs(0.1 * y[0] - 1e9), y)
    x = minimize(f, Box(1, 0.0, 2e10)).x
    assert abs(0.1 * float(x) - 1e9) <= 1e-6
    assert y.value is None


def test_bad_quadratics_are_refused() -> None:
    with pytest.raises(ValueError, match="Q: expected a symmetric"):
        from_quadratic(RNG.normal(size=(n, n)), a)
    for indefinite in (-np.eye(2), np.diag([1e10, -1.0]), [[1.0, 2.0], [2.0, 1.0]], [[0.0, 1.0], [1.0, 1.0]]):
        with pytest.raises(ValueError, match="positive semidefinite"):
            from_quadratic(indefinite, a[:2])
    with pytest.raises(ValueError, match="lambda"):
        from_quadratic(np.eye(n), a, norms=[(-1.0, S, s)])
    with pytest.raises(ValueError, match=r"norms\[0\]: expected"):
        from_quadratic(np.eye(n), a, norms=[(1.0, S, s[:2])])
    for wrong in (3.0, cp.Minimize(cp.sum(X))):
        with pytest.raises(TypeError, match=r"expression: expected a cvxpy\.Expression"):
            from_cvxpy(wrong, X)
    with pytest.raises(ValueError, match="expected Q"):
        from_quadratic(np.eye(n + 1), a)
    with pytest.raises(ValueError, match="expected A"):
        from_max_affine(A, b[:2])


def test_imports_are_saved_and_loaded(tmp_path) -> None:
    for name in ("all together", "log_sum_exp", "huber", "maximum"):
        model = from_cvxpy(EXPRESSIONS[name], X)
        save(model, tmp_path / "m.safetensors")
        close(load(tmp_path / "m.safetensors")(points()), model(points()), VALUE)


def test_any_form_of_one_function_becomes_a_surrogate() -> None:
    form = ReLUICNN(n, 2, hidden=(5, 4, 3), seed=1).conic_form(torch.ones(2, dtype=DOUBLE)).detach()
    model = ExactSurrogate.of(form)
    close(model(points()), form.value(points()), VALUE)
    with pytest.raises(ValueError, match="expected one function"):
        ExactSurrogate.of(ReLUICNN(n, 2).conic_form(torch.ones(3, 2)).detach())


def test_tangent_planes_lie_below_and_touch() -> None:
    def target(x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, dim=-1) + x.square().sum(-1)

    net = points(40)
    slopes, heights = tangent_planes(target, net)
    model = from_max_affine(slopes, heights)
    close(model(net), target(net), VALUE)
    others = points(300) * 0.7
    assert float((target(others) - model(others)).min()) >= -VALUE[DOUBLE] * size(target(others))
    assert float(certify(model, Box(n), minimize(model, Box(n)).x).relative_gap) <= CLARABEL


ONE = cp.Variable(1)


@pytest.mark.parametrize(
    "expression",
    [
        cp.sum(np.ones((3, 1)) @ cp.abs(ONE)),
        np.array([2.0]) @ cp.square(ONE),
        cp.sum(np.array([1.0, 2.0, 3.0]) * cp.norm(ONE - 1)),
        cp.sum(cp.norm(ONE) + np.array([1.0, 2.0])),
        3 * cp.abs(ONE),
    ],
)
def test_products_with_what_has_one_entry(expression: cp.Expression) -> None:
    model = from_cvxpy(cp.sum(expression), ONE)
    for number in (-1.5, 0.0, 0.7):
        ONE.value = np.array([number])
        found = float(model(torch.tensor([number], dtype=DOUBLE)))
        assert found == pytest.approx(float(np.sum(expression.value)), abs=1e-12)


def test_tangent_planes_leave_their_points_alone_and_need_no_mode() -> None:
    points = torch.tensor([[1.0, 2.0]], dtype=DOUBLE)
    with torch.no_grad():
        slope, level = tangent_planes(lambda x: x.square().sum(dim=-1), points)
    assert not points.requires_grad
    assert slope.tolist() == [[2.0, 4.0]]
    assert level.tolist() == [-5.0]


def test_what_is_to_be_maximised_is_said_to_be_minimised_as_its_negative() -> None:
    with pytest.raises(ValueError, match="got CONCAVE; to maximise it, minimise its negative"):
        from_cvxpy(cp.min(A @ X + b), X)
