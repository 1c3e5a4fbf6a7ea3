"""What `soctk.fine_tune` makes small: a loss of the model's decisions, on instances whose best ones are known.

    Optimality      optima x* known: the squared residuals of their conditions of optimality; no inner problem
    Suboptimality   optima x* known: f(x*) - min f (Fenchel-Young loss)
    Regret          the objective F known: F(x_hat) - F(x*), through the derivative of x_hat
    SPOPlus         costs c of linear objectives known: a bound on c'x_hat - c'x*

The first two are judged by how far decisions are from x*, the others by regret. The formulas are in `soctk.losses` and
`soctk.learn.optimality`. Models of ReLU units alone decide at vertices, which do not move with the weights until they
jump: their `Regret` has the derivative 0 or none, while the others still lead somewhere. Instances whose derivative is
not proved at the weights of a step do not count in that step.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from torch import Tensor

from soctk.checks import as_tensor, check_kind
from soctk.decide.layer import DecisionLayer
from soctk.decide.minimize import minimize
from soctk.learn.data import groups_of, split_groups
from soctk.learn.optimality import Optima, OptimalityResiduals
from soctk.losses import spo_plus_loss, suboptimality_loss
from soctk.sets import FeasibleSet, SetAt
from soctk.surrogate import ConvexSurrogate

OUTSIDE = 1e-6
"""Optima this far outside of the set, in units of its numbers, are none: one outside has a loss below zero."""

BETTER = 1e-4
"""A decision may cost less than an optimum by this share of what they add up: optima are as good as their solver."""

SMALLEST = 1e-9
"""Nor are differences so small any."""

Loss = Callable[[], Tensor]


class Decider(Protocol):
    """A model's decisions (N, n) at contexts (N, p), differentiable in its weights."""

    def __call__(self, context: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class DecisionLoss(ABC):
    """A loss of decisions at contexts.

    Attributes:
        context: (N, p).
        feasible_set: where decisions live.

    Raises:
        TypeError: no set, or one of its own for every instance, but for `Optimality`; an objective that is no function.
        ValueError: shapes that do not agree, numbers that are not finite, or optima outside the set.
    """

    context: Tensor
    feasible_set: FeasibleSet | SetAt
    own_sets: ClassVar[bool] = False
    """Whether `feasible_set.at(...)` may give every instance a set of its own."""

    def __post_init__(self) -> None:
        check_kind(self.feasible_set, (FeasibleSet, SetAt), "feasible_set")
        for name in self._tensors():
            object.__setattr__(self, name, as_tensor(getattr(self, name), name).double().cpu())
        if isinstance(self.feasible_set, SetAt):
            if not self.own_sets:
                raise TypeError(
                    f"feasible_set: expected one set, as {type(self).__name__} differentiates decisions over one; of "
                    "sets of their own soctk.Optimality learns from optima, and soctk.DecisionLayer takes right-hand "
                    "sides beside the contexts"
                )
            object.__setattr__(self, "feasible_set", self.feasible_set.flat((self.instances,)).detach())
        if self.context.ndim != 2 or len(self.context) == 0:
            raise ValueError(f"context: expected shape (instances, p), got {tuple(self.context.shape)}")
        for name in self._tensors():
            columns = () if name == "optimum" else (self.feasible_set.dim,)
            shape = tuple(getattr(self, name).shape)
            if name != "context" and shape != (self.instances, *columns):
                raise ValueError(f"{name}: expected shape {(self.instances, *columns)}, got {shape}")
        if "optima" in self._tensors():
            outside = float(self.feasible_set.violation(self.optima).max())  # type: ignore[attr-defined]
            if outside > OUTSIDE * self.feasible_set.magnitude:
                raise ValueError(f"optima: expected points of the feasible set, got one {outside:.2g} outside")

    @abstractmethod
    def on(self, model: ConvexSurrogate) -> Loss:
        """Return the mean loss at the model's weights, in the values' units; differentiable each time it is called."""

    @abstractmethod
    def judge(self, model: ConvexSurrogate) -> float:
        """Return what is to be small in the end, the mean over the instances of how bad the model's decisions are."""

    @property
    def instances(self) -> int:
        """The number N of instances."""
        return len(self.context)

    def rows(self, index: Tensor) -> Self:
        """Return the loss on the instances `index`."""
        some = {name: getattr(self, name)[index] for name in self._tensors()}
        if isinstance(self.feasible_set, SetAt):
            some["feasible_set"] = self.feasible_set.select(index)
        return dataclasses.replace(self, **some)

    def split(self, seed: int) -> tuple[Self, Self]:
        """Return the instances to learn from and a fifth to judge by; of a single one, the same twice."""
        if self.instances == 1:
            return self, self
        learned, judged = split_groups(groups_of(self.context), seed=seed)
        return self.rows(learned), self.rows(judged)

    def decisions(self, model: ConvexSurrogate) -> Tensor:
        """Return the model's decisions, (N, n)."""
        context = self.context.to(dtype=model.dtype, device=model.device)
        return minimize(model, self.feasible_set, context).x.double().cpu()

    def _tensors(self) -> list[str]:
        names = (field.name for field in dataclasses.fields(self))
        given = ((name, getattr(self, name)) for name in names if name in ("context", "optima", "optimum", "costs"))
        return [name for name, value in given if value is not None]


@dataclass(frozen=True, eq=False)
class Suboptimality(DecisionLoss):
    """Known optima: f(x*) - min f, judged by the mean distance of decisions from them.

    Attributes:
        optima: (N, n).
    """

    optima: Tensor

    def on(self, model: ConvexSurrogate) -> Loss:
        """Return the mean of `losses.suboptimality_loss`."""
        layer = DecisionLayer(model, self.feasible_set, skip_undefined=True)
        optima, context = (part.to(model.device) for part in (self.optima, self.context))
        return lambda: suboptimality_loss(layer, optima, context)

    def judge(self, model: ConvexSurrogate) -> float:
        """Return the mean distance."""
        return float((self.decisions(model) - self.optima).norm(dim=-1).mean())


@dataclass(frozen=True, eq=False)
class Optimality(Suboptimality):
    """Known optima: what keeps them from being the model's, its gradient's distance from where it would have to be.

    What `fit(optima=)` learns from, as a loss of its own; it takes sets of their own for every instance as well.
    """

    own_sets = True

    def on(self, model: ConvexSurrogate) -> Loss:
        """Return the mean squared residual (`soctk.learn.optimality`), which has the model's units, in the values'."""
        optima = Optima.at(self.context, self.optima, self.feasible_set, model.x_scale.double().cpu())
        residuals = OptimalityResiduals(model, optima)
        return lambda: model.value_scale * residuals.loss(model)


@dataclass(frozen=True, eq=False)
class Regret(DecisionLoss):
    """A known objective: its value at the model's decisions, less the smallest.

    Attributes:
        objective: (x (N, n), context (N, p)) -> (N,), differentiable in x.
        optimum: (N,), its smallest values; without them the mean value takes the place of the mean regret.
        decider: makes the differentiable decisions of a model over a set; `DecisionLayer` by default.
    """

    objective: Callable[[Tensor, Tensor], Tensor]
    optimum: Tensor | None = None
    decider: Callable[[ConvexSurrogate, FeasibleSet], Decider] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.objective):
            raise TypeError(f"objective: expected a function of x and context, got {self.objective!r}")

    def on(self, model: ConvexSurrogate) -> Loss:
        """Return the mean regret of differentiable decisions (`losses.regret_loss`)."""
        make = self.decider or (lambda model, feasible_set: DecisionLayer(model, feasible_set, skip_undefined=True))
        decide, context = make(model, self.feasible_set), self.context.to(model.device)

        def loss() -> Tensor:
            x = decide(context).cpu()  # the objective is given what the user has
            value = self._values(x)
            if x.requires_grad and not value.requires_grad:
                raise ValueError(
                    "objective: expected values with derivatives in x, got some without: make them of x by PyTorch, "
                    "without detach or no_grad"
                )
            return self._mean(value)

        return loss

    def judge(self, model: ConvexSurrogate) -> float:
        """Return the mean regret.

        Raises:
            ValueError: the objective is not finite at a decision, or less than its smallest value that was given.
        """
        value = self._values(self.decisions(model))
        found = float(self._mean(value))
        if not math.isfinite(found):
            raise ValueError(f"objective: expected finite values at decisions in the set, got a mean of {found}")
        if self.optimum is not None:
            below = self.optimum - value
            if bool((below > BETTER * (self.optimum.abs() + value.abs()).max() + SMALLEST).any()):
                raise ValueError(
                    "optimum: expected the smallest values of the objective over the set, got one that a decision of "
                    f"the model is {float(below.max()):.3g} below"
                )
        return found

    def _values(self, x: Tensor) -> Tensor:
        value = self.objective(x, self.context)
        if not isinstance(value, Tensor):
            raise TypeError(
                f"objective: expected a tensor ({self.instances},), made of x by PyTorch, got {type(value).__name__}"
            )
        if tuple(value.shape) != (self.instances,):
            raise ValueError(
                f"objective: expected shape ({self.instances},), a number for each decision, got {tuple(value.shape)}"
            )
        return value

    def _mean(self, value: Tensor) -> Tensor:
        return (value if self.optimum is None else value - self.optimum).mean()


