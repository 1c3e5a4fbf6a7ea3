"""What a solver is given: functions, a set, the unit of the gap, and how far it may go."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from soctk.decide.bounds import best_bound, frank_wolfe_gap, gradient_at
from soctk.decide.packed_model import PackedForm, PackedModel
from soctk.forms.conic_form import ConicForm
from soctk.function import ConvexFunction
from soctk.sets import FeasibleSet, Polyhedron, Presolved, SetAt

AnySet = FeasibleSet | SetAt
BEFORE_THE_CLOCK = 16
"""Instances before the first look at the deadline where each takes a programme: 10 to 100 ms, or tenfold."""


@dataclass(frozen=True)
class Limits:
    """How far a solver may go.

    Attributes:
        tol: the gap to reach, in the problem's unit.
        max_iter: the most iterations for each instance; None for the solver's own default.
        deadline: `time.perf_counter()` value to stop at.
    """

    tol: float = 1e-6
    max_iter: int | None = None
    deadline: float = float("inf")

    @classmethod
    def of(cls, started: float, tol: float, max_iter: int | None = None, time_limit: float | None = None) -> Limits:
        """Return the limits of a call that began at a `time.perf_counter()` value and may take so many seconds."""
        return cls(tol, max_iter, float("inf") if time_limit is None else started + time_limit)

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.perf_counter() > self.deadline

    @property
    def seconds_left(self) -> float:
        """Until the deadline, at least a microsecond."""
        return max(self.deadline - time.perf_counter(), 1e-6)

    def sooner(self, share: float) -> Limits:
        """Return the limits whose deadline leaves a share of the time until this one."""
        if math.isinf(self.deadline):
            return self
        return dataclasses.replace(self, deadline=self.deadline - share * self.seconds_left)


class Problem:
    """N convex functions, each to be minimised over the same set, or over one of its own.

    Args:
        form: the functions; `Problem.at` takes them from a surrogate.
        feasible_set: the set, as the user gave it; or one for each function, flat and detached.
        unit: what gaps are measured in, (N,), positive; max(1, |value|) where it is None.

    Attributes:
        model: the surrogate that the functions are taken from, or None.
        contexts: its contexts, (N, p).
        packed: the surrogate packed beforehand (`soctk.decide.packed_model`), or None.
    """

    model: ConvexFunction | None = None
    packed: PackedModel | PackedForm | None = None
    contexts: Tensor

    def __init__(self, form: ConicForm, feasible_set: AnySet, unit: Tensor | None = None) -> None:
        self.form, self.feasible_set, self.unit = form, feasible_set, unit
        self.size, self.dtype, self.device = form.size, form.dtype, form.linear.device

    @classmethod
    def at(cls, model: ConvexFunction, contexts: Tensor, feasible_set: AnySet, unit: Tensor | None = None) -> Problem:
        """Return the problem of a surrogate at checked contexts (N, p); its form is made when a solver asks for it."""
        problem = cls.__new__(cls)
        problem.model, problem.contexts, problem.feasible_set, problem.unit = model, contexts, feasible_set, unit
        problem.size, problem.device = contexts.shape[0], contexts.device
        given = torch.promote_types(contexts.dtype, model.dtype)
        problem.dtype = torch.float64 if model.has_conic_form else given  # as that of its form
        return problem

    @property
    def given(self) -> Tensor | None:
        """The contexts of a surrogate that has any."""
        return self.contexts if self.model is not None and self.model.context_dim > 0 else None

    @property
    def kept_context(self) -> Tensor | None:
        """What a decision keeps of `given`, cut from autograd: a copy, as the caller may go on writing into it."""
        return None if self.given is None else self.given.detach().clone()

    @cached_property
    def form(self) -> ConicForm:
        """The functions as a conic form of batch shape (N,), checked and cut from autograd.

        Raises:
            ValueError: a weight that is not finite or makes a function non-convex.
        """
        assert self.model is not None
        given = self.contexts if self.model.context_dim > 0 else self.contexts.reshape(-1)[:0]
        form = self.model.form_at(given).check().detach()
        return form if form.size == self.size else dataclasses.replace(form, batch_shape=(self.size,))

    @property
    def has_form(self) -> bool:
        """Whether the functions have a conic form."""
        return self.model is None or self.model.has_conic_form

    @property
    def has_closed_forms(self) -> bool:
        """Whether the set's linear minima and projections are known to take no programme each."""
        rows = self.feasible_set.rows()
        return rows is not None and rows.at_most_a_sum

    @property
    def dim(self) -> int:
        """The decision dimension n."""
        return self.feasible_set.dim

    @property
    def center(self) -> Tensor:
        """The set's centre for each instance, (N, n)."""
        return self.feasible_set.center(self.dtype, self.device).expand(self.size, -1)

    def evaluate(self, x: Tensor) -> Tensor:
        """Return f(x), (N, M, n) -> (N, M), differentiable by autograd."""
        if self.has_form:
            return self.form.evaluate(x)
        assert self.model is not None
        return self.model.evaluate(x, self.contexts)

    def slope_at(self, x: Tensor) -> Tensor:
        """Return a subgradient of each function at points (N, n), (N, n)."""
        if not self.has_form:
            assert self.model is not None
            return gradient_at(self.model, x, self.given)
        return self.form.slope(self.form.subgradients(x.unsqueeze(1))).squeeze(1).expand_as(x)

    def bound_at(self, x: Tensor, limits: Limits) -> Tensor:
        """Return the best lower bound of the minimum that points (N, n) give, (N,), -inf after the deadline."""
        bound = x.new_full((self.size,), -torch.inf)
        for some in self.groups(torch.arange(self.size, device=x.device), limits):
            bound[some] = (self if some.numel() == self.size else self.select(some))._bound_at(x[some])
        return bound

    def _bound_at(self, x: Tensor) -> Tensor:
        if self.has_form:
            return best_bound(self.form, self.feasible_set, x.unsqueeze(1)).squeeze(-1)
        return self.evaluate(x.unsqueeze(1)).squeeze(-1) - self.first_gap(x)

    def first_gap(self, x: Tensor) -> Tensor:
        """Return f(x) - min over the set of f's linearisation at x, which is at least f(x) - min f: (N, n) -> (N,)."""
        if not self.has_form:
            assert self.model is not None
            return frank_wolfe_gap(self.model, self.feasible_set, x, self.given)
        points = x.unsqueeze(1)
        bound = self.form.bound(self.form.subgradients(points), self.feasible_set)
        return (self.form.evaluate(points) - bound).squeeze(-1)

    def groups(self, index: Tensor, limits: Limits) -> Iterator[Tensor]:
        """Yield the instances of an index in groups until the deadline, the first in any case.

        All of them are one group where there is no deadline, or the set has closed forms. Else the first group is
        small, and each of the others as large as half of the time that is left allows, by what the one before took.
        """
        size = index.numel() if math.isinf(limits.deadline) or self.has_closed_forms else BEFORE_THE_CLOCK
        while index.numel() > 0:
            some, index, began = index[:size], index[size:], time.perf_counter()
            yield some
            if index.numel() == 0 or limits.late:
                return
            took = max(time.perf_counter() - began, 1e-6)
            size = max(BEFORE_THE_CLOCK, int(min(0.5 * limits.seconds_left / took * some.numel(), index.numel())))

    def select(self, index: Tensor) -> Problem:
        """Return the problem of the instances `index`."""
        unit = None if self.unit is None else self.unit[index]
        sets = self.feasible_set.select(index) if isinstance(self.feasible_set, SetAt) else self.feasible_set
        if self.model is None or "form" in self.__dict__:
            return Problem(self.form.select(index), sets, unit)
        return Problem.at(self.model, self.contexts[index], sets, unit)

    def piece(self, part: slice) -> Problem:
        """Return the problem of some neighbouring instances of a surrogate."""
        assert self.model is not None
        size = part.stop - part.start
        contexts = self.contexts[part] if self.model.context_dim > 0 else self.contexts
        sets = self.feasible_set
        if isinstance(sets, SetAt):
            sets = sets.select(part)
        piece = Problem.at(self.model, contexts, sets, None if self.unit is None else self.unit[part])
        piece.packed, piece.size = self.packed, size
        return piece

    def on_processor(self) -> Problem:
        """Return the problem in the processor's memory; itself where it is there."""
        if self.device.type == "cpu":
            return self
        return Problem(self.form.apply(Tensor.cpu), self.feasible_set, None if self.unit is None else self.unit.cpu())

    def by_rows(self) -> Problem:
        """Return the problem with a polyhedron's rows kept as they are; itself for sets of other kinds."""
        if type(self.feasible_set) is not Polyhedron:
            return self
        same = copy.copy(self)
        same.__dict__.pop("reduced", None)
        same.feasible_set = self.feasible_set.at()
        return same

    # -- presolve --------------------------------------------------------------------------------------

    @property
    def presolved(self) -> Presolved[FeasibleSet] | Presolved[SetAt]:
        """The set in as few coordinates and rows as it takes."""
        return self.feasible_set.presolve()

    @cached_property
    def reduced(self) -> Problem:
        """The problem on the free coordinates of the presolved set; itself where that is the set as given."""
        presolved = self.presolved
        if presolved.reduced is self.feasible_set:
            return self
        if not presolved.trivial:
            point = presolved.point.to(dtype=self.dtype, device=self.device)
            form = self.form.restricted(presolved.columns.to(self.device), point)
            return Problem(form, presolved.reduced, self.unit)
        same = copy.copy(self)
        same.feasible_set = presolved.reduced
        return same
