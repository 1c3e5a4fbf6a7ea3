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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from soctk.decide.choice import NEWTON
from soctk.decide.newton import SmoothingNewton
from soctk.decide.pieces import side_by_side
from soctk.decide.problem import Limits, Problem
from soctk.decide.result import Result, repeated
from soctk.decide.solver import Solver
from soctk.sets import SetAt
from soctk.sets.rounding import FEASIBLE
from soctk.status import Status

MOST_NODES = 10_000
TREES = 128
"""Contexts whose trees grow side by side."""
ROUND = 32
"""Nodes of a tree in a round. Fewer are decided hardly sooner; with more, many turn out not to be needed."""
WHOLE = 1e-6
"""What is this near to a whole number is taken for one, if the point that it makes is in the set."""
FOR_BOUNDS = SmoothingNewton(project=False)
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
        self.x = torch.full((problem.size, problem.dim), torch.nan, dtype=torch.float64)
        self.value, self.bound = torch.full((2, problem.size), torch.inf, dtype=torch.float64)
        self.nodes, self.status = torch.zeros(problem.size, dtype=torch.int64), repeated(Status.STALLED, problem.size)
        self.whole: Result | None = None

    def grow(self, start: Tensor | None) -> None:
        """Decide nodes until none is left or a limit is reached: the whole sets of all trees first, then by groups."""
        nodes = self._roots()
        if start is not None:
            self._try(nodes, start, self.limits)
        if not self.limits.late:
            nodes = self._advanced(nodes, self.limits)
        size, threads = len(self.value), torch.get_num_threads()

        def finish(part: slice) -> None:
            some = nodes.select((nodes.tree >= part.start) & (nodes.tree < part.stop))
            waiting, own = size - part.stop, threads * (part.stop - part.start)
            limits = self.limits.sooner(waiting / (waiting + own))
            while len(some) > 0 and not limits.late:
                some = self._advanced(some, limits)
            self._leave(some, Status.TIME_LIMIT)

        for _ in side_by_side(finish, size, TREES):
            pass

    def _advanced(self, nodes: _Nodes, limits: Limits) -> _Nodes:
        """Decide some of the nodes of every tree; return what is left of them, with the halves of what was decided."""
        now, nodes = self._chosen(nodes)
        found = self._relaxed(now, FOR_BOUNDS, limits)
        self.whole = found if self.whole is None else self.whole
        self.nodes.index_add_(0, now.tree, torch.ones_like(now.tree))
        some = torch.from_numpy(found.status != Status.INFEASIBLE)
        now, x, bound = now.select(some), found.x[some], found.lower_bound[some]
        now = dataclasses.replace(now, bound=torch.maximum(now.bound, bound))
        self._try(now, x, limits)
        worth = self._worth(now)
        self._leave(now.select(~worth))
        nodes = _Nodes.joined([nodes, *self._split(now.select(worth), x[worth])])
        worth = self._worth(nodes)
        self._leave(nodes.select(~worth))
        nodes = nodes.select(worth)
        over = self.nodes[nodes.tree] >= self.most
        self._leave(nodes.select(over), Status.ITERATION_LIMIT)
        return nodes.select(~over)

    def result(self) -> Result:
        """Return the best points and the least bounds."""
        alone = torch.isinf(self.bound) & torch.isfinite(self.value)  # its node is empty but for rounding
        self.bound = torch.where(alone & (self.bound > 0), self.value, self.bound)
        ranges = {} if self.whole is None else {"first_gap": self.whole.first_gap, "seen": self.whole.seen}
        result = Result(self.x, self.value, self.bound, self.nodes, self.status, unit=self.unit, **ranges)
        result.refuse(torch.nonzero(torch.isinf(self.value) & (self.bound == torch.inf)).squeeze(1))
        result.judge(self.limits.tol)
        return result

    # -- nodes -----------------------------------------------------------------------------------------

    def _roots(self) -> _Nodes:
        size = len(self.value)
        low, high = (side.expand(size, -1)[:, self.integer] for side in (self.sets.lower, self.sets.upper))
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

    def _relaxed(self, nodes: _Nodes, solver: Solver, limits: Limits) -> Result:
        """Return the decisions of nodes without the condition that anything is whole."""
        sets = self.sets.select(nodes.tree)
        lower, upper = (side.expand(len(nodes), -1).clone() for side in (sets.lower, sets.upper))
        lower[:, self.integer], upper[:, self.integer] = nodes.low, nodes.high
        unit = None if self.unit is None else self.unit[nodes.tree]
        sets = dataclasses.replace(sets, lower=lower, upper=upper)
        part = Problem(self.form.select(nodes.tree), sets, unit)
        return solver.solve(part, Limits(SHARE * limits.tol, None, limits.deadline))

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
        mixed = {side: torch.where(nearer, getattr(down, side), getattr(up, side)) for side in ("low", "high")}
        others = {side: torch.where(nearer, getattr(up, side), getattr(down, side)) for side in ("low", "high")}
        return dataclasses.replace(nodes, **mixed), dataclasses.replace(nodes, **others)

    # -- points ----------------------------------------------------------------------------------------

    def _try(self, nodes: _Nodes, x: Tensor, limits: Limits) -> None:
        """Keep what points (M, n) become with the nearest whole numbers of their nodes, where it is better.

        Coordinates that need not be whole are decided again with these. That is tried where it is likely to be worth
        it: of each tree's first node, near whole numbers, and as long as no point is known.
        """
        whole = torch.minimum(x[:, self.integer].round().maximum(nodes.low), nodes.high)
        some = torch.isfinite(whole).all(dim=1)
        if len(self.integer) < x.shape[1]:
            near = (x[:, self.integer] - whole).abs().amax(dim=1) <= WHOLE
            first = torch.ones_like(some)
            first[1:] = nodes.tree[1:] != nodes.tree[:-1]
            some &= near | first | torch.isinf(self.value)[nodes.tree]
        tree, whole, x = nodes.tree[some], whole[some], x[some]
        if len(tree) == 0:
            return
        if len(self.integer) < x.shape[1]:
            x = self._relaxed(dataclasses.replace(nodes.select(some), low=whole, high=whole), NEWTON, limits).x
        x = x.index_copy(1, self.integer, whole + 0.0)  # no -0.0
        inside = torch.from_numpy(self.sets.select(tree).arrays.excess(x.numpy())[1] <= FEASIBLE)  # False for NaN
        tree, x = tree[inside], x[inside]
        value = self.form.select(tree).evaluate(x.unsqueeze(1)).squeeze(1)
        order = value.argsort()
        _, firsts = np.unique(tree[order].numpy(), return_index=True)
        best = order[torch.from_numpy(firsts)]  # the least of each tree
        best = best[value[best] < self.value[tree[best]]]
        self.value[tree[best]], self.x[tree[best]] = value[best], x[best]
