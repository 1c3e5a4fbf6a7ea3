"""`soctk.assess`: how far a model can be trusted with decisions, from logged decisions that it has not seen."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import ndtr, stdtrit

from soctk.assessment.assessment import Assessment, Error, Shown
from soctk.assessment.convexity import curvature
from soctk.assessment.judged import Judged
from soctk.assessment.minimum import SCORE, Interval, expected_costs
from soctk.assessment.noise import noise_floor
from soctk.assessment.overlap import overlap
from soctk.assessment.quadratic import (
    QuadraticRival,
    constant_prediction,
    context_prediction,
    cross_fitted,
    predicted,
    quadratic_prediction,
)
from soctk.assessment.regret import expected_regret
from soctk.assessment.rows import Axes, Rows
from soctk.assessment.verdict import FEWEST_ROWS, judge
from soctk.checks import ArrayLike, check_learns
from soctk.function import check_function
from soctk.learn.data import ValueData
from soctk.learn.optimality import spanned_set
from soctk.models.average import average
from soctk.sets import FeasibleSet, SetAt
from soctk.surrogate import ConvexSurrogate

MOST_ROWS, MOST_CONTEXTS = 4000, 300
MOST_ROWS_BY_OTHERS = 300
"""Rows for a model without a conic form, which outside solvers decide with one by one."""
MOST_NUMBERS = 200
"""Numbers of decision and context that quadratics and white coordinates are made of."""
MOST_SLICES = 8
SLICE = 2.0
"""How far slices go, in standard deviations of the logged decisions."""


def assess(
    model: ConvexSurrogate,
    data: ValueData,
    feasible_set: FeasibleSet | SetAt | None = None,
    *,
    train: ValueData | None = None,
    seen: bool = False,
    seed: int = 0,
) -> Assessment:
    """Measure how far a model can be trusted with decisions in the contexts of a log.

    Args:
        model: the surrogate.
        data: logged decisions that it has not learned from.
        feasible_set: where it is to decide; `feasible_set.at(...)` for a set of its own for every instance of the data;
            by default the smallest box around the logged decisions, with their common sum where they have one.
        train: the data that it has learned from, which the least-squares quadratic is then fitted to; else it is
            cross-fitted to `data`, of which it may have fewer rows than the model had.
        seen: that the model has learned from `data` after all. Nothing is then said to be good.
        seed: of the rows that are taken where there are very many.

    Returns:
        `Assessment`; print it.

    Raises:
        TypeError: a model that is no surrogate.
        ValueError: data, or a set, of other dimensions than the model's; sets that are empty; a decision and a context
            of more than 200 numbers.
        RuntimeError: within `torch.inference_mode()`, or with another default device of PyTorch's than the processor.
    """
    check_learns("assess")
    check_function(model)
    model = model.on_processor()
    if model.dim + model.context_dim > MOST_NUMBERS:
        raise ValueError(
            f"model: expected at most {MOST_NUMBERS} numbers of decision and context, got "
            f"{model.dim + model.context_dim}; measure its decisions on the real cost"
        )
    for name, part in (("data", data), ("train", train)):
        if part is not None and (part.dim, part.context_dim) != (model.dim, model.context_dim):
            raise ValueError(
                f"{name}: expected decision and context dimensions {(model.dim, model.context_dim)} as the model's, "
                f"got {(part.dim, part.context_dim)}"
            )
    if data.value.numel() < 2:
        raise ValueError("data: expected at least two observed values, got one")
    logged = (data if train is None else train).x.flatten(end_dim=1)
    sets = spanned_set(logged, "logged decisions") if feasible_set is None else feasible_set
    _check_sets(sets, data)
    rows = Rows.of(data).some(MOST_ROWS if model.has_conic_form else MOST_ROWS_BY_OTHERS, seed)
    learned = rows if train is None else Rows.of(train)
    axes = Axes.of(rows)
    own, rival = (Judged(each, sets, rows, axes) for each in (model, QuadraticRival(learned)))
    errors = _errors(own, None if train is None else rival.values)
    at = rows.some(MOST_CONTEXTS, seed)
    x, other = own.decide(at), rival.decide(at)
    both = Judged(average([in_float64(model), rival.model]), sets, rows, axes) if model.has_conic_form else None
    costs = expected_costs(own, rival, at, x, other, both)
    regret = expected_regret(own, at, x) if model.has_conic_form else None
    curved = curvature(model, rows, axes)
    variance = float(rows.value.var())
    needed = max(FEWEST_ROWS, 2 * (1 + model.dim + model.context_dim))
    near = overlap(learned, at.context, x)
    verdict, reason = judge(len(rows), needed, seen, errors, variance, costs, curved, near)
    promised = predicted(model, at.context, x)
    return Assessment(
        rows=len(rows),
        contexts=len(at),
        seen=seen,
        quadratic_from="the other rows of this log, in turn" if train is None else "what the model learned from",
        noise=noise_floor(rows, own.slopes),
        errors=errors,
        spread=variance**0.5,
        promised=float(promised.mean()),
        expected=costs.expected,
        logged=float(rows.value.mean()),
        difference=costs.difference,
        on_mean=costs.on_mean,
        regret=regret,
        overlap=near,
        curvature=curved,
        verdict=verdict,
        reason=reason,
        shown=_shown(own, at, x, promised, costs.each, costs.error),
    )


def in_float64(model: ConvexSurrogate) -> ConvexSurrogate:
    """Return a model with weights of double precision, the same one where it has them."""
    return model if model.dtype == torch.float64 else copy.deepcopy(model).double()


def _check_sets(sets: FeasibleSet | SetAt, data: ValueData) -> None:
    if sets.dim != data.dim:
        raise ValueError(f"feasible_set: expected dimension {data.dim} as the data's, got {sets.dim}")
    if isinstance(sets, SetAt) and sets.batch_shape not in ((), (data.instances,)):
        raise ValueError(
            f"feasible_set: expected one set, or one for each of {data.instances} instances, got {sets.batch_shape}"
        )


def _errors(own: Judged, quadratic: ArrayLike | None) -> dict[str, Error]:
    """Return the errors of the model and of what it is compared with."""
    rows = own.rows
    predictions: Mapping[str, np.ndarray] = {
        "model": own.values,
        "quadratic": cross_fitted(quadratic_prediction, rows) if quadratic is None else quadratic,
        "context alone": cross_fitted(context_prediction, rows),
        "constant": cross_fitted(constant_prediction, rows),
    }
    squares = {name: np.square(rows.value - values) for name, values in predictions.items()}
    return {name: _error(each, squares["model"], rows) for name, each in squares.items()}


def _error(squares: np.ndarray, models: np.ndarray, rows: Rows) -> Error:
    """Return an error beside the model's, with a standard error that 5 % of comparisons of equals exceed `SCORE` times.

    The rows of a context count as one, since a model is off by as much in all of them: with C contexts the mean's
    variance is C / (C - 1) times the sum of their squared sums, and Student's t of C - 1 degrees takes the place of the
    normal (Cameron and Miller 2015). Of a single context the rows do.
    """
    more = squares - models
    sums = np.bincount(rows.contexts, more - more.mean())
    sums = sums if len(sums) > 1 else more - more.mean()
    freedom = max(len(sums) - 1, 1)
    wider = float(stdtrit(freedom, ndtr(SCORE))) / SCORE
    error = wider * float(np.sqrt((freedom + 1) / freedom * np.square(sums).sum())) / len(more)
    excess = float(more.mean())
    score = excess / error if error > 0 else 0.0
    return Error(float(squares.mean() ** 0.5), score, Interval(excess, excess - SCORE * error, excess + SCORE * error))


def _shown(
    own: Judged, at: Rows, x: np.ndarray, promised: np.ndarray, expected: np.ndarray, error: np.ndarray
) -> Shown:
    rows, n = own.rows, own.rows.x.shape[1]
    width = SLICE * (rows.x - own.decisions).std(axis=0)[:MOST_SLICES]
    steps = width[:, None] * np.linspace(-1.0, 1.0, 41)
    ahead = [[x + step * np.eye(n)[k] for step in steps[k]] for k in range(len(width))]
    slices = [[float(predicted(own.model, at.context, points).mean()) for points in row] for row in ahead]
    return Shown(
        value=rows.value,
        predicted=own.values,
        distance=np.linalg.norm(own.offsets, axis=1),
        x=rows.x,
        decisions=own.decisions,
        promised=promised,
        expected=expected,
        error=error,
        slices=np.array(slices),
        steps=steps,
    )
