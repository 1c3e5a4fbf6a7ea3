"""The conic form against the paper's formulas in NumPy, and its bounds against Clarabel's optimum."""

from __future__ import annotations

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
import torch
from tolerances import CLARABEL, DOUBLE, TIGHT_CLARABEL, TIGHT_OPTIONS, VALUE, close

from soctk import Box, Budget, ConicForm, Dual, Simplex
from soctk.maps.linear import DenseMap
from soctk.terms import Network, Norms, Quadratic

N, n, WIDTHS = 3, 4, (5, 3, 2)


class Coefficients:
    """Random coefficients of a SOC-ICNN at N contexts: the matrices shared, the vectors and weights not."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.b0, self.v = rng.normal(size=N), rng.normal(size=(N, n))
        self.W = [rng.normal(size=(h, n)) for h in WIDTHS]
        self.b = [rng.normal(size=(N, h)) for h in WIDTHS]
        self.U = [rng.uniform(0, 1, size=(a, h)) for h, a in pairwise(WIDTHS)]
        self.c = rng.uniform(0, 1, size=(N, WIDTHS[-1]))
        self.B, self.e = rng.normal(size=(3, n)), rng.normal(size=(N, 3))
        self.alpha = rng.uniform(0, 1, size=N)
        self.A = [rng.normal(size=(2, n)) for _ in range(2)]
        self.d = [rng.normal(size=(N, 2)) for _ in range(2)]
        self.lam = rng.uniform(0, 1, size=(N, 2))

    def value(self, i: int, x: np.ndarray) -> float:
        """Return f at context i: Section 3.1 and eq. unified_soc_icnn."""
        z = np.maximum(self.W[0] @ x + self.b[0][i], 0)
        for W, b, U in zip(self.W[1:], self.b[1:], self.U, strict=True):
            z = np.maximum(W @ x + U @ z + b[i], 0)
        total = self.b0[i] + self.v[i] @ x + self.c[i] @ z
        total += self.alpha[i] / 2 * np.sum((self.B @ x + self.e[i]) ** 2)
        return float(total + sum(self.lam[i, g] * np.linalg.norm(self.A[g] @ x + self.d[g][i]) for g in range(2)))

    def form(self) -> ConicForm:
        def shared(matrices: list[np.ndarray]) -> DenseMap:
            return DenseMap(torch.from_numpy(np.concatenate(matrices))[None])

        def own(*vectors: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(vectors, axis=-1))[:, None]

        mixing = tuple(torch.from_numpy(U)[None] for U in self.U)
        alpha = own(np.repeat(self.alpha[:, None], 3, axis=1))
        return ConicForm(
            torch.from_numpy(self.b0)[:, None],
            own(self.v),
            (
                Network(shared(self.W), own(*self.b), own(self.c), mixing, WIDTHS),
                Quadratic(shared([self.B]), own(self.e), alpha),
                Norms(shared(self.A), own(*self.d), own(self.lam), torch.zeros(1, 1, 2, dtype=DOUBLE), 2),
            ),
            (N,),
        )


@pytest.fixture
def coefficients() -> Coefficients:
    return Coefficients()


@pytest.fixture
def form(coefficients: Coefficients) -> ConicForm:
    return coefficients.form().check()


def optimum(form: ConicForm, feasible_set, index: int) -> float:
    """Return Clarabel's tight optimum of one function over the set."""
    x = cp.Variable(n)
    one = ConicForm(*(lambda f: (f.constant, f.linear, f.terms))(form.select(torch.tensor([index]))))
    problem = cp.Problem(cp.Minimize(one.expression(x)), feasible_set.constraints(x))
    problem.solve(solver="CLARABEL", **TIGHT_OPTIONS)
    return problem.value


SETS = [Simplex(n), Box(n, -1.0, 2.0), Budget(n, 1.2)]


def test_value_is_the_papers(coefficients: Coefficients, form: ConicForm, generator: torch.Generator) -> None:
    for scale in (0.1, 1.0, 100.0):
        x = scale * torch.randn(N, n, generator=generator, dtype=DOUBLE)
        expected = torch.tensor([coefficients.value(i, x[i].numpy()) for i in range(N)], dtype=DOUBLE)
        close(form.value(x), expected, VALUE)


