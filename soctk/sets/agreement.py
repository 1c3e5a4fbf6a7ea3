"""Whether the answers of a set of one's own agree: decisions rest on its projection, their gaps on its minimiser.

For a closed convex set C with projection P and normal cones N, x minimises g'x over C exactly if -g is in N(x), that is
if P(x - t g) = x for every t > 0; and P(y) = z exactly if y - z is in N(z), that is if z minimises (z - y)'x over C
(Rockafellar 1970, sections 27 and 31). So the projection proves the linear minimiser and the other way round; where
they contradict each other at a few points, in directions drawn at random or along axes, one of them is wrong. Violation
and constraints have to tell points of the set from those that the projection moves, just outside of it.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from soctk.checks import seeded
from soctk.lazy import cvxpy as cp

PROBES = 4
"""Directions drawn at random that are tried, and their opposites; as are the axes."""
AGREEMENT = 1e-3
"""Of the set's size: answers may differ by this share, as those of iterative methods do."""
AXES = 8
"""Axes that are tried, at most."""
POINT = 1e-13
"""A set that is smaller than this share of its numbers is one point but for rounding."""
HALVINGS = 10
"""Of the way to a point far outside, to one that is just outside."""


class Answers(Protocol):
    """What a set of one's own has to answer."""

    dim: int

    def _project(self, y: Tensor) -> Tensor: ...
    def _linear_minimizer(self, g: Tensor) -> Tensor: ...
    def _violation(self, x: Tensor) -> Tensor: ...
    def linear_minimum(self, g: Tensor) -> Tensor: ...
    def constraints(self, x: cp.Expression) -> list[cp.Constraint]: ...


def check_answers(given: Answers) -> None:
    """Raise where the answers of a set contradict each other at a few points.

    Raises:
        TypeError: an answer that is no tensor of the type that was given.
        ValueError: an answer of another shape or with numbers that are not finite, or answers that contradict each
            other; the message says which.
    """
    name = type(given).__name__
    g = torch.randn(PROBES, given.dim, generator=seeded(0), dtype=torch.float64)
    axes = torch.eye(given.dim, dtype=g.dtype)[:AXES]
    g = torch.cat([g / g.norm(dim=-1, keepdim=True), axes])
    g = torch.cat([g, -g, torch.zeros_like(g[:1])])  # every point minimises 0
    least = _answer(given, "_linear_minimizer", g, g.shape)
    middle, size = least.mean(dim=0), float((least - least.mean(dim=0)).norm(dim=-1).max())
    numbers = max(1.0, float(middle.abs().max()))
    step = size if size > POINT * numbers else numbers
    slack = AGREEMENT * step
    directions = g[:-1]
    far = middle + 4 * step * directions
    near = _answer(given, "_project", far, far.shape)
    for what, points in (("_linear_minimizer", least), ("_project", near)):
        outside = float(_answer(given, "_violation", points, points.shape[:1]).max())
        if outside > AGREEMENT * max(1.0, float(points.abs().max())):
            raise ValueError(f"{name}.{what}: expected points of the set, got one whose `_violation` is {outside:.3g}")
    inside = torch.cat([middle.unsqueeze(0), 0.5 * (middle + least)])  # the set is convex
    moved = float((_answer(given, "_project", inside, inside.shape) - inside).norm(dim=-1).max())
    if moved > slack:
        raise ValueError(
            f"{name}._project: expected points of the set to stay where they are, got {moved:.3g} away from one "
            "between minimisers; it or `_linear_minimizer` is wrong"
        )
    violation = _answer(given, "_violation", inside, inside.shape[:1])
    most = float(violation[violation.abs().argmax()])
    if not 0 <= most <= AGREEMENT * max(1.0, float(inside.abs().max())):
        raise ValueError(f"{name}._violation: expected 0 at points of the set, got {most:.3g}; clamp it at 0")
    moved = float((_answer(given, "_project", least - step * g, g.shape) - least).norm(dim=-1).max())
    if moved > slack:
        raise ValueError(
            f"{name}._linear_minimizer: expected x that minimises g'x over the set, so that x - t g is projected to x "
            f"for t > 0, got x that is {moved:.3g} away from that projection; it or `_project` is wrong"
        )
    normal = near - far  # of length 3 step at least where the answers are right
    normal = normal / normal.norm(dim=-1, keepdim=True).clamp(min=step)
    beyond = float((normal * (near - _answer(given, "_linear_minimizer", normal, near.shape))).sum(dim=-1).max())
    if beyond > slack:
        raise ValueError(
            f"{name}._project: expected the nearest point z of the set, which minimises (z - y)'x over it, got a point "
            f"that is {beyond:.3g} further along z - y than the minimiser; it or `_linear_minimizer` is wrong"
        )
    over = float((_answer(given, "linear_minimum", g, g.shape[:1]) - (g * least).sum(dim=-1)).max())
    if over > slack:
        raise ValueError(
            f"{name}.linear_minimum: expected at most g'x of every point x of the set, got {over:.3g} more at one"
        )
    outside = _just_outside(given, middle, directions, 4 * step, slack)
    unseen = outside[_answer(given, "_violation", outside, outside.shape[:1]) <= 0]
    if len(unseen) > 0:
        raise ValueError(
            f"{name}._violation: expected how far points are outside, got 0 at {unseen[0].tolist()}, which `_project` "
            "moves into the set; it or `_project` is wrong"
        )
    _check_constraints(given, torch.cat([least, near]), outside)


