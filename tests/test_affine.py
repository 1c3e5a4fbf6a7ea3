"""Sparse maps against dense ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tolerances import DOUBLE, VALUE, close

from soctk.maps.linear import DenseMap, SparseMap

ROWS, DIM = 6, 5


@pytest.fixture
def pair() -> tuple[DenseMap, SparseMap]:
    """Return the same matrix as both; it has an empty row and an empty column."""
    matrix = sp.random_array((ROWS, DIM), density=0.5, rng=np.random.default_rng(0)).toarray()
    matrix[2], matrix[:, 3] = 0.0, 0.0
    return DenseMap(torch.from_numpy(matrix)[None]), SparseMap.of(matrix)


def agree(dense: DenseMap, sparse: SparseMap) -> None:
    assert (sparse.rows, sparse.dim) == (dense.rows, dense.dim)
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 1), (1, 4), (3, 4)):
        x = torch.randn(*shape, dense.dim, generator=generator, dtype=DOUBLE)
        y = torch.randn(*shape, dense.rows, generator=generator, dtype=DOUBLE)
        close(sparse.forward(x), dense.forward(x), VALUE)
        close(sparse.adjoint(y), dense.adjoint(y), VALUE)
    for each in (dense, sparse):
        np.testing.assert_array_equal(each.to_sparse().toarray(), dense.matrix[0].numpy())


def test_products_are_those_of_the_matrix(pair):
    agree(*pair)


def test_rewriting(pair):
    dense, sparse = pair
    agree(dense.compose_scale(2.0), sparse.compose_scale(2.0))
    factor = torch.arange(1.0, DIM + 1, dtype=DOUBLE)
    agree(dense.compose_scale(factor), sparse.compose_scale(factor))
    columns = torch.tensor([0, 3, 4])
    agree(dense.restrict(columns), sparse.restrict(columns))
    assert sparse.apply(lambda t: t if t.shape[0] == 1 else t[:1]) is sparse
    assert sparse.apply(torch.Tensor.float).forward(torch.ones(1, 1, DIM)).dtype == torch.float32


def test_rows_of_zeros_at_the_end_take_part_in_nothing(pair):
    matrix = torch.cat([pair[0].matrix, torch.zeros(1, 2, DIM, dtype=DOUBLE)], dim=1)
    short, sparse = DenseMap(matrix, ROWS), SparseMap.of(matrix[0].numpy())
    agree(short, sparse)
    agree(short.compose_scale(2.0), sparse.compose_scale(2.0))
    agree(short.restrict(torch.tensor([1, 2])), sparse.restrict(torch.tensor([1, 2])))
    assert short.apply(torch.Tensor.float).used == ROWS
    weights = torch.rand(3, ROWS + 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    totals = [torch.zeros(3, DIM, DIM, dtype=DOUBLE) for _ in pair]
    for each, total in zip((short, sparse), totals, strict=True):
        each.add_gram(total, weights)
    close(*totals, VALUE)
    assert torch.autograd.gradcheck(short.forward, torch.randn(2, 3, DIM, dtype=DOUBLE, requires_grad=True))
    assert torch.autograd.gradcheck(short.adjoint, torch.randn(2, 3, ROWS + 2, dtype=DOUBLE, requires_grad=True))


def test_gram_matrices_and_groups(pair):
    totals = [torch.zeros(3, DIM, DIM, dtype=DOUBLE) for _ in pair]
    weights = torch.rand(3, ROWS, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    for each, total in zip(pair, totals, strict=True):
        each.add_gram(total, weights)
    close(*totals, VALUE)
    dense, sparse = (each.group_adjoint(weights, 2) for each in pair)
    close(sparse, dense, VALUE)


def test_derivatives_of_both_orders(pair):
    x = torch.randn(2, 3, DIM, dtype=DOUBLE, requires_grad=True)
    y = torch.randn(2, 3, ROWS, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(pair[1].forward, x)
    assert torch.autograd.gradcheck(pair[1].adjoint, y)
    assert torch.autograd.gradgradcheck(lambda t: pair[1].forward(t).square(), x)


def test_large_maps_make_no_dense_copy():
    large = SparseMap.of(sp.eye_array(5000))
    with pytest.raises(NotImplementedError, match="newton_cg"):
        large.add_gram(torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match=r"A: expected finite numbers"):
        large.apply(lambda t: torch.full_like(t, torch.nan)).check("A")
    with pytest.raises(ValueError, match="expected one context"):
        DenseMap(torch.zeros(2, 3, 3)).to_sparse()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_what_was_made_without_derivatives_does_not_serve_those_who_need_them(pair, context):
    numbers = pair[1].values.clone().requires_grad_()
    sparse = SparseMap(numbers, pair[1].pattern)
    with context():
        sparse.to_dense()
        sparse.reach(torch.ones(DIM, dtype=DOUBLE), 1.0)
    total = (sparse.to_dense().matrix ** 2).sum() + sparse.reach(torch.ones(DIM, dtype=DOUBLE), 1.0).sum()
    (slope,) = torch.autograd.grad(total, numbers)
    close(slope, 2 * pair[1].values + pair[1].values.sign(), VALUE)
    assert sparse.to_dense() is sparse.to_dense()
