"""Decisions in whole numbers: branch and bound on relaxations that are decided in batches (Land and Doig 1960).

A node is the set with bounds of its own for the coordinates that have to be whole. Without that condition its decision
is one like any other, with a rigorous lower bound for all points of the node. A node whose bound is no better than the
best point known, but for the tolerance, is done with; any other is split where a coordinate is farthest from whole.
Every whole point is in a node that is done with or left: the least of their bounds is a lower bound of the minimum, and
the gap to it means what it means for other decisions.

The trees of all contexts grow side by side: each round decides some nodes of every one of them in one batch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.decide.choice import NEWTON
from soctk.decide.newton import SmoothingNewton
from soctk.decide.pieces import side_by_side
from soctk.decide.polyhedral import ROUNDING
from soctk.decide.problem import Limits, Problem
from soctk.decide.ranges import magnitude_of
from soctk.decide.result import Result, repeated
from soctk.decide.solver import Solver
from soctk.forms.rounding import rounding
from soctk.sets import SetAt
from soctk.sets.rounding import FEASIBLE, eps_of
from soctk.status import Status

MOST_NODES = 10_000
TREES = 128
"""Contexts whose trees grow side by side."""
ROUND = 32
"""Nodes of a tree in a round. Fewer are decided hardly sooner; with more, many turn out not to be needed."""
PAUSE = 1.0
"""Seconds after which trees wait for the others: with several threads Ctrl-C is heard no sooner."""
WHOLE = 1e-6
"""What is this near to a whole number is taken for one, if the point that it makes is in the set."""
RELAXED = SmoothingNewton(project=False)
SHARE = 0.5
"""Of the tolerance, for the gap of a single node."""


@dataclass(frozen=True)
class BranchAndBound(Solver):
    """Branch and bound over sets with rows, each given by right-hand sides (`SetAt`).

    Attributes:
        integer: the coordinates that have to be whole, in order.
        max_nodes: the most nodes of each instance, where the limits say nothing.
    """

    name: ClassVar[str] = "branch_and_bound"
    takes_sets_at: ClassVar[bool] = True
    takes_any_point: ClassVar[bool] = False
    integer: tuple[int, ...]
    max_nodes: int = MOST_NODES

    def refuses(self, problem: Problem) -> str | None:
        """Return why it cannot solve the problem, None where it can."""
        if problem.has_form:
            return None
        assert problem.model is not None
        return f"integer: {problem.model.without_form()}, which the bounds of branch and bound are made from"

    def at_once(self, problem: Problem) -> int:
        """Return how many instances are best solved in one call."""
        return NEWTON.at_once(problem)

    def solve(self, problem: Problem, limits: Limits, start: Tensor | None = None) -> Result:
        """Minimise every function of the problem: see `Solver.solve`. Iterations are nodes."""
        most = self.max_nodes if limits.max_iter is None else limits.max_iter
        trees = _Trees(problem.on_processor(), self.integer, limits, most)
        trees.grow(None if start is None else start.cpu())
        return dataclasses.replace(trees.result(), solver=self.name).to(problem.device)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """M nodes of trees.

    Attributes:
        tree: which, (M,).
        low, high: bounds of the coordinates that have to be whole, whole themselves, (M, k).
        bound: a lower bound of the least value in the node it was split from, (M,).
        depth: how often that had been split, (M,).
    """

    tree: Tensor
    low: Tensor
    high: Tensor
    bound: Tensor
    depth: Tensor

    def __len__(self) -> int:
        return len(self.tree)

    def select(self, index: Tensor) -> _Nodes:
        """Return some of them."""
        return _Nodes(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: Sequence[_Nodes]) -> _Nodes:
        """Return all of them."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))


