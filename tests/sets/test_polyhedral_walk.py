"""Samples of general polyhedra: their distribution where it is known, and how fast chains forget where they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from polyhedra import INF, random_rows
from scipy.stats import ks_2samp, kstest
from tolerances import DOUBLE

from soctk import Box, Polyhedron, Simplex
from soctk.sets.general import General
from soctk.sets.polyhedral_walk import CHAINS, walk

# Tests at level 1e-3 with fixed seeds: they fail for a wrong distribution, never by chance.
LEVEL = 1e-3
COUNT = 2000

# -- known distributions ---------------------------------------------------------------------------------


def test_hit_and_run_is_uniform_in_a_simplex(generator: torch.Generator) -> None:
    """Dirichlet(1), by the general oracles: each coordinate is Beta(1, n - 1)."""
    x = General(Simplex(4).rows()).sample(COUNT, generator)
    assert all(kstest(x[:, i].numpy(), "beta", args=(1, 3)).pvalue > LEVEL for i in range(4))


def test_hit_and_run_does_not_mind_scales(generator: torch.Generator) -> None:
    box = Box(3, [0.0, -5e3, 1.0], [1e-4, 5e3, 2.0])
    x = General(box.rows()).sample(COUNT, generator)
    for i, (lo, hi) in enumerate(zip(box.lower, box.upper, strict=True)):
        assert kstest(x[:, i].numpy(), "uniform", args=(lo, hi - lo)).pvalue > LEVEL


def test_hit_and_run_is_uniform_where_rejection_is_possible(generator: torch.Generator) -> None:
    polyhedron = random_rows(3, 6, 0)
    x = polyhedron.sample(COUNT, generator)
    box = -2 + 4 * torch.rand(400_000, 3, generator=generator, dtype=DOUBLE)
    reference = box[polyhedron.contains(box, atol=0.0)]
    assert len(reference) > COUNT
    for direction in (*torch.eye(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)):
        assert ks_2samp((x @ direction).numpy(), (reference @ direction).numpy()).pvalue > LEVEL


@pytest.mark.parametrize("n", [2, 12])
def test_samples_of_a_simplex_given_by_rows_are_dirichlet(n: int, generator: torch.Generator) -> None:
    """sum(x) = 1 as two inequalities: Beta(1, n - 1) for each coordinate, Beta(2, n - 2) for the sum of two."""
    sums = np.array([np.ones(n), -np.ones(n)])
    x = Polyhedron(n, 0.0, INF, G=sums, h=[1.0, -1.0]).sample(2 * COUNT, generator)
    for i in range(n):
        assert kstest(x[:, i].numpy(), "beta", args=(1, n - 1)).pvalue > LEVEL
        if n > 2:
            assert kstest((x[:, i] + x[:, i - 1]).numpy(), "beta", args=(2, n - 2)).pvalue > LEVEL
    expected = (n * torch.eye(n, dtype=DOUBLE) - 1.0) / (n**2 * (n + 1))
    # Standard errors of covariances are below sqrt(8) var / sqrt(count), the fourth moment of Beta(1, n) being 9 var^2.
    torch.testing.assert_close(torch.cov(x.T), expected, rtol=0, atol=4 * float(expected[0, 0]) * (8 / len(x)) ** 0.5)


@pytest.mark.parametrize("thinnest", [1.0, 1e-4])
def test_samples_of_a_turned_box_are_uniform(thinnest: float, generator: torch.Generator) -> None:
    """|Q x|_i <= s_i without a bound: the coordinates of Q x are independent and uniform, however thin the box."""
    n = 6
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(n, n)))[0]
    sides = np.geomspace(1.0, thinnest, n)
    box = Polyhedron(n, -INF, INF, G=np.vstack([Q, -Q]), h=np.append(sides, sides))
    shares = (box.sample(2 * COUNT, generator) @ torch.from_numpy(Q / sides[:, None]).T + 1) / 2
    for i in range(n):
        assert kstest(shares[:, i].numpy(), "uniform").pvalue > LEVEL
    off = torch.corrcoef(shares.T) - torch.eye(n, dtype=DOUBLE)
    assert float(off.abs().max()) <= 4 / len(shares) ** 0.5


def test_samples_of_a_flat_set_fill_its_relative_interior(generator: torch.Generator) -> None:
    """The square x_1 + x_2 = 1, x_3 + x_4 = 1 between 0 and 1, beside a coordinate that cannot move."""
    E = np.array([[1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    x = Polyhedron(5, 0.0, 1.0, E, [1.0, 2.0, 0.5]).sample(COUNT, generator)
    for i in range(4):
        assert kstest(x[:, i].numpy(), "uniform").pvalue > LEVEL
    torch.testing.assert_close(x[:, 4], torch.full((COUNT,), 0.5, dtype=DOUBLE), rtol=0, atol=1e-15)


# -- mixing ----------------------------------------------------------------------------------------------


def portfolio() -> Polyhedron:
    """Forty shares of one, at most a fifth each, sectors and factors limited: 39 dimensions, long in few of them."""
    numbers = np.random.default_rng(0)
    sectors = (np.arange(40) % 5 == np.arange(5)[:, None]).astype(float)
    factors = 0.5 * numbers.normal(size=(5, 40))
    h = np.append(np.full(5, 0.35), np.full(10, 0.25))
    return Polyhedron(40, 0.0, 0.2, np.ones(40), 1.0, np.vstack([sectors, factors, -factors]), h)


def flows() -> Polyhedron:
    """Five suppliers, six customers, no upper bounds."""
    to, by = np.kron(np.ones((1, 5)), np.eye(6)), np.kron(np.eye(5), np.ones((1, 6)))
    return Polyhedron(30, 0.0, INF, to, np.linspace(0.6, 1.4, 6), by, np.full(5, 1.9))


MIXING = {
    "portfolio": portfolio,
    "flows": flows,
    "dense": lambda: random_rows(20, 50, 0),
    "long_simplex": lambda: Polyhedron(15, 0.0, INF, G=np.geomspace(1.0, 1e4, 15), h=1.0),
    "a_row_given_often": lambda: Polyhedron(4, 0.0, 1.0, G=np.tile(np.eye(4)[0], (200, 1)), h=np.ones(200)),
}


def gelman_rubin(x: torch.Tensor) -> torch.Tensor:
    """Return the potential scale reduction of split chains (T, C, n), for every coordinate."""
    half = len(x) // 2
    x = torch.cat([x[:half], x[half : 2 * half]], dim=1)
    within, between = x.var(dim=0).mean(dim=0), x.mean(dim=0).var(dim=0)
    return ((half - 1) / half + between / within).sqrt()


@pytest.mark.parametrize("make", MIXING.values(), ids=MIXING)
def test_chains_mix(make, generator: torch.Generator) -> None:
    """R-hat of the coordinates below 1.05, and of their squares, which the distances from corners decide."""
    general = General(make().rows())
    points = walk(general._directions, np.ones((len(general.inside.normals), 64)), generator)
    w = torch.from_numpy(np.stack([next(points) for _ in range(60)]))
    x = w @ torch.from_numpy(general._frame[0])
    for moved in (x, (x - x.mean(dim=(0, 1))) ** 2):
        assert float(gelman_rubin(moved).max()) < 1.05


def test_a_chain_has_forgotten_the_centre_at_its_first_point(generator: torch.Generator) -> None:
    """Each chain's first point has the distribution of later ones: Beta(1, n - 1) far from the centre too."""
    x = General(Simplex(20).rows()).sample(CHAINS, generator)
    for i in range(20):
        assert kstest(x[:, i].numpy(), "beta", args=(1, 19)).pvalue > LEVEL


def test_chains_may_walk_in_sets_of_their_own(generator: torch.Generator) -> None:
    """Boxes of other sizes with the same rows."""
    box = General(Box(3, -1.0, 1.0).rows())
    sizes = np.linspace(0.5, 3.0, 400)
    w = next(walk(box._directions, np.ones((6, 1)) * sizes, generator)) / sizes[:, None]
    x = w @ box._frame[0]
    for i in range(3):
        assert kstest(x[:, i], "uniform", args=(-1, 2)).pvalue > LEVEL
