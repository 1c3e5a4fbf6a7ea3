"""The real `lpcf` package behind the common interface: its own training, its own CVXPY export.

Epochs, starts and the choice among starts are the package's own defaults. Its widths of the parameter network are not:
they make 95,811 weights at n = 10 and 44.7 million at n = 50 (p = 8). Widths are chosen on validation data instead,
each tried from one start.

Imported only when the surrogate `lpcf` is asked for: lpcf brings jax, and importing it switches jax to float64
for the whole process. Values come from the network of `PCF` with lpcf's fitted weights (equal to 1e-8, tested).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk import ConvexSurrogate
from soctk.checks import check_count
from soctk.forms.embedding import expression
from soctk.lazy import cvxpy as cp
from soctk.learn.deadline import Deadline
from soctk.learn.report import FitStatus
from soctk.learn.trainer import Trainer
from soctk.learn.units import Standardized
from soctk.traits import TrainingTraits
from soctk_baselines.pcf import PCF

MISSING = 'lpcf is not installed; install it with: pip install "soctk[pcf]"'


class LPCF(ConvexSurrogate):
    """A parametric convex function trained and exported by `lpcf`.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p.
        widths_psi: hidden widths of the parameter network; several to choose from on validation data.
        quadratic: lpcf's quadratic term ||U(theta) x||^2.
        rows: observed values used for training, an equal share of each instance's candidates.
        adam_epochs: lpcf's.
        lbfgs_epochs: lpcf's.
        starts: random starts of the widths chosen; the best by training R^2 is kept, as lpcf does.
        seed: of the first start.

    Raises:
        ImportError: the extra `pcf` is not installed.
    """

    decision_method = "cvxpy"

    def __init__(
        self,
        dim: int,
        context_dim: int = 0,
        *,
        widths_psi: Sequence[tuple[int, ...]] = ((8, 8), (16, 16), (32, 32)),
        quadratic: bool = True,
        rows: int = 10_000,
        adam_epochs: int = 200,
        lbfgs_epochs: int = 2000,
        starts: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(dim, context_dim)
        _import()
        if not widths_psi:
            raise ValueError("widths_psi: expected at least one choice of widths, got none")
        counts = {"rows": rows, "adam_epochs": adam_epochs, "lbfgs_epochs": lbfgs_epochs, "starts": starts}
        for name, count in counts.items():
            check_count(count, name)
        self.rows, self.starts, self.seed = rows, starts, seed
        self.choices, self.quadratic = tuple(tuple(widths) for widths in widths_psi), quadratic
        self.network = self._network(self.choices[0])
        self.options = {"adam_epochs": adam_epochs, "lbfgs_epochs": lbfgs_epochs}
        self._fitted: _Fitted | None = None

    @property
    def traits(self) -> TrainingTraits:
        """Trained by lpcf, in which `FitConfig` has nothing to decide."""
        return TrainingTraits(own=self.train_by_lpcf)

    def train_by_lpcf(self, trainer: Trainer) -> None:
        """Train by lpcf on standardised data: every choice of widths from one start, the best from all.

        lpcf cannot be interrupted. A deadline is looked at between its runs, and with one each start is a run of its
        own, with the same outcome.
        """
        part, held_out = trainer.standardized()
        part, deadline = part.candidates(max(1, self.rows // trainer.data.instances)), trainer.deadline
        seeds = range(self.seed, self.seed + self.starts)
        widths = self.choices if len(self.choices) > 1 else ()
        tried = self._runs(part, [(each, seeds[:1]) for each in widths], deadline)
        found = [min(tried, key=lambda one: one.error(held_out))] if tried else []
        best = found[0].network.widths_psi if found else self.choices[0]
        starts = [seeds[i : i + 1] for i in range(self.starts)] if deadline.limited else [seeds]
        raced = self._runs(part, [(best, run) for run in starts], deadline) if len(tried) == len(widths) else []
        if found := [*found, *raced]:
            self._fitted = max(found, key=lambda one: one.fit)
            self.network = self._fitted.network
        trainer.judge(
            FitStatus.ITERATION_LIMIT if len(raced) == len(starts) else deadline.status, sum(self.options.values())
        )

    def _runs(
        self, part: Standardized, plan: Sequence[tuple[tuple[int, ...], Sequence[int]]], deadline: Deadline
    ) -> list[_Fitted]:
        """Return the runs, of widths and seeds each, that begin before the deadline."""
        runs = []
        for widths, seeds in plan:
            if deadline.passed:
                break
            runs.append(self._run(part, widths, seeds))
        return runs

    def _run(self, part: Standardized, widths: tuple[int, ...], seeds: Sequence[int]) -> _Fitted:
        """Return what lpcf finds with these widths from some starts."""
        network, rows = self._network(widths).to(self.device), part.value.numel()
        context = part.context.unsqueeze(1).expand(-1, part.x.shape[1], -1)
        # An lpcf object that has been fitted appends to its layout.
        own = _import().PCF(
            widths=list(network.widths), widths_psi=list(widths), activation="relu", quadratic=network.quadratic
        )
        summary = own.fit(
            part.value.reshape(rows, 1).numpy(),
            part.x.reshape(rows, self.dim).numpy(),
            context.reshape(rows, self.context_dim).numpy(),
            seeds=np.array(seeds),
            cores=1,
            **self.options,
        )
        network.load_lpcf([np.asarray(array) for array in own.model.params])
        return _Fitted(own, network, float(summary["R2"]), copy.deepcopy(network.state_dict()))

    def _network(self, widths: tuple[int, ...]) -> PCF:
        return PCF(self.dim, self.context_dim, widths_psi=widths, quadratic=self.quadratic, seed=self.seed)

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments; of a fitted model with the widths that were chosen."""
        choices = self.choices if self._fitted is None else (self.network.widths_psi,)
        names = ("dim", "context_dim", "quadratic", "rows", "starts", "seed")
        return {name: getattr(self, name) for name in names} | {"widths_psi": choices} | self.options

    def __getstate__(self) -> dict[str, Any]:
        """What lpcf has compiled is no part of a copy."""
        return self.__dict__ | {"_fitted": None, "choices": self.config()["widths_psi"]}

    def _conic_form(self, context: Tensor):
        return self.network._conic_form(context)

    def _expression(self, x: cp.Expression, context: Tensor) -> Any:
        """Return lpcf's own export; of a copy, or of weights that were changed since, the same function as ours."""
        if self._fitted is None or not self._fitted.is_of(self.network):
            return expression(self._conic_form(context.to(self.device)).detach(), x)
        theta = cp.Parameter((self.context_dim, 1), value=context.numpy().reshape(-1, 1))
        column = cp.reshape(x, (self.dim, 1), order="F")
        return cp.sum(self._fitted.own.tocvxpy(column, theta))


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A run of lpcf.

    Attributes:
        own: lpcf's object.
        network: ours with its weights.
        fit: R^2 on the training data, in percent.
        state: a copy of the network's weights.
    """

    own: Any
    network: PCF
    fit: float
    state: dict[str, Tensor]

    @torch.no_grad()
    def error(self, held_out: Standardized) -> float:
        """Return the mean squared error on other data."""
        return float((self.network._value(held_out.x, held_out.context) - held_out.value).square().mean())

    def is_of(self, network: PCF) -> bool:
        """Return whether a network is the one that was fitted, its weights unchanged."""
        state = network.state_dict()
        return network is self.network and all(torch.equal(state[name], self.state[name]) for name in state)


def _import() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import lpcf.pcf  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(MISSING) from None
    return lpcf.pcf
