"""Default sizes of the SOC-ICNN family, behind `make_surrogate`.

General, not tuned to any task. `fit` chooses SOC's structure on the data. Three with one centre for all branches, which
few or noisy values can tell: a dense quadratic, with a norm of n rows, with a few hyperbolic branches (beyond dimension
32 a diagonal quadratic, without and with these). Three with hyperbolic branches and no such tie: a diagonal quadratic,
each coordinate with a weight of its own, and two norms of n / 2 rows (beyond dimension 32: with one weight and one
norm); a dense quadratic (beyond dimension 32: of rank 16 beside the diagonal one) and two such norms; with a norm of n
rows and a small ReLU backbone. Norms of few rows are found from more starts than those of n rows. Beyond dimension 32
that last norm has n / 2 rows, and its other weights go to hyperbolic branches, of which there are 3 n / 5 in place of
eight. Beyond dimension 100 norms have 16 rows and there are nine of these, so that the number of weights grows like n.
`fit` adds hyperbolic branches where the data ask for them.
The ablations keep what their name says and get backbone width until they have at least SOC's number of weights; the
wide networks until they have three times as many, which ReLU units put to use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from soctk.models.dense import SOCICNN
from soctk.models.family import NormICNN, QuadICNN, ReLUICNN, SoftplusICNN
from soctk.surrogate import ConvexSurrogate

Model = TypeVar("Model", bound=ConvexSurrogate)

FULL_RANK_DIM = 32
LOW_RANK = 16
WIDE_DIM = 100
HYPERBOLICS = 8
"""Up to dimension `FULL_RANK_DIM`."""
SOC_HIDDEN = 4
SLOPE_HIDDEN = 64
"""Hidden units that the entries of v share, but in models that `max_parameters` keeps small."""
MIN_WIDTH = 16
WIDE = 3
"""How many times SOC's number of weights the wide networks have."""


def soc(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> SOCICNN:
    """Return a SOC-ICNN: the largest of a ladder of sizes within `max_parameters`."""
    rank = dim if dim <= FULL_RANK_DIM else LOW_RANK
    rows, half = (dim, (dim + 1) // 2) if dim <= WIDE_DIM else (LOW_RANK, LOW_RANK)
    third, hyperbolics = (rows + 1, HYPERBOLICS) if dim <= FULL_RANK_DIM else (half, 3 * rows // 5)
    full: dict[str, Any] = {
        "hidden": (SOC_HIDDEN,),
        "diagonal": True,
        "diagonal_weights": dim <= FULL_RANK_DIM,
        "quadratics": (rank,),
        "norms": (half, half, third),
    }
    dense = ("quadratic0", *(("diagonal",) if rank < dim else ()))
    loose = ("norm0", "hyperbolics")
    choice = {
        "level_squares": True,
        "structures": (
            *_with_one_centre(dim),
            ("diagonal", *loose, *(("norm1",) if rank == dim else ())),
            (*dense, *loose, "norm1"),
            (*dense, *loose, "norm1", "norm2", "backbone"),
        ),
        "centred": len(_with_one_centre(dim)),
    }
    ladder = [
        *({**full, **choice, "hyperbolics": hyperbolics, "slope_hidden": shared} for shared in (SLOPE_HIDDEN, 0)),
        {**full, "hyperbolics": 2, "norms": (rows,), "slope_hidden": 0},
        {"hidden": (2,), "norms": (rows,), "diagonal": True},
        {"hidden": (1,), "norms": (1,), "diagonal": True, "affine_hidden": 0, "ridges": 0},
    ]
    return largest_within(lambda sizes: SOCICNN(dim, context_dim, seed=seed, **sizes), ladder, max_parameters)


def _with_one_centre(dim: int) -> list[tuple[str, ...]]:
    if dim > FULL_RANK_DIM:
        return [("diagonal",), ("diagonal", "hyperbolics")]
    return [("quadratic0",), ("quadratic0", "norm2"), ("quadratic0", "hyperbolics")]


def relu(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> SOCICNN:
    """Return a ReLU ICNN of two layers."""
    return _widened(ReLUICNN, dim, context_dim, max_parameters, seed)


def softplus(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> SOCICNN:
    """Return a softplus ICNN of two layers."""
    return _widened(SoftplusICNN, dim, context_dim, max_parameters, seed)


def relu_wide(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> SOCICNN:
    """Return a ReLU ICNN of two layers with several times as many weights as SOC."""
    return _widened(ReLUICNN, dim, context_dim, max_parameters, seed, times=WIDE)


def softplus_wide(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> SOCICNN:
    """Return a softplus ICNN of two layers with several times as many weights as SOC."""
    return _widened(SoftplusICNN, dim, context_dim, max_parameters, seed, times=WIDE)


def quad(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> SOCICNN:
    """Return a ReLU ICNN with the quadratic branch."""
    return _widened(QuadICNN, dim, context_dim, max_parameters, seed)


def norm(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> SOCICNN:
    """Return a ReLU ICNN with the conic branch."""
    return _widened(NormICNN, dim, context_dim, max_parameters, seed, norms=(dim, dim))


def _widened(
    kind: type[SOCICNN],
    dim: int,
    context_dim: int,
    max_parameters: int | None,
    seed: int,
    *,
    times: int = 1,
    **options: Any,
) -> SOCICNN:
    """Return two equal hidden layers: the smallest with `times` SOC's number of weights, or the largest allowed."""
    if max_parameters is None:
        wanted = times * soc(dim, context_dim, None, seed).parameter_count
        width = MIN_WIDTH
        model = kind(dim, context_dim, hidden=(width, width), slope_hidden=SLOPE_HIDDEN, seed=seed, **options)
        while model.parameter_count < wanted:
            width += 2
            model = kind(dim, context_dim, hidden=(width, width), slope_hidden=SLOPE_HIDDEN, seed=seed, **options)
        return model
    widths = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
    sizes = (SLOPE_HIDDEN, 0)
    ladder: list[dict[str, Any]] = [{"hidden": (w, w), "slope_hidden": shared} for shared in sizes for w in widths]
    ladder.append({"hidden": (1,), "affine_hidden": 0, "ridges": 0})
    return largest_within(lambda sizes: kind(dim, context_dim, seed=seed, **sizes, **options), ladder, max_parameters)


def largest_within(
    make: Callable[[dict[str, Any]], Model], ladder: Sequence[dict[str, Any]], max_parameters: int | None
) -> Model:
    """Return the first model of a ladder of falling sizes that has at most `max_parameters` weights.

    Raises:
        ValueError: the smallest has more.
    """
    for sizes in ladder:
        model = make(sizes)
        if max_parameters is None or model.parameter_count <= max_parameters:
            return model
    raise ValueError(
        f"max_parameters: expected at least {model.parameter_count} (the smallest member for these dimensions), "
        f"got {max_parameters}"
    )