def test_parts_are_found_by_their_kind(form: ConicForm) -> None:
    assert form.network is form.terms[0]
    assert form.quadratics == [form.terms[1]]
    assert form.norms == [form.terms[2]]
    assert (form.dim, form.size, form.dtype) == (n, N, DOUBLE)


def test_the_closed_form_dual_is_the_papers(form: ConicForm, generator: torch.Generator) -> None:
    """nu feasible, y_h = alpha (Bx + e), ||mu_g|| <= lambda_g; the affine minorant touches f at x."""
    x = torch.randn(N, n, generator=generator, dtype=DOUBLE)
    nu, y, mu = form.dual(x).parts
    first, second, third = nu[:, 0].split(WIDTHS, dim=-1)
    network, quadratic, norms = form.terms
    assert bool(((third >= 0) & (third <= network.weights[:, 0])).all())
    assert bool(((second >= 0) & (second <= third @ network.mixing[1][0] + 1e-14)).all())
    assert bool(((first >= 0) & (first <= second @ network.mixing[0][0] + 1e-14)).all())
    close(y, quadratic.weights * quadratic.inner(x[:, None]), VALUE)
    lengths = mu.unflatten(-1, (2, 2)).norm(dim=-1)
    close(lengths, norms.weights, VALUE)
    minorant = form.constant[:, 0] + (form.linear[:, 0] * x).sum(-1)
    for term, dual in zip(form.terms, (nu, y, mu), strict=True):
        minorant = minorant + (dual * term.inner(x[:, None])).sum(dim=(-1, -2)) - term.conjugate(dual)[:, 0]
    close(minorant, form.value(x), VALUE)


def test_gradient_is_a_subgradient_and_agrees_with_autograd(form: ConicForm, generator: torch.Generator) -> None:
    x, z = torch.randn(2, N, n, generator=generator, dtype=DOUBLE)
    gradient = form.gradient(x)
    assert bool((form.value(z) >= form.value(x) + (gradient * (z - x)).sum(dim=-1) - 1e-12).all())
    points = x.unsqueeze(1).requires_grad_()
    (expected,) = torch.autograd.grad(form.evaluate(points).sum(), points)
    close(gradient, expected[:, 0], VALUE)


@pytest.mark.parametrize("feasible_set", SETS, ids=lambda s: type(s).__name__)
def test_every_dual_gives_a_lower_bound(form: ConicForm, feasible_set, generator: torch.Generator) -> None:
    """Duals from anywhere, infeasible ones too: the bound moves them into the domain first."""
    duals = [
        Dual(tuple(s * torch.randn(N, 9, t.map.rows, generator=generator, dtype=DOUBLE) for t in form.terms))
        for s in (0.1, 1.0, 30.0)
    ]
    duals.append(form.subgradients(feasible_set.sample((N, 50), generator)))
    best = [optimum(form, feasible_set, i) for i in range(N)]
    for dual in duals:
        bound = form.lower_bound(dual, feasible_set)
        assert bound.shape == (N,)
        for i in range(N):
            assert float(bound[i]) <= best[i] + TIGHT_CLARABEL * max(1.0, abs(best[i]))


def test_the_bound_at_a_smooth_optimum_is_tight(form: ConicForm) -> None:
    """Without kinks the subgradient at the optimum is an optimal dual: bound = optimum."""
    smooth = ConicForm(form.constant, form.linear, form.terms[1:2], (N,))
    B, e, alpha = (form.terms[1].map.matrix[0], form.terms[1].offset[:, 0], form.terms[1].weights[:, 0])
    box = Box(n, -50.0, 50.0)
    ridge = 1e-3 * torch.eye(n, dtype=DOUBLE)
    ridged = Quadratic(DenseMap(ridge.sqrt()[None]), torch.zeros(N, 1, n, dtype=DOUBLE), torch.ones(N, 1, n))
    smooth = ConicForm(form.constant, 0.01 * form.linear, (*smooth.terms, ridged), (N,))
    hessian = B.T @ (alpha[:, :, None] * B) + ridge
    x = -torch.linalg.solve(hessian, 0.01 * form.linear[:, 0] + (alpha * e) @ B)
    assert float(box.violation(x).max()) == 0.0
    # The linearisation's slope is zero up to the residual of the system, 1e-12, times the box's diameter.
    torch.testing.assert_close(smooth.lower_bound(smooth.dual(x), box), smooth.value(x), rtol=0, atol=1e-8)


