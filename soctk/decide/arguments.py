"""Checks of what `soctk.minimize` and `soctk.prepare` are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.checks import (
    ArrayLike,
    as_index,
    as_tensor,
    check_count,
    check_last_dim,
    check_positive,
    check_processor,
    check_sequence,
)
from soctk.decide.answer import excess
from soctk.decide.constrained import Constraint
from soctk.decide.decision import Decision
from soctk.decide.modes import warn_in_training
from soctk.decide.problem import Problem
from soctk.function import ConvexFunction, check_function
from soctk.sets import FeasibleSet, Polyhedron, SetAt

AS_PROJECTED = {torch.float64: 1e-12, torch.float32: 1e-6}
"""What a projection may leave a point outside of a set by, in the same units."""


def check_arguments(model: ConvexFunction, feasible_set: FeasibleSet | SetAt) -> None:
    """Raise ValueError unless model and set go together, TypeError where one is not what its place asks for."""
    check_processor()
    check_function(model)
    warn_in_training(model)
    if not isinstance(feasible_set, (FeasibleSet, SetAt)):
        raise TypeError(
            f"feasible_set: expected a set, such as soctk.Simplex({model.dim}), got {type(feasible_set).__name__}; "
            "the order is minimize(model, feasible_set, context)"
        )
    if feasible_set.dim != model.dim:
        raise ValueError(f"feasible_set: expected dimension {model.dim} as the model's, got {feasible_set.dim}")
    if isinstance(feasible_set, FeasibleSet):
        feasible_set.check()
    if model.device.type == "meta":
        raise ValueError("model: its weights are on the meta device, which holds no numbers; load or draw them first")


def check_limits(tol: float, max_iter: int | None, time_limit: float | None) -> None:
    """Raise ValueError unless the limits are limits."""
    check_positive(tol, "tol")
    if max_iter is not None:
        check_count(max_iter, "max_iter")
    if time_limit is not None:
        check_positive(time_limit, "time_limit")


def check_integer(integer: bool | Sequence[int], dim: int) -> tuple[int, ...]:
    """Return the coordinates that have to be whole, in order: all for True, none for False."""
    if isinstance(integer, (bool, np.bool_)):
        return tuple(range(dim)) if integer else ()
    integer = integer.tolist() if isinstance(integer, (np.ndarray, Tensor)) else integer
    check_sequence(integer, "integer")
    columns = [as_index(column, "integer", dim) for column in integer]
    if len(set(columns)) < len(columns):
        raise ValueError(f"integer: expected each coordinate once, got {list(integer)}")
    return tuple(sorted(columns))


def sets_by_rows(feasible_set: FeasibleSet | SetAt) -> SetAt:
    """Return a set by its rows; NotImplementedError where it has none to branch on."""
    if isinstance(feasible_set, SetAt):
        return feasible_set
    if isinstance(feasible_set, Polyhedron):
        return feasible_set.at()
    raise NotImplementedError(
        f"integer: expected a set of rows, such as a Box or a Polyhedron, got {type(feasible_set).__name__}; "
        "soctk.Embedding brings the model into a program of CVXPY, for a solver of mixed-integer cone programs"
    )


def check_start(x0: ArrayLike | Decision | None, problem: Problem, batch: tuple[int, ...]) -> Tensor | None:
    """Return points to start from as the solvers take them, (N, n) in the set."""
    if x0 is None:
        return None
    if isinstance(x0, Decision):  # an infeasible one has no point
        x0 = torch.where(torch.isfinite(x0.x), x0.x, 0.0)
    start = as_tensor(x0, "x0").to(device=problem.device, dtype=problem.dtype)
    check_last_dim(start, problem.dim, "x0")
    if tuple(start.shape[:-1]) != batch:
        raise ValueError(f"x0: expected batch shape {batch} as the contexts', got {tuple(start.shape[:-1])}")
    start, feasible_set = start.reshape(-1, problem.dim), problem.feasible_set
    if isinstance(feasible_set, SetAt):
        return start
    inside = excess(feasible_set, start)[1] <= AS_PROJECTED[start.dtype]  # as earlier decisions are
    return start if inside.all() else feasible_set._project(start)


def check_scale(scale: ArrayLike | None, batch: tuple[int, ...], model: ConvexFunction) -> Tensor | None:
    if scale is None:
        return None
    unit = as_tensor(scale, "scale").to(device=model.device, dtype=torch.float64)
    if tuple(unit.shape) not in ((), batch):
        raise ValueError(f"scale: expected a number or batch shape {batch} as the contexts', got {tuple(unit.shape)}")
    if bool((unit <= 0).any()):
        raise ValueError(f"scale: expected positive numbers, got {float(unit.min()):g}")
    return unit.detach().expand(batch).reshape(-1).clone()  # the caller may go on writing into it


def check_constraints(
    constraints: Sequence[ConvexFunction | tuple[ConvexFunction, ArrayLike]],
    model: ConvexFunction,
    batch: tuple[int, ...],
) -> list[Constraint]:
    """Return the constraints g <= level; an error unless all g are surrogates with a conic form that go with the model.

    Args:
        constraints: g, whose level is 0, or (g, level), a number or one for each context, (*batch).
        model: the objective.
        batch: the contexts' batch shape.
    """
    if isinstance(constraints, ConvexFunction) or _is_pair(constraints):
        raise TypeError("subject_to: expected a list of surrogates, got one; put it into brackets")
    return [_checked(constraint, f"subject_to[{k}]", model, batch) for k, constraint in enumerate(constraints)]


def _is_pair(given: object) -> bool:
    """Return whether (surrogate, level) was given in place of a list of such."""
    if not isinstance(given, tuple) or len(given) != 2:
        return False
    return isinstance(given[0], ConvexFunction) and not isinstance(given[1], (ConvexFunction, tuple, list))


def _checked(given: Any, name: str, model: ConvexFunction, batch: tuple[int, ...]) -> Constraint:
    if isinstance(given, (tuple, list)) and len(given) != 2:
        raise ValueError(f"{name}: expected a surrogate or (surrogate, level), got {len(given)} things")
    function, level = given if isinstance(given, (tuple, list)) else (given, 0.0)
    check_function(function, name)
    if function.dim != model.dim or function.context_dim not in (0, model.context_dim):
        raise ValueError(
            f"{name}: expected a surrogate of {model.dim} variables and {model.context_dim} context numbers as the "
            f"model, got {function.dim} and {function.context_dim}"
        )
    if not function.has_conic_form or not model.has_conic_form:
        raise NotImplementedError(f"{name}: both it and the model need a conic form")
    levels = as_tensor(level, f"{name}: level").detach().to("cpu", torch.float64)
    if tuple(levels.shape) not in ((), batch):
        raise ValueError(
            f"{name}: level: expected a number or batch shape {batch} as the contexts', got {tuple(levels.shape)}; for "
            "several levels at one context repeat it"
        )
    return Constraint(function, levels.expand(batch).reshape(-1))
