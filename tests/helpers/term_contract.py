"""What every term of a conic form promises. A term's test class supplies CASES only: name -> maker."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from plain_kernel import PlainKernel
from tolerances import (
    CLARABEL,
    CONJUGATE,
    DOUBLE,
    GRADIENT,
    HESSIAN,
    INEQUALITY,
    SINGLE,
    TIGHT_OPTIONS,
    VALUE,
    close,
    size,
)

from soctk import ConicForm, Dual
from soctk.maps.linear import DenseMap
from soctk.terms import Term
from soctk.terms.registry import has_kernel

INSTANCES, POINTS = 2, 6


def inner_points(term: Term, generator: torch.Generator) -> torch.Tensor:
    """Return u (INSTANCES, 2 * POINTS + 1, K): of order one, ten times larger, and the origin."""
    u = torch.randn(INSTANCES, POINTS, term.map.rows, generator=generator, dtype=term.offset.dtype)
    return torch.cat([u, 10 * u, torch.zeros_like(u[:, :1])], dim=1)


class TermContract:
    def test_fenchels_inequality_at_any_feasible_dual(self, case, generator: torch.Generator) -> None:
        for term in (case(), case().apply(torch.Tensor.float)):
            u = inner_points(term, generator)
            for spread in (0.1, 1.0, 10.0):
                y = term.nearest_dual(spread * torch.randn(u.shape, generator=generator, dtype=u.dtype))
                gap = term.value(u) + term.conjugate(y) - (y * u).sum(dim=-1)
                assert bool(torch.isfinite(gap).all())
                assert float(gap.min()) >= -INEQUALITY[u.dtype] * size(y * u, term.value(u), term.conjugate(y))

    def test_fenchels_equality_at_a_subgradient(self, case, generator: torch.Generator) -> None:
        term = case()
        u = inner_points(term, generator)
        y = term.subgradient(u)
        close(term.value(u) + term.conjugate(y), (y * u).sum(dim=-1).expand(INSTANCES, -1), CONJUGATE)

    def test_nearest_dual_is_idempotent_and_keeps_feasible_duals(self, case, generator: torch.Generator) -> None:
        term = case()
        u = inner_points(term, generator)
        y = term.nearest_dual(3 * torch.randn(u.shape, generator=generator, dtype=DOUBLE))
        close(term.nearest_dual(y), y, VALUE)
        subgradient = term.subgradient(u).expand_as(u)
        close(term.nearest_dual(subgradient), subgradient, VALUE)

    def test_subgradient_inequality(self, case, generator: torch.Generator) -> None:
        term = case()
        u = inner_points(term, generator)
        others = 3 * torch.randn(u.shape, generator=generator, dtype=DOUBLE)
        slack = term.value(others) - term.value(u) - (term.subgradient(u) * (others - u)).sum(dim=-1)
        assert float(slack.min()) >= -INEQUALITY[DOUBLE] * size(u) * size(term.value(u))

    def test_autograd_of_the_value_is_the_subgradient(self, case, generator: torch.Generator) -> None:
        term = case()
        u = inner_points(term, generator).requires_grad_()
        (gradient,) = torch.autograd.grad(term.value(u).sum(), u)
        assert bool(torch.isfinite(gradient).all())  # the origin is the apex of every norm
        close(gradient[:, :-1], term.subgradient(u).expand_as(u)[:, :-1].detach(), GRADIENT)

    def test_smoothing_moves_the_value_by_at_most_2_k_mu(self, case, generator: torch.Generator) -> None:
        """Each of at most K ReLUs moves up by delta = 2 mu / nubar at most, a norm by eps = 2 mu / lambda."""
        term = case()
        u = inner_points(term, generator)
        for width in (1e-1, 1e-3, 1e-6):
            mu = torch.full((INSTANCES, 1), width, dtype=DOUBLE)
            smoothed = torch.cat([term.smooth(u[:, j : j + 1], mu).value for j in range(u.shape[1])], dim=1)
            moved = smoothed - term.value(u)
            rounding = VALUE[DOUBLE] * size(smoothed)
            assert float(moved.min()) >= -rounding
            assert float(moved.max()) <= 2 * term.map.rows * width + rounding

    def test_the_smoothed_dual_is_the_smoothed_gradient_and_feasible(self, case, generator: torch.Generator) -> None:
        term = case()
        for u in inner_points(term, generator).split(1, dim=1):
            for width in (1e-1, 1e-3):
                mu = torch.full((INSTANCES, 1), width, dtype=DOUBLE)
                point = u.clone().requires_grad_()
                smoothed = term.smooth(point, mu)
                (gradient,) = torch.autograd.grad(smoothed.value.sum(), point)
                close(smoothed.dual.detach().expand_as(u), gradient, GRADIENT)
                close(term.nearest_dual(gradient), gradient, VALUE)

    def test_hessian_is_the_smoothed_functions_and_positive_semidefinite(
        self, case, generator: torch.Generator
    ) -> None:
        term = case()
        mu = torch.full((INSTANCES, 1), 0.05, dtype=DOUBLE)
        for _ in range(3):
            x = torch.randn(INSTANCES, 1, term.map.dim, generator=generator, dtype=DOUBLE)
            smoothed = term.smooth(term.inner(x), mu)
            hessian = term.hessian(smoothed, term.initial_lag(smoothed))

            def total(point: torch.Tensor) -> torch.Tensor:
                return term.smooth(term.inner(point), mu).value.sum()

            full = torch.autograd.functional.hessian(total, x)[:, 0, :, :, 0]
            expected = torch.stack([full[i, :, i] for i in range(INSTANCES)])
            close(hessian.expand_as(expected), expected, HESSIAN)
            assert float(torch.linalg.eigvalsh(hessian).min()) >= -HESSIAN[DOUBLE] * size(hessian)

    def test_lagged_duals_stay_feasible_and_their_hessian_semidefinite(self, case, generator: torch.Generator) -> None:
        term = case()
        mu = torch.full((INSTANCES, 1), 1e-3, dtype=DOUBLE)
        x = torch.randn(INSTANCES, 1, term.map.dim, generator=generator, dtype=DOUBLE)
        smoothed = term.smooth(term.inner(x), mu)
        lag = term.initial_lag(smoothed)
        close(term.lagged_dual(smoothed, lag), smoothed.dual, VALUE)
        for _ in range(3):
            dx = torch.randn(x.shape, generator=generator, dtype=DOUBLE)
            lag = term.advance_lag(smoothed, lag, term.map.forward(dx))
            x = x + dx
            smoothed = term.smooth(term.inner(x), mu)
            dual = term.lagged_dual(smoothed, lag)
            close(term.nearest_dual(dual), dual, VALUE)
            hessian = term.hessian(smoothed, lag)
            assert float(torch.linalg.eigvalsh(hessian).min()) >= -1e-10 * size(hessian)
            along = torch.randn(x.shape, generator=generator, dtype=DOUBLE)
            product = term.map.adjoint(term.curvature(smoothed, lag, term.map.forward(along)))
            close(product.expand_as(x), along @ hessian, HESSIAN)

    def test_what_smoothing_makes_of_the_hessian_is_told_apart_from_phis_own(
        self, case, generator: torch.Generator
    ) -> None:
        term = case()
        x = torch.randn(INSTANCES, 1, term.map.dim, generator=generator, dtype=DOUBLE)
        own = torch.autograd.functional.hessian(lambda point: term.value(term.inner(point)).sum(), x)[:, 0, :, :, 0]
        own = torch.stack([own[i, :, i] for i in range(INSTANCES)])
        for mu in (1e-1, 1e-3, 1e-6):
            smoothed = term.smooth_at(term.inner(x), torch.full((INSTANCES, 1), mu, dtype=DOUBLE))
            lag = term.initial_lag(smoothed)
            hessian = term.hessian(smoothed, lag)
            kinks, rest = torch.zeros_like(hessian), torch.zeros_like(hessian)
            term.add_hessians(kinks, rest, smoothed, lag)
            close(kinks + rest, hessian, HESSIAN)
            for part in (kinks, rest):
                assert float(torch.linalg.eigvalsh(part).min()) >= -1e-10 * size(hessian)
        close(rest.expand_as(own), own, {DOUBLE: 1e-6})

    def test_the_kernel_is_the_term(self, case, generator: torch.Generator) -> None:
        """Value, dual, conjugate, Hessian and dual iterates, with the term's tensor methods as the reference."""
        term = compiled(case())
        for width in (1e-1, 1e-4):
            mu = torch.full((INSTANCES, 1), width, dtype=DOUBLE)
            x = torch.randn(INSTANCES, 1, term.map.dim, generator=generator, dtype=DOUBLE)
            smoothed = term.smooth(term.inner(x), mu)
            lag = term.initial_lag(smoothed)
            kernels = [PlainKernel(term, row, term.inner(x)[row, 0].numpy()) for row in range(INSTANCES)]
            close(stacked(kernel.smooth(width) for kernel in kernels), smoothed.value[:, 0], VALUE)
            for kernel in kernels:
                kernel.begin_lag()
            for _ in range(2):
                hessian = term.hessian(smoothed, lag)
                close(stacked(kernel.hessian() for kernel in kernels), hessian.expand(INSTANCES, -1, -1), HESSIAN)
                du = term.map.forward(torch.randn(x.shape, generator=generator, dtype=DOUBLE))
                lag = term.advance_lag(smoothed, lag, du)
                for row, kernel in enumerate(kernels):
                    kernel.advance_lag(du[row, 0].numpy())
                kept = term.unpack_lag(stacked(kernel.t.lag for kernel in kernels).unsqueeze(1))
                assert type(kept) is type(lag)
                close(rows_of(kept), rows_of(lag), VALUE)
            for y in (smoothed.dual, term.lagged_dual(smoothed, lag)):
                close(stacked(kernel.t.y for kernel in kernels), y[:, 0].expand(INSTANCES, -1), VALUE)
                conjugate = term.conjugate(y)[:, 0].expand(INSTANCES)
                close(stacked(kernel.conjugate() for kernel in kernels), conjugate, CONJUGATE)
                for kernel in kernels:
                    kernel.lagged_dual()

    def test_the_kernel_without_smoothing_is_phi(self, case, generator: torch.Generator) -> None:
        term = compiled(case())
        u = inner_points(term, generator)
        for row in range(INSTANCES):
            for point in range(u.shape[1]):
                kernel = PlainKernel(term, row, u[row, point].numpy())
                value = term.value(u)[row, point]
                close(torch.tensor(kernel.smooth(0.0), dtype=DOUBLE), value, VALUE)
                y = torch.from_numpy(kernel.t.y)
                gap = value + kernel.conjugate() - (y * u[row, point]).sum()
                assert abs(float(gap)) <= 1e-9 * size(value, y * u[row, point])
                close(term.nearest_dual(y.expand_as(u))[row, 0], y, VALUE)

    def test_files_keep_the_term(self, case) -> None:
        term = case().apply(lambda tensor: tensor[:1])
        tensors, options = term.to_parts()
        again = type(term).from_parts(tensors, json.loads(json.dumps(options)))
        assert again.to_parts()[1] == options
        assert all(torch.equal(again.to_parts()[0][name], tensor) for name, tensor in tensors.items())

    def test_cvxpy_forms_have_the_terms_value(self, case, generator: torch.Generator) -> None:
        term = case()
        u = inner_points(term, generator)[:, :1]
        values = term.value(u)
        for row in range(INSTANCES):
            data = {k: t[row if t.shape[0] > 1 else 0].numpy() for k, t in term.coefficients().items()}
            variable = cp.Variable(term.map.rows)
            expression = term.expression(variable, data)
            assert expression.is_convex()
            variable.value = u[row, 0].numpy()
            assert expression.value == pytest.approx(float(values[row, 0]), rel=1e-12)
            value, constraints = term.epigraph(variable, data)
            problem = cp.Problem(cp.Minimize(value), [*constraints, variable == u[row, 0].numpy()])
            problem.solve(solver="CLARABEL")
            assert problem.value == pytest.approx(float(values[row, 0]), rel=CLARABEL, abs=CLARABEL)

    def test_the_cone_program_has_the_terms_value_and_its_dual_proves_it(
        self, case, generator: torch.Generator
    ) -> None:
        term = case().apply(lambda tensor: tensor[:1])
        n, none = term.map.dim, torch.zeros(1, 1, dtype=DOUBLE)
        form = ConicForm(none, none.expand(1, 1, n).clone(), (term,))
        x = torch.randn(n, generator=generator, dtype=DOUBLE)
        value = float(form.value(x))
        solution = form.cone_program(x).solve("CLARABEL", **TIGHT_OPTIONS)
        assert solution.value == pytest.approx(value, rel=CLARABEL, abs=CLARABEL)
        dual = Dual(tuple(term.nearest_dual(y) for y in solution.dual.parts))
        assert float(form.dual_value(dual, x)) == pytest.approx(value, rel=CLARABEL, abs=CLARABEL)

    def test_rewriting_keeps_the_function(self, case, generator: torch.Generator) -> None:
        term = case()
        n = term.map.dim
        x = torch.randn(INSTANCES, POINTS, n, generator=generator, dtype=DOUBLE)
        shift = torch.randn(1, 1, n, generator=generator, dtype=DOUBLE)
        close(term.scaled(2.5).value(term.inner(x)), 2.5 * term.value(term.inner(x)), VALUE)
        for factor in (0.3, torch.rand(n, generator=generator, dtype=DOUBLE) + 0.5):
            moved = term.substituted(factor, shift)
            close(moved.value(moved.inner(x)), term.value(term.inner(factor * x + shift)), VALUE)
        single = term.apply(torch.Tensor.float)
        value = single.value(single.inner(x.float()))
        assert value.dtype == SINGLE
        close(value, term.value(term.inner(x)).float(), VALUE)

    @pytest.mark.parametrize("bad", [-0.1, torch.nan])
    def test_check_names_the_tensor_that_breaks_convexity(self, case, bad: float) -> None:
        term = case()
        term.check()
        weights = term.weights.clone()
        weights[0, 0, 0] = bad
        with pytest.raises(ValueError, match=rf"{type(term).__name__.lower()}\.{term.weights_name}"):
            dataclasses.replace(term, weights=weights).check()

    def test_check_names_the_tensor_that_is_not_finite(self, case) -> None:
        term = case()
        offset = term.offset.clone()
        offset[0, 0, -1] = torch.inf
        with pytest.raises(ValueError, match=r"offset.*inf"):
            dataclasses.replace(term, offset=offset).check()
        with pytest.raises(ValueError, match=r"\.A"):
            dataclasses.replace(term, map=term.map.compose_scale(torch.nan)).check()

    def test_weights_of_zero_give_the_zero_function(self, case, generator: torch.Generator) -> None:
        for dtype in (DOUBLE, SINGLE):
            term = case().apply(lambda t, dtype=dtype: t.to(dtype)).scaled(0.0)
            u = inner_points(term, generator)[:, :1]
            mu = torch.full((INSTANCES, 1), 1e-2, dtype=dtype)
            smoothed = term.smooth(u, mu)
            numbers = [term.value(u), term.subgradient(u), smoothed.value, smoothed.dual]
            numbers += [term.conjugate(term.nearest_dual(u)), term.nearest_dual(u)]
            numbers += [term.hessian(smoothed, term.initial_lag(smoothed))]
            assert all(bool((number == 0).all()) for number in numbers)


def compiled(term: Term) -> Term:
    """Return a term that compiled code may be given, or skip the test."""
    if not has_kernel(type(term)) or not isinstance(term.map, DenseMap):
        pytest.skip("decided in PyTorch")
    return term


def rows_of(lag: Any) -> torch.Tensor:
    """Return dual iterates row by row, (INSTANCES, K), whatever a term keeps."""
    parts = [lag] if isinstance(lag, torch.Tensor) else lag or [torch.zeros(INSTANCES, 1, 0)]
    return torch.cat([part.expand(INSTANCES, -1, -1) for part in parts], dim=-1)[:, 0]


def stacked(parts: Iterable) -> torch.Tensor:
    """Return arrays or numbers, one for each instance, as one tensor."""
    return torch.from_numpy(np.stack([np.array(part, dtype=float) for part in parts]))


def from_numpy(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """Return standard normals, float64."""
    return torch.from_numpy(rng.standard_normal(shape))