def test_the_cvxpy_expression_has_the_forms_value(form: ConicForm, generator: torch.Generator) -> None:
    x = cp.Variable(n)
    point = torch.randn(n, generator=generator, dtype=DOUBLE)
    x.value = point.numpy()
    for i in range(N):
        expression = form.select(torch.tensor([i])).expression(x)
        assert expression.is_dcp()
        assert expression.is_convex()
        assert expression.value == pytest.approx(float(form.value(point.expand(N, n))[i]), rel=1e-12)
    with pytest.raises(ValueError, match="one context"):
        form.expression(x)
    with pytest.raises(ValueError, match="shape"):
        form.select(torch.tensor([0])).expression(cp.Variable(n + 1))


def test_the_lift_has_the_forms_minimum_in_one_context(form: ConicForm) -> None:
    """Theorem soc_value_function at fixed x: the epigraph program's optimum is f(x)."""
    point = np.array([0.3, -0.2, 0.5, 1.0])
    x = cp.Variable(n)
    total, constraints = float(form.constant[0]) + form.linear[0, 0].numpy() @ x, [x == point]
    for term in form.terms:
        data = {k: t[0].numpy() for k, t in term.coefficients().items()}
        part, more = term.epigraph(data["A"] @ x + data["offset"], data)
        total, constraints = total + part, [*constraints, *more]
    problem = cp.Problem(cp.Minimize(total), constraints)
    problem.solve(solver="CLARABEL")
    value = float(form.value(torch.from_numpy(point).expand(N, n))[0])
    assert problem.value == pytest.approx(value, rel=CLARABEL, abs=CLARABEL)


def test_rewriting_keeps_the_function(form: ConicForm, generator: torch.Generator) -> None:
    x = torch.randn(N, n, generator=generator, dtype=DOUBLE)
    value = form.value(x)
    mean, scale = torch.linspace(-0.4, 0.4, n, dtype=DOUBLE), torch.linspace(0.5, 2.5, n, dtype=DOUBLE)
    moved = form.transformed(scale=3.0, shift=-1.0, x_scale=scale, x_mean=mean)
    close(moved.value(x), 3.0 * form.value((x - mean) / scale) - 1.0, VALUE)
    point = x[0]
    free = torch.tensor([2, 0])
    full = point.expand(N, n).clone()
    full[:, free] = x[:, :2]
    close(form.restricted(free, point).value(x[:, :2]), form.value(full), VALUE)
    index = torch.tensor([2, 0])
    close(form.select(index).value(x[index]), value[index], VALUE)
    assert form.apply(lambda t: t).terms[0].map is form.terms[0].map
    assert form.to(torch.float32).value(x.float()).dtype == torch.float32


def test_points_and_coefficients_are_checked(form: ConicForm) -> None:
    with pytest.raises(ValueError, match=r"x: expected last dimension 4, got shape \(3, 5\)"):
        form.value(torch.zeros(N, 5))
    with pytest.raises(ValueError, match=r"x: expected batch shape \(3,\)"):
        form.value(torch.zeros(2, n))
    with pytest.raises(ValueError, match=r"x: .*row \[1\]"):
        form.value([[0.0] * n, [0.0, np.nan, 0.0, 0.0], [0.0] * n])
    for changed, name in (
        (ConicForm(form.constant * np.nan, form.linear), "b0"),
        (ConicForm(form.constant, form.linear / 0.0), "v"),
    ):
        with pytest.raises(ValueError, match=f"^{name}:"):
            changed.check()
