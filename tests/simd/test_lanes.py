"""Numbers with lanes: every operation is that of ordinary numbers, lane by lane."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numba import njit

from soctk.simd import add_gram, algebra, any_of, choose, view
from soctk.simd.lanes import WIDTH, aligned_zeros, as_lanes, flat

NUMBERS = arrays.arrays(
    np.float64, (3, WIDTH), elements=st.floats(-1e100, 1e100) | st.sampled_from([0.0, -0.0, np.inf])
)


def in_lanes(numbers: np.ndarray) -> np.ndarray:
    """Return an aligned copy, (size, WIDTH)."""
    copy = aligned_zeros(len(numbers))
    copy[:] = numbers
    return copy


@njit(error_model="numpy")
def operations(numbers, out):
    """Fill `out` with all operations of three numbers, of one instance or of one in each lane."""
    vector, to = as_lanes(numbers), as_lanes(out)
    a, b, c = vector[0], vector[1], vector[2]
    to[0], to[1], to[2], to[3] = a + b, a - b, a * b, a / b
    to[4], to[5], to[6], to[7] = min(a, b), max(a, b), abs(a), -a
    to[8], to[9], to[10], to[11] = np.sqrt(abs(a)), np.log(abs(a)), np.exp(-abs(a)), np.log1p(abs(b))
    to[12], to[13], to[14] = choose(a < b, 1.0, a), choose(a <= b, b, 2), choose(a > b, 0, 1)
    to[15], to[16], to[17] = choose(a >= b, c, 0.5), choose(a == b, a, c), choose(a != b, a, c)
    to[18] = choose((a < b) & (b < c), 1.0, 0.0)
    to[19] = choose((a < b) | (not (b < c)), 1.0, 0.0)
    total, largest = 0.0, -np.inf
    for k in range(vector.size):
        total += 2 * choose(vector[k] > 0, 1.0, 0.0)
        largest = max(largest, vector[k])
    to[20], to[21] = total, largest
    flat(view(to, 22, 1))[0] = 7.0
    return any_of(a < b)


@given(NUMBERS)
def test_operations_are_those_of_each_lane(numbers: np.ndarray) -> None:
    out, each = in_lanes(np.zeros((23, WIDTH))), np.zeros((WIDTH, 23))
    found = [operations(numbers[:, lane].copy(), each[lane]) for lane in range(WIDTH)]
    assert operations(in_lanes(numbers), out) == any(found)
    each[1:, 22] = 0.0
    np.testing.assert_array_equal(out, each.T)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 12])
def test_linear_algebra_for_one_and_for_several(n: int) -> None:
    generator = np.random.default_rng(n)
    rows, width = 5, n + 2

    @njit(error_model="numpy")
    def run(weights, pairs, factor, first, second, scratch, matrix, kept):
        weights, pairs, factor, scratch = as_lanes(weights), as_lanes(pairs), as_lanes(factor), as_lanes(scratch)
        first, second = as_lanes(first), as_lanes(second)
        add_gram(factor, width, n, weights, rows, matrix, 0, scratch)
        for i in range(0, n, 4):
            algebra.add_kept_rows(factor, width, n, i, weights, 2, kept, 0)
            algebra.subtract_pairs_rows(factor, width, n, i, 2, pairs, 0, scratch)
        definite = algebra.factor_upper(factor, n, width, scratch)
        algebra.solve_upper(factor, n, width, first, second)
        return any_of(not definite)

    matrix, kept = generator.normal(size=(rows, n)), generator.normal(size=(2, n, n))
    kept = kept @ kept.transpose(0, 2, 1)
    weights, pairs = generator.uniform(0.5, 2, size=(rows, WIDTH)), 0.1 * generator.normal(size=(2, n, WIDTH))
    right = generator.normal(size=(n, 2, WIDTH))
    start = np.zeros((n, width, WIDTH))
    start[:, :n] = np.eye(n)[..., None]
    start[:, n:] = right
    hessian = np.einsum("ki,kl,kj->lij", matrix, weights, matrix) + np.einsum("kl,kij->lij", weights[:2], kept)
    hessian += np.eye(n) - np.einsum("il,jl->lij", *pairs) - np.einsum("jl,il->lij", *pairs)
    exact = np.linalg.solve(hessian, right.transpose(2, 0, 1))
    sizes = (rows, 2 * n, n * width, n, n, 4 * max(n, rows))
    contents = (weights, pairs.reshape(-1, WIDTH), start.reshape(-1, WIDTH))
    several = [aligned_zeros(size) for size in sizes]
    for array, content in zip(several, contents, strict=False):
        array[:] = content
    one = [array[:, 3].copy() for array in several]
    more = matrix.ravel(), kept.ravel()
    assert not run(*several, *more)
    assert not run(*one, *more)
    np.testing.assert_allclose(np.stack([several[3], several[4]], axis=1).transpose(2, 0, 1), exact, rtol=1e-10)
    np.testing.assert_allclose(np.stack([one[3], one[4]], axis=1), exact[3], rtol=1e-10)


def test_a_lane_that_is_not_definite_is_found_and_harms_no_other() -> None:
    @njit(error_model="numpy")
    def factored(factor, scratch, out):
        to = as_lanes(out)
        to[0] = choose(algebra.factor_upper(as_lanes(factor), 2, 4, as_lanes(scratch)), 1.0, 0.0)

    matrices = np.tile(np.array([[2.0, 1, 1, 0], [1, 2, 0, 1]]).reshape(8, 1), WIDTH)
    matrices[5, 3] = 0.4  # [[2, 1], [1, 0.4]] is indefinite
    out, factor = aligned_zeros(1), in_lanes(matrices)
    factored(factor, aligned_zeros(8), out)
    assert out[0].tolist() == [1.0] * 3 + [0.0] + [1.0] * (WIDTH - 4)
    others = np.delete(factor, 3, axis=1)
    np.testing.assert_array_equal(others, np.tile(others[:, :1], WIDTH - 1))