@dataclass(frozen=True, eq=False)
class SPOPlus(DecisionLoss):
    """Known costs of objectives c'x that are linear in x, and their optima.

    Attributes:
        costs: c, (N, n).
        optima: (N, n).
    """

    costs: Tensor
    optima: Tensor

    def on(self, model: ConvexSurrogate) -> Loss:
        """Return the mean of `losses.spo_plus_loss`, an upper bound on the mean regret."""
        layer = DecisionLayer(model, self.feasible_set, skip_undefined=True)
        costs, optima, context = (part.to(model.device) for part in (self.costs, self.optima, self.context))
        return lambda: spo_plus_loss(layer, costs, optima, context)

    def judge(self, model: ConvexSurrogate) -> float:
        """Return the mean regret; ValueError where a decision costs less than the optimum that was given."""
        parts = self.costs * (self.decisions(model) - self.optima)
        regret, size = parts.sum(dim=-1), (self.costs * self.optima).abs().sum(dim=-1)
        below = float((-regret - BETTER * (size + parts.abs().sum(dim=-1))).max())
        if below > 0:
            raise ValueError(
                "optima: expected points of the set at which the costs c'x are least, got one that a decision of the "
                f"model is {float(-regret.min()):.3g} below"
            )
        return float(regret.mean())