def _just_outside(given: Answers, middle: Tensor, directions: Tensor, far: float, slack: float) -> Tensor:
    """Return those points on rays from a point of the set that are little more than `slack` away from it, (any, n)."""

    def away(points: Tensor) -> Tensor:
        return (points - _answer(given, "_project", points, points.shape)).norm(dim=-1, keepdim=True) > slack

    low = middle.new_zeros(len(directions), 1)
    high = torch.full_like(low, far)
    for _ in range(HALVINGS):
        half = (low + high) / 2
        outside = away(middle + half * directions)
        low, high = torch.where(outside, low, half), torch.where(outside, half, high)
    points = middle + high * directions
    return points[away(points).squeeze(-1)]


def _check_constraints(given: Answers, inside: Tensor, outside: Tensor) -> None:
    """Raise where the constraints refuse points of the set or take others; those with variables of their own are not
    tried."""
    name, x = f"{type(given).__name__}.constraints", cp.Variable(given.dim)
    found: Any = given.constraints(x)
    if not isinstance(found, list | tuple) or not all(isinstance(part, cp.Constraint) for part in found):
        raise TypeError(f"{name}: expected a list of CVXPY constraints, got {found!r}")
    if any(variable is not x for part in found for variable in part.variables()):
        return

    def violation(point: Tensor) -> float:
        x.value = point.numpy()
        return max((float(np.max(part.violation())) for part in found), default=0.0)

    size = AGREEMENT * max(1.0, float(inside.abs().max()))
    for point in inside:
        if violation(point) > size:
            raise ValueError(f"{name}: expected {point.tolist()} to meet them, which the other answers have in the set")
    for point in outside:
        if violation(point) <= 0:
            raise ValueError(f"{name}: expected {point.tolist()} not to meet them, which `_project` moves into the set")


def _answer(given: Answers, what: str, argument: Tensor, shape: torch.Size) -> Tensor:
    answer = getattr(given, what)(argument)
    name = f"{type(given).__name__}.{what}"
    if not isinstance(answer, Tensor) or answer.dtype != argument.dtype:
        got = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
        raise TypeError(f"{name}: expected a tensor of {argument.dtype} as it was given, got {got}")
    if answer.shape != shape:
        asked = tuple(argument.shape)
        raise ValueError(f"{name}: expected shape {tuple(shape)} for {asked}, got {tuple(answer.shape)}")
    if not bool(torch.isfinite(answer).all()):
        row = argument[~torch.isfinite(answer).reshape(len(argument), -1).all(dim=1)][0].tolist()
        raise ValueError(f"{name}: expected finite numbers, got {float(answer[~torch.isfinite(answer)][0])} for {row}")
    return answer
