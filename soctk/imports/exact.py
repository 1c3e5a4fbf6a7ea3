"""Exact imports: known convex functions as surrogates, without training.

Quadratic plus norms (paper, Proposition soc_extension): with a factor B'B = Q,
x'Qx / 2 + a'x + b + sum lambda_g ||A_g x + d_g|| is a SOC-ICNN with one quadratic branch and a norm for each term.

Maximum of M affine functions l_1, ..., l_M: a chain of M - 1 layers of one unit each,

    z_1 = relu(l_1 - l_2),  z_k = relu(z_{k-1} + l_k - l_{k+1}),  f = z_{M-1} + l_M,

since z_k + l_{k+1} = max(l_1, ..., l_{k+1}) by induction; its weights between layers are 1. (One layer of M - 1 units,
as the paper has it, is enough in one dimension only.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from soctk.checks import ArrayLike, as_tensor
from soctk.forms.conic_form import ConicForm
from soctk.maps.linear import DenseMap
from soctk.models.exact import ExactSurrogate
from soctk.terms import Network, Norms, Quadratic, Term

PSD_TOLERANCE = 1e-12


def from_quadratic(
    Q: ArrayLike,
    a: ArrayLike,
    b: float = 0.0,
    norms: Sequence[tuple[float, ArrayLike, ArrayLike]] = (),
) -> ExactSurrogate:
    """Return x'Qx / 2 + a'x + b + sum_g lambda_g ||A_g x + d_g||_2.

    Args:
        Q: (n, n), symmetric positive semidefinite.
        a: (n,).
        b: a number.
        norms: for each norm (lambda_g >= 0, A_g (k, n), d_g (k,)).

    Raises:
        ValueError: shapes that do not fit, a Q that is not symmetric or has a negative eigenvalue, a negative lambda.
    """
    matrix, slope = as_tensor(Q, "Q").double(), as_tensor(a, "a").double()
    n = slope.shape[-1] if slope.ndim == 1 else 0
    if slope.ndim != 1 or matrix.shape != (n, n) or n == 0:
        raise ValueError(f"expected Q (n, n) and a (n,), n >= 1, got {tuple(matrix.shape)} and {tuple(slope.shape)}")
    terms: list[Term] = []
    factor, alpha = psd_factor(matrix, "Q")
    if factor.shape[0] > 0:
        rows = factor.shape[0]
        terms.append(
            Quadratic(
                DenseMap(factor[None]), factor.new_zeros(1, 1, rows), factor.new_full((1, 1, rows), alpha), (rows,)
            )
        )
    for index, (weight, A, d) in enumerate(norms):
        terms.append(_norm(index, weight, A, d, n))
    return ExactSurrogate.of(ConicForm(slope.new_full((1, 1), float(b)), slope.reshape(1, 1, -1), tuple(terms)))


def from_max_affine(A: ArrayLike, b: ArrayLike) -> ExactSurrogate:
    """Return max_k a_k'x + b_k as the chain above.

    Args:
        A: (M, n), the slopes a_k.
        b: (M,), the intercepts.

    Raises:
        ValueError: shapes that do not fit, or no piece.
    """
    slopes, heights = as_tensor(A, "A").double(), as_tensor(b, "b").double()
    if slopes.ndim != 2 or heights.shape != slopes.shape[:1] or heights.numel() == 0:
        raise ValueError(f"expected A (M, n) and b (M,), M >= 1, got {tuple(slopes.shape)} and {tuple(heights.shape)}")
    constant, linear = heights[-1].reshape(1, 1), slopes[-1].reshape(1, 1, -1)
    return ExactSurrogate.of(ConicForm(constant, linear, tuple(max_affine_terms(slopes, heights))))


def max_affine_terms(A: Tensor, b: Tensor) -> list[Term]:
    """Return the terms of max_k a_k'x + b_k - (a_M'x + b_M), empty for M = 1."""
    units = A.shape[0] - 1
    if units == 0:
        return []
    one = A.new_ones(1, 1, 1)
    offset = (b[:-1] - b[1:]).reshape(1, 1, -1)
    return [Network(DenseMap((A[:-1] - A[1:])[None]), offset, one, (one,) * (units - 1), (1,) * units)]


def tangent_planes(function: Callable[[Tensor], Tensor], points: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return (A, b) of a convex function's tangent planes at points: their maximum lies below it everywhere.

    With points a net of radius r and a gradient of Lipschitz constant L the maximum is at most 2 L r^2 below the
    function (L r^2 / 2 at best), so N planes reach an error of order N^(-2/n) (paper, structural absorption theorem).

    Args:
        function: convex, differentiable by autograd, (N, n) -> (N,).
        points: (N, n).
    """
    with torch.inference_mode(False), torch.enable_grad():
        net = as_tensor(points, "points").detach().to(torch.float64, copy=True).requires_grad_()
        value = function(net)
        (slope,) = torch.autograd.grad(value.sum(), net)
    return slope, (value - (slope * net).sum(dim=-1)).detach()


