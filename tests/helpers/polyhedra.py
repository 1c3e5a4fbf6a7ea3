"""Polyhedra whose rows are of every kind."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from soctk import Polyhedron

INF = float("inf")


def transport() -> Polyhedron:
    """Two suppliers, three customers: every column of the sparse E has two entries, one of its rows is dependent."""
    suppliers = sp.kron(sp.eye(2), np.ones((1, 3)))
    customers = sp.kron(np.ones((1, 2)), sp.eye(3))
    return Polyhedron(6, E=sp.vstack([suppliers, customers]).tocsr(), f=[0.6, 0.4, 0.2, 0.5, 0.3])


def random_rows(n: int = 5, m: int = 9, k: int = 1) -> Polyhedron:
    generator = np.random.default_rng(n)
    G, E, inside = generator.normal(size=(m, n)), generator.normal(size=(k, n)), generator.uniform(-0.5, 0.5, n)
    return Polyhedron(n, -2.0, 2.0, E, E @ inside, G, G @ inside + generator.uniform(0.1, 1.0, m))


def cross_polytope(n: int = 3) -> Polyhedron:
    """|x_1| + ... + |x_n| <= 1 without a single bound."""
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * n)).reshape(n, -1).T
    return Polyhedron(n, -INF, INF, G=signs, h=np.ones(len(signs)))


def pyramid() -> Polyhedron:
    """An apex at which eight rows meet in three dimensions, each of them given twice, the second time four times."""
    angles = np.arange(8) * np.pi / 4
    rows = np.column_stack([np.cos(angles), np.sin(angles), np.ones(8)])
    return Polyhedron(3, [-INF, -INF, 0.0], INF, G=np.vstack([rows, 4 * rows]), h=np.append(np.ones(8), 4 * np.ones(8)))


POLYHEDRA = {
    "dense": random_rows,
    "sparse": transport,
    "cross_polytope": cross_polytope,
    "degenerate": pyramid,
    "rows_of_many_sizes": lambda: Polyhedron(3, 0.0, 1.0, G=[[1e3, 1e3, 0.0], [0.0, 0.01, 0.01]], h=[1.2e3, 0.015]),
    "implicit_equality": lambda: Polyhedron(3, 0.0, 2.0, G=[[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]], h=[1.0, -1.0]),
    "implicitly_fixed": lambda: Polyhedron(4, 0.0, 1.0, G=[[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0]], h=[0.0, 1.5]),
    "fixed_by_a_row": lambda: Polyhedron(3, -1.0, 1.0, E=[0.0, 2.0, 0.0], f=0.5, G=[1.0, 1.0, 1.0], h=0.7),
    "fixed_coordinate": lambda: Polyhedron(3, [0.0, 0.3, 0.0], [1.0, 0.3, 1.0], G=[1.0, 1.0, -1.0], h=0.5),
    "one_point": lambda: Polyhedron(2, 0.0, 1.0, E=[[1.0, 1.0], [1.0, -1.0]], f=[1.0, 0.5]),
    "one_corner": lambda: Polyhedron(3, 0.0, G=[1.0, 2.0, 1.0], h=0.0),
    "scaled_sum": lambda: Polyhedron(4, 0.0, INF, E=[2.0, 2.0, 2.0, 2.0], f=3.0),
    "sum_and_free_below": lambda: Polyhedron(3, -INF, [0.5, 1.0, 2.0], E=np.ones((1, 3)), f=1.0),
    "capped_in_part": lambda: Polyhedron(3, 0.0, [0.5, INF, INF], E=np.ones((1, 3)), f=1.0),
    "box": lambda: Polyhedron(3, -1.0, [1.0, 2.0, 3.0]),
    "line": lambda: Polyhedron(1, -INF, INF, G=[[2.0], [-1.0]], h=[3.0, 1.0]),
}