class _Trees:
    """Where the search for N decisions stands.

    Args:
        problem: over sets of their own, on the processor.
        integer: the coordinates that have to be whole.
        limits: the tolerance and the deadline.
        most: nodes of each tree.
    """

    def __init__(self, problem: Problem, integer: Sequence[int], limits: Limits, most: int) -> None:
        assert isinstance(problem.feasible_set, SetAt)
        self.form, self.sets, self.unit = problem.form, problem.feasible_set, problem.unit
        self.integer, self.limits, self.most = torch.tensor(integer), limits, most
        self.mixed = len(integer) < problem.dim
        self.x = torch.full((problem.size, problem.dim), torch.nan, dtype=torch.float64)
        self.value, self.bound = torch.full((2, problem.size), torch.inf, dtype=torch.float64)
        self.nodes, self.status = torch.zeros(problem.size, dtype=torch.int64), repeated(Status.STALLED, problem.size)

    def grow(self, start: Tensor | None) -> None:
        """Decide nodes until none is left or a limit is reached: the whole sets of all trees first, then by groups."""
        nodes = self._roots()
        if start is not None:
            self._try(nodes, start, self.limits)
        if not self.limits.late:
            nodes = self._advanced(nodes, self.limits)
        size, threads = len(self.value), torch.get_num_threads()

        def grown(part: slice) -> _Nodes:
            """Return what is left of the nodes of some trees after their share of the time."""
            some = nodes.select((nodes.tree >= part.start) & (nodes.tree < part.stop))
            waiting, own = size - part.stop, threads * (part.stop - part.start)
            limits, until = self.limits.sooner(waiting / (waiting + own)), time.perf_counter() + PAUSE
            while len(some) > 0 and not limits.late:
                some = self._advanced(some, limits)
                if time.perf_counter() > until:
                    break
            return some

        while len(nodes) > 0 and not self.limits.late:
            nodes = _Nodes.joined(list(side_by_side(grown, size, TREES)))
        self._leave(nodes, Status.TIME_LIMIT)
        if self.mixed:
            self._project()

    def _advanced(self, nodes: _Nodes, limits: Limits) -> _Nodes:
        """Decide some of the nodes of every tree; return what is left of them, with the halves of what was decided."""
        now, nodes = self._chosen(nodes)
        if not self.mixed:
            points = (now.low == now.high).all(dim=1)
            self._leave(self._valued(now.select(points)))
            now = now.select(~points)
        if len(now) > 0:
            nodes = _Nodes.joined([nodes, *self._halved(now, limits)])
        worth = self._worth(nodes)
        self._leave(nodes.select(~worth))
        nodes = nodes.select(worth)
        over = self.nodes[nodes.tree] >= self.most
        self._leave(nodes.select(over), Status.ITERATION_LIMIT)
        return nodes.select(~over)

    def _halved(self, nodes: _Nodes, limits: Limits) -> list[_Nodes]:
        """Return those whose decision the deadline has cut off, and the halves of the others."""
        sets = self._within(nodes.tree, nodes.low, nodes.high)
        found = self._relaxed(nodes.tree, sets, limits)
        nodes = dataclasses.replace(nodes, bound=torch.maximum(nodes.bound, found.lower_bound))
        cut_off = torch.from_numpy(found.status == Status.TIME_LIMIT)
        waiting = nodes.select(cut_off)
        decided = nodes.tree[~cut_off]
        self.nodes.index_add_(0, decided, torch.ones_like(decided))
        whole = (nodes.low == nodes.high).all(dim=1)  # nothing is left to split
        empty = _refuted(found, sets) | (whole & torch.from_numpy(found.status == Status.INFEASIBLE))
        nodes, x = nodes.select(~(cut_off | empty)), found.x[~(cut_off | empty)]
        self._try(nodes, x, limits)
        return [waiting, *self._split(nodes, x)]

    def result(self) -> Result:
        """Return the best points and the least bounds.

        Bounds are of the sets themselves. Points may be outside of them by rounding, and better by what that brings.
        """
        outside = torch.from_numpy(self.sets.arrays.excess(self.x.numpy())[1] > 0)
        bound = torch.where(outside, torch.minimum(self.bound, self.value), self.bound)
        result = Result(self.x, self.value, bound, self.nodes, self.status, unit=self.unit)
        result.refuse(torch.nonzero(torch.isinf(self.value) & (bound == torch.inf)).squeeze(1))
        result.judge(self.limits.tol)
        return result

    # -- nodes -----------------------------------------------------------------------------------------

    def _roots(self) -> _Nodes:
        size = len(self.value)
        low, high = (end.expand(size, -1)[:, self.integer] for end in self.sets.box)
        low = (low - FEASIBLE * low.abs().clamp(min=1.0)).ceil()
        high = (high + FEASIBLE * high.abs().clamp(min=1.0)).floor()
        bound, depth = torch.full((size,), -torch.inf, dtype=torch.float64), torch.zeros(size, dtype=torch.int64)
        return _Nodes(torch.arange(size), low, high, bound, depth)

    def _chosen(self, nodes: _Nodes) -> tuple[_Nodes, _Nodes]:
        """Return some nodes of every tree, those to decide next, and the others.

        The first are those of the least bounds; where no point is known yet the deepest, which find one soonest.
        """
        key = torch.where(torch.isfinite(self.value)[nodes.tree], nodes.bound, -nodes.depth.to(nodes.bound))
        order = torch.from_numpy(np.lexsort((key.numpy(), nodes.tree.numpy())))
        trees, counts = torch.unique_consecutive(nodes.tree[order], return_counts=True)
        begins = (counts.cumsum(dim=0) - counts).repeat_interleave(counts)
        most = (self.most - self.nodes[trees]).clamp(max=ROUND)
        now = torch.arange(len(order)) - begins < most.repeat_interleave(counts)
        return nodes.select(order[now]), nodes.select(order[~now])

    def _within(self, tree: Tensor, low: Tensor, high: Tensor) -> SetAt:
        """Return the sets of nodes, without the condition that anything is whole; arguments as of `_Nodes`."""
        sets = self.sets.select(tree)
        lower, upper = (side.expand(len(tree), -1).clone() for side in (sets.lower, sets.upper))
        lower[:, self.integer], upper[:, self.integer] = low, high
        return dataclasses.replace(sets, lower=lower, upper=upper)

    def _relaxed(self, tree: Tensor, sets: SetAt, limits: Limits) -> Result:
        """Return the decisions of trees over sets."""
        part = Problem(self.form.select(tree), sets, None if self.unit is None else self.unit[tree])
        return RELAXED.solve(part, Limits(SHARE * limits.tol, None, limits.deadline))

    def _worth(self, nodes: _Nodes) -> Tensor:
        """Return whether nodes may hold a point that is better than those known, by more than the tolerance."""
        unit = self.value.abs().clamp(min=1.0) if self.unit is None else self.unit
        wanted = torch.where(torch.isfinite(self.value), self.value - self.limits.tol * unit, torch.inf)
        return nodes.bound < wanted[nodes.tree]

    def _leave(self, nodes: _Nodes, status: Status | None = None) -> None:
        """Count the bounds of nodes that are looked at no more."""
        self.bound.scatter_reduce_(0, nodes.tree, nodes.bound, "amin")
        if status is not None:
            self.status[nodes.tree.numpy()] = status

    def _split(self, nodes: _Nodes, x: Tensor) -> tuple[_Nodes, _Nodes]:
        """Return the halves of nodes with relaxed decisions x (M, n): the nearer ones, then the others.

        Those that hold one combination of whole numbers alone are left.
        """
        at = x[:, self.integer]
        at = torch.where(torch.isfinite(at), at, 0.5 * (nodes.low + nodes.high))
        off = torch.where((nodes.low < nodes.high) & torch.isfinite(at), (at - at.round()).abs(), -1.0)
        most, column = off.max(dim=1, keepdim=True)
        can = most[:, 0] >= 0
        self._leave(nodes.select(~can))
        nodes, column, at = nodes.select(can), column[can], at[can].gather(1, column[can])
        low, high = nodes.low.gather(1, column), nodes.high.gather(1, column)
        below = torch.minimum(at.floor().maximum(low), high - 1)
        nodes = dataclasses.replace(nodes, depth=nodes.depth + 1)
        down = dataclasses.replace(nodes, high=nodes.high.scatter(1, column, below))
        up = dataclasses.replace(nodes, low=nodes.low.scatter(1, column, below + 1))
        nearer = at - below <= 0.5
        first = {side: torch.where(nearer, getattr(down, side), getattr(up, side)) for side in ("low", "high")}
        second = {side: torch.where(nearer, getattr(up, side), getattr(down, side)) for side in ("low", "high")}
        return dataclasses.replace(nodes, **first), dataclasses.replace(nodes, **second)

    # -- points ----------------------------------------------------------------------------------------

    def _try(self, nodes: _Nodes, x: Tensor, limits: Limits) -> None:
        """Keep what points (M, n) become with the nearest whole numbers of their nodes, where it is better.

        Coordinates that need not be whole are decided again with these, where others would do as well. That is tried
        where it is likely to be worth it: of each tree's first node, near whole numbers, as long as no point is known.
        """
        whole = torch.minimum(x[:, self.integer].round().maximum(nodes.low), nodes.high)
        some = torch.isfinite(whole).all(dim=1)
        if self.mixed:
            near = (x[:, self.integer] - whole).abs().amax(dim=1) <= WHOLE
            first = torch.ones_like(some)
            first[1:] = nodes.tree[1:] != nodes.tree[:-1]
            some &= near | first | torch.isinf(self.value)[nodes.tree]
        again = (nodes.low < nodes.high).any(dim=1)[some]
        tree, whole, x = nodes.tree[some], whole[some], x[some]
        if self.mixed and again.any():
            fixed = self._within(tree[again], whole[again], whole[again])
            x[again] = self._relaxed(tree[again], fixed, limits).x
        if len(tree) > 0:
            self._keep(tree, x.index_copy(1, self.integer, whole))

    def _valued(self, nodes: _Nodes) -> _Nodes:
        """Return the nodes, of one point each, that are in the set, with their values, less rounding, as bounds."""
        self.nodes.index_add_(0, nodes.tree, torch.ones_like(nodes.tree))
        inside, value = self._keep(nodes.tree, nodes.low)
        nodes = nodes.select(inside)
        form = self.form.select(nodes.tree)
        share = rounding(sum(term.map.rows for term in form.terms), form.dim, eps_of(value.dtype))
        return dataclasses.replace(nodes, bound=value - share * magnitude_of(form, nodes.low, value))

    def _project(self) -> None:
        """Project best points that are outside of their sets by more than `ROUNDING`, whole numbers kept.

        Where a set has no interior, relaxations move its ends out, and stay there.
        """
        for row in np.flatnonzero(self.sets.arrays.excess(self.x.numpy())[1] > ROUNDING):
            if self.limits.late:
                return
            tree = torch.tensor([row])
            whole = self.x[tree][:, self.integer]
            try:
                x = self._within(tree, whole, whole)._project(self.x[tree]).index_copy(1, self.integer, whole)
            except (ValueError, RuntimeError):  # empty but for rounding
                continue
            self.x[tree], self.value[tree] = x, self.form.select(tree).evaluate(x.unsqueeze(1)).squeeze(1)

    def _keep(self, tree: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keep points (M, n) of the sets where they are better; return which are in them, (M,), and their values."""
        inside = torch.from_numpy(self.sets.select(tree).arrays.excess(x.numpy())[1] <= FEASIBLE)  # False for NaN
        tree, x = tree[inside], x[inside] + 0.0  # no -0.0
        value = self.form.select(tree).evaluate(x.unsqueeze(1)).squeeze(1)
        order = value.argsort()
        _, firsts = np.unique(tree[order].numpy(), return_index=True)
        best = order[torch.from_numpy(firsts)]  # the least of each tree
        best = best[value[best] < self.value[tree[best]]]
        self.value[tree[best]], self.x[tree[best]] = value[best], x[best]
        return inside, value


def _refuted(found: Result, sets: SetAt) -> Tensor:
    """Return which sets have been proved empty of points, even of those that are outside by rounding, bool (M,)."""
    assert found.rows is not None
    empty, arrays, rows = found.status == Status.INFEASIBLE, sets.arrays, found.rows
    size = np.maximum(arrays.largest, 1.0)
    added = size @ arrays.rows.sizes + np.abs(arrays.right)
    multipliers = np.abs(np.concatenate([rows.nu, rows.z], axis=1))
    brought = (multipliers * added).sum(axis=1) + (np.abs(rows.w) * size).sum(axis=1)
    return torch.from_numpy(empty & (arrays.crossed() | (rows.level(arrays) > FEASIBLE * brought)))
