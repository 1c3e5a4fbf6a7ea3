"""Records: named parts of vectors, of ordinary numbers and of lanes; words, compiled as they are written."""

from __future__ import annotations

import math
from enum import IntEnum
from types import ModuleType

import numpy as np
import pytest
from numba import njit
from tolerances import DOUBLE, VALUE

from soctk import simd
from soctk.simd import algebra, view  # noqa: F401  (algebra implements the words)
from soctk.simd.functions import adopt, digest
from soctk.simd.lanes import WIDTH, aligned_zeros, as_lanes
from soctk.simd.records import record_of
from soctk.simd.tables import Table

TABLE = Table(("n", "rows"), state={"mu": (), "x": ("n",), "A": ("rows", "n"), "last": ()})
SIZES = {"n": 3, "rows": 2}
state_of = record_of(TABLE, "state")


@njit(error_model="numpy")
def use(layout, array):
    """Set every number of a state to what tells its place."""
    state = state_of(layout, as_lanes(array))
    state.mu, x, A = 0.5, state.x, state.A
    for j in range(state.n):
        x[j] = j + 1
    for k in range(A.size):
        A[k] = 10 * state.rows + k
    state.last = state.mu + x[2]
    state.last += 1
    return state.x.size


@pytest.mark.parametrize("width", [1, WIDTH])
def test_parts_are_where_the_layout_says(width: int) -> None:
    layout, size = TABLE.measure(SIZES), TABLE.count("state", SIZES)
    array = aligned_zeros(size)
    array = array[:, 0].copy() if width == 1 else array
    assert use(np.array(layout), array) == 3
    expected = [0.5, 1, 2, 3, *range(20, 26), 4.5]
    np.testing.assert_array_equal(array, expected if width == 1 else np.tile(expected, (WIDTH, 1)).T)
    at = TABLE.slices(layout, "state")
    assert (at.mu, at.x, at.A, at.last) == (0, slice(1, 4), slice(4, 10), 10)


def test_a_name_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="x is declared twice"):
        Table(("n",), one={"x": ()}, two={"x": ()})


@njit(error_model="numpy")
def words(vectors, out, matrix, n):
    """Use every word that has a meaning without lanes."""
    a, b, c = vectors[:n], vectors[n : 2 * n], vectors[2 * n :]
    simd.add_rows(out[:n], a, n, matrix, 0, n)
    simd.add_gram(out[n : n + n * n], n, n, b, n, matrix, 0, c)
    simd.add_product(out[n + n * n : n + 2 * n * n], n, n, matrix, 0, n, a, matrix, 0, c)
    simd.fill(out[n + 2 * n * n :], simd.dot(a, b) + simd.sum_of(view(a, 1, n - 1)))


@pytest.mark.parametrize("n", [2, 5, 8])
def test_words_are_compiled_as_they_are_written(n: int) -> None:
    rng = np.random.default_rng(n)
    vectors, matrix, found, plain = rng.normal(size=6 * n), rng.normal(size=n * n), *np.zeros((2, 2 * n * n + n + 1))
    words(vectors.copy(), found, matrix, n)
    words.py_func(vectors.copy(), plain, matrix, n)
    upper = np.triu(np.ones((n, n))).ravel() > 0  # below it nothing is promised
    kept = np.concatenate([np.full(n, True), upper, np.full(n * n + 1, True)])
    np.testing.assert_allclose(found[kept], plain[kept], rtol=0, atol=VALUE[DOUBLE] * n)


def test_plain_functions_are_compiled_with_those_they_call() -> None:
    module: dict = {"choose": simd.choose, "LIMIT": 2.0}
    exec("def inner(a):\n return choose(a > LIMIT, LIMIT, a)\ndef outer(a):\n return 3 * inner(a)", module)
    outer = module["outer"]
    adopt(outer)

    @njit
    def use_it(a):
        return outer(a)

    assert (use_it(5.0), use_it(1.0)) == (outer(5.0), outer(1.0)) == (6.0, 3.0)
    before = digest([outer])
    module["LIMIT"] = 4.0
    assert digest([outer]) != before


VALUES = {
    "constant": "def f(a):\n return a * LIMIT",
    "module": "def f(a):\n return a * module.LIMIT",
    "array": "def f(a):\n return a * ARRAY[0]",
    "NumPy's number": "def f(a):\n return a * NUMBER",
    "tuple": "def f(a):\n return a * PAIR[1]",
    "default": "def f(a, b=LIMIT):\n return a * b",
    "enumeration": "def f(a):\n return a * Kind.ONE.value",
    "within": "def f(a):\n def g(b):\n  return b * LIMIT\n return g(a)",
    "called": "def g(a):\n return a * module.LIMIT\ndef f(a):\n return g(a)",
}


@pytest.mark.parametrize("code", VALUES.values(), ids=VALUES)
def test_a_digest_is_of_all_values_that_a_function_is_compiled_with(code: str) -> None:
    """Numba keeps code by the files that it is written in: a changed value elsewhere was decided by what had been."""

    def made(limit: float) -> bytes:
        other = ModuleType("prices")
        other.LIMIT = limit  # type: ignore[attr-defined]
        kind = IntEnum("Kind", {"ONE": int(limit)})
        scope = {"LIMIT": limit, "module": other, "NUMBER": np.int64(limit), "PAIR": (1, limit), "Kind": kind}
        exec(code, scope | {"ARRAY": np.array([limit])}, space := {})
        function = space["f"]
        function.__globals__.update(space)
        return digest([function])

    assert made(2.0) == made(2.0) != made(3.0)


def test_functions_that_numba_knows_by_name_are_left_to_it() -> None:
    scope = {"np": np, "math": math, "where": np.where}
    exec("def f(a):\n return math.sqrt(a) + np.sum(a) + where(a > 0, a, 1.0)", scope)
    adopt(scope["f"])
    assert digest([scope["f"]]) == digest([scope["f"]])

    @njit
    def use_where(a):
        return np.where(a > 0, a, 1.0).sum()

    assert use_where(np.array([-1.0, 2.0])) == 3.0