def psd_factor(Q: Tensor, name: str) -> tuple[Tensor, float]:
    """Return B (rank, n), its longest row of length one, and alpha with alpha B'B = Q.

    From the eigenvalues of Q / (s s') above rounding, s_i^2 = Q_ii.

    With variables in units of their own eigenvalues of Q itself would tell nothing: what is rounding in one unit is all
    that there is in another. Those of the scaled matrix, whose diagonal is 1, do not depend on units.

    Raises:
        ValueError: Q is not symmetric or not positive semidefinite.
    """
    diagonal = Q.diagonal()
    sizes = diagonal.abs().sqrt()
    units = torch.where(sizes > 0, sizes, 1.0)
    scaled = Q / units[:, None] / units
    off = (scaled - scaled.mT).abs()
    if bool((off > PSD_TOLERANCE).any()):
        i, j = divmod(int(off.argmax()), len(Q))
        pair = f"{float(Q[i, j]):g} at ({i}, {j}) and {float(Q[j, i]):g} at ({j}, {i})"
        raise ValueError(f"{name}: expected a symmetric matrix, got {pair}")
    found = ""
    if bool((diagonal < 0).any()):
        found = f"{float(diagonal.min()):g} on its diagonal"
    elif bool((scaled[sizes == 0] != 0).any()):
        found = "a row of other numbers with 0 on the diagonal"
    values, vectors = torch.linalg.eigh(0.5 * (scaled + scaled.mT))
    if not found and float(values[0]) < -PSD_TOLERANCE * len(Q):
        found = f"eigenvalue {float(values[0]):g} where its diagonal is scaled to 1"
    if found:
        raise ValueError(f"{name}: expected a positive semidefinite matrix, got {found}")
    kept = (values > Q.shape[0] * torch.finfo(Q.dtype).eps * float(values[-1])) & (values > 0)
    factor = values[kept].sqrt()[:, None] * vectors[:, kept].mT * sizes
    length = float(factor.norm(dim=1).max()) if len(factor) else 1.0
    return factor / length, length**2


def _norm(index: int, weight: float, A: ArrayLike, d: ArrayLike, n: int) -> Norms:
    matrix, offset = as_tensor(A, f"norms[{index}].A").double(), as_tensor(d, f"norms[{index}].d").double()
    if matrix.ndim != 2 or matrix.shape[1] != n or offset.shape != matrix.shape[:1]:
        raise ValueError(
            f"norms[{index}]: expected A (k, {n}) and d (k,), got {tuple(matrix.shape)} and {tuple(offset.shape)}"
        )
    lam = matrix.new_full((1, 1, 1), float(weight))
    return Norms(DenseMap(matrix[None]), offset.reshape(1, 1, -1), lam, torch.zeros_like(lam), matrix.shape[0])
