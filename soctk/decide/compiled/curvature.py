"""Hessians with dual iterates."""

from __future__ import annotations

from soctk.decide.compiled.dispatch import operation, term_of
from soctk.simd import add_gram, add_rows, fill, view
from soctk.simd.algebra import add_gram_rows, add_kept_rows, subtract_pairs_rows
from soctk.simd.options import compiled
from soctk.simd.tiles import TARGETS

term_curvature, term_rank_one, term_add_inner = map(operation, ("curvature", "rank_one", "add_inner"))


@compiled
def constant_hessian(problem, work, u, lag):
    """Fill the Hessian of the terms of which it never changes, upper triangle."""
    n, base = problem.n, work.base
    fill(base, 0.0)
    for index in range(problem.terms):
        term = term_of(problem, index)
        if term.constant != 0:
            curvature = view(work.curvature, term.first, term.rows)
            term_curvature(problem, index, work.here, u, lag, (curvature,))
            add_gram(base, n, n, curvature, term.rows, problem.A, term.first * n, work.scratch)


@compiled
def outer_products(problem, work):
    """Fill the Gram matrices A_g'A_g, upper triangles, of the rows and groups for which they are kept."""
    n, ones = problem.n, work.curvature
    fill(ones, 1.0)
    for index in range(problem.terms):
        term = term_of(problem, index)
        for g in range(term.products):
            out = view(problem.outer, (term.first_product + g) * n * n, n * n)
            fill(out, 0.0)
            at = (term.first + g * term.shared_rows) * n
            add_gram(out, n, n, ones, term.shared_rows, problem.A, at, work.scratch)


@compiled
def hessian(problem, work, u, lag, total):
    """Fill the upper triangle of sum_j A_j'(Hessian of phi_j)A_j + R'W R in `total`, rows n + 2 apart.

    A block of rows takes all terms before the next, so that it stays in the first-level cache.
    """
    n, stride, scratch = problem.n, problem.bordered, work.scratch
    pairs, inner = 0, False
    for index in range(problem.terms):
        term = term_of(problem, index)
        curvature = view(work.curvature, term.first, term.rows)
        if term.constant == 0:
            term_curvature(problem, index, work.here, u, lag, (curvature,))
        inner = inner or term.inner != 0
        if term.rank_ones > 0:
            pairs = rank_ones(problem, work, index, u, lag, pairs)
        for g in range(term.products):
            work.coefficients[term.first_product + g] = curvature[g * term.shared_rows]
    if inner:
        copy_rows(total, stride, work.base, n, 0, n)
        for index in range(problem.terms):
            term = term_of(problem, index)
            more = view(work.curvature, term.first, term.rows), total, work.jacobians, scratch
            term_add_inner(problem, index, work.here, u, lag, more)
    for i in range(0, n, TARGETS):
        if not inner:
            copy_rows(total, stride, work.base, n, i, min(i + TARGETS, n))
        add_kept_rows(total, stride, n, i, work.coefficients, problem.products, problem.outer, 0)
        for index in range(problem.terms):
            term = term_of(problem, index)
            if term.constant == 0 and term.products == 0:
                curvature = view(work.curvature, term.first, term.direct)
                at = term.first * n
                add_gram_rows(total, stride, n, i, curvature, term.direct, problem.A, at, scratch)
        subtract_pairs_rows(total, stride, n, i, 2 * pairs, work.pairs, 0, scratch)
        if problem.constraints > 0:
            add_gram_rows(total, stride, n, i, work.weight, problem.constraints, problem.R, 0, scratch)


@compiled
def copy_rows(total, stride, base, n, first, last):
    """Copy rows of n numbers, from the diagonal's block on, to where they are `stride` apart."""
    for i in range(first, last):
        to, source = view(total, i * stride, n), view(base, i * n, n)
        for j in range(i // TARGETS * TARGETS, n):
            to[j] = source[j]


@compiled
def rank_ones(problem, work, index, u, lag, pairs):
    """Fill the pairs A_g'l, scale A_g'r of a term's groups, from pair `pairs` on; return how many there are then."""
    n, term = problem.n, term_of(problem, index)
    size, scales = term.size, view(work.scratch, 0, term.groups)
    left, right = term_rank_one(problem, index, work.here, u, lag, (scales,))
    for g in range(term.groups):
        at, here = (term.first + g * size) * n, 2 * (pairs + g) * n
        one, two = view(work.pairs, here, n), view(work.pairs, here + n, n)
        fill(one, 0.0)
        fill(two, 0.0)
        add_rows(one, view(left, g * size, size), size, problem.A, at, n)
        add_rows(two, view(right, g * size, size), size, problem.A, at, n)
        for i in range(n):
            two[i] *= scales[g]
    return pairs + term.groups
