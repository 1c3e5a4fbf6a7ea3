"""Every term against the contract: shared coefficients and each instance its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from pinball import Pinball
from squared_hinge import SquaredHinge
from term_contract import INSTANCES, TermContract, from_numpy

from soctk.maps.linear import DenseMap, SparseMap
from soctk.terms import Huber, Logistic, LogSumExp, Network, Norms, Quadratic

DIM = 4


def parts(
    rng: np.random.Generator, rows: int, weights: int, *, own: bool
) -> tuple[DenseMap, torch.Tensor, torch.Tensor]:
    """Return a map, an offset and weights, shared or with a leading dimension for every instance."""
    lead = INSTANCES if own else 1
    level = torch.from_numpy(rng.uniform(0.2, 2.0, (INSTANCES, 1, weights)))
    return DenseMap(from_numpy(rng, lead, rows, DIM)), from_numpy(rng, INSTANCES, 1, rows), level


def quadratic(own: bool) -> Quadratic:
    term = Quadratic(*parts(np.random.default_rng(0), 5, 5, own=own))
    weights = term.weights.clone()
    weights[..., -1] = 0.0  # phi* is finite at y = 0 only
    return dataclasses.replace(term, weights=weights)


def norms(size: int, kappa: float, own: bool) -> Norms:
    rng = np.random.default_rng(1)
    constants = kappa * torch.from_numpy(rng.uniform(0.5, 1.5, (1, 1, 2)))
    return Norms(*parts(rng, 2 * size, 2, own=own), constants, size)


def network(widths: tuple[int, ...], activation: str, own: bool) -> Network:
    rng = np.random.default_rng(2)
    lead = INSTANCES if own else 1
    mixing = tuple(from_numpy(rng, lead, a, b).abs() for b, a in pairwise(widths))
    return Network(*parts(rng, sum(widths), widths[-1], own=own), mixing, widths, activation)


def group(make: Callable[..., object], **cases: tuple) -> dict[str, Callable[[], object]]:
    """Return makers of every case, with coefficients shared by the instances and with their own."""
    return {
        f"{name}_{'own' if own else 'shared'}": lambda arguments=arguments, own=own: make(*arguments, own)
        for name, arguments in cases.items()
        for own in (False, True)
    }


def sparse_network(widths: tuple[int, ...], activation: str) -> Network:
    """Return the network with its matrices as sparse maps."""
    term = network(widths, activation, own=False)
    mixing = tuple(SparseMap.of(matrix[0].numpy()) for matrix in term.mixing)
    return dataclasses.replace(term, map=SparseMap.of(term.map.to_sparse()), mixing=mixing)


class TestQuadratic(TermContract):
    CASES: ClassVar = group(quadratic, plain=())


class TestNorms(TermContract):
    CASES: ClassVar = group(norms, abs=(1, 0.0), cone=(3, 0.0), hyperbolic=(1, 0.7), hyperbolic_cone=(3, 0.7))


class TestReLUNetwork(TermContract):
    CASES: ClassVar = group(
        network,
        one=((3,), "relu"),
        two=((4, 3), "relu"),
        three=((4, 3, 2), "relu"),
        width_one=((1, 1), "relu"),
    )


class TestSparseNetwork(TermContract):
    CASES: ClassVar = {
        "relu": lambda: sparse_network((4, 3, 2), "relu"),
        "softplus": lambda: sparse_network((4, 3, 2), "softplus"),
    }


class TestSoftplusNetwork(TermContract):
    CASES: ClassVar = group(network, one=((3,), "softplus"), two=((4, 3), "softplus"), three=((4, 3, 2), "softplus"))


class TestLogistic(TermContract):
    CASES: ClassVar = group(lambda own: Logistic(*parts(np.random.default_rng(3), 5, 5, own=own)), plain=())


class TestLogSumExp(TermContract):
    CASES: ClassVar = group(lambda own: LogSumExp(*parts(np.random.default_rng(4), 6, 2, own=own), size=3), plain=())


class TestHuber(TermContract):
    CASES: ClassVar = group(lambda own: Huber(*parts(np.random.default_rng(5), 5, 5, own=own), delta=0.35), plain=())


class TestSquaredHinge(TermContract):
    """One that is not ours."""

    CASES: ClassVar = group(lambda own: SquaredHinge(*parts(np.random.default_rng(6), 5, 5, own=own)), plain=())


class TestPinball(TermContract):
    """One that is not ours, with kinks, and neither a kernel nor dual iterates."""

    CASES: ClassVar = group(lambda own: Pinball(*parts(np.random.default_rng(7), 5, 5, own=own), tau=0.3), plain=())


@pytest.mark.parametrize("bad", [-0.1, torch.nan])
def test_a_networks_mixing_matrix_is_checked(bad: float) -> None:
    term = network((4, 3, 2), "relu", own=True)
    broken = term.mixing[1].clone()
    broken[1, 0, 0] = bad
    with pytest.raises(ValueError, match=r"network\.U3"):
        dataclasses.replace(term, mixing=(term.mixing[0], broken)).check()
    sparse = dataclasses.replace(
        term, mixing=tuple(SparseMap.of(matrix[1].numpy()) for matrix in (term.mixing[0], broken))
    )
    with pytest.raises(ValueError, match=r"network\.U3"):
        sparse.check()


def test_kappa_of_a_norm_is_checked() -> None:
    term = norms(3, 0.7, own=False)
    with pytest.raises(ValueError, match=r"norms\.kappa"):
        dataclasses.replace(term, kappa=term.kappa * torch.nan).check()


def test_the_dual_chain_of_the_paper_is_feasible_and_tight() -> None:
    """0 <= nu_L <= c and 0 <= nu_l <= U_{l+1}' nu_{l+1} from any y (Section 3.1)."""
    term = network((4, 3, 2), "relu", own=True)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 100.0):
        y = scale * torch.randn(INSTANCES, 7, 9, generator=generator, dtype=torch.float64)
        first, second, third = term.nearest_dual(y).split(term.widths, dim=-1)
        assert bool((third <= term.weights + 1e-14).all())
        assert bool((second <= third @ term.mixing[1] + 1e-12).all())
        assert bool((first <= second @ term.mixing[0] + 1e-12).all())
        assert all(bool((nu >= 0).all()) for nu in (first, second, third))


def test_a_network_may_mix_dense_and_sparse_matrices() -> None:
    one, two = torch.ones(1, 6, 2, dtype=torch.float64), torch.ones(1, 2, 2, dtype=torch.float64)
    mixing = (two, SparseMap.of(np.eye(2)))
    network = Network(DenseMap(one), one[:, :, 0].unsqueeze(1), two[:, :1], mixing=mixing, widths=(2, 2, 2))
    seen: list[torch.Tensor] = []
    twice = network.apply(lambda tensor: seen.append(tensor) or 2 * tensor)  # type: ignore[func-returns-value]
    assert len({id(tensor) for tensor in seen}) == len(seen) == 5  # A, d, c, U_2 and U_3, once each
    assert float(twice.mixing[0].sum()) == 8.0
    assert float(twice.mixing[1].to_dense().matrix.sum()) == 4.0
