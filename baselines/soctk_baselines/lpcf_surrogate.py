"""The real `lpcf` package behind the common interface: its own training, its own CVXPY export.

Epochs, starts and the choice among starts are the package's own defaults. Its widths of the parameter network are not:
they make 95,811 weights at n = 10 and 44.7 million at n = 50 (p = 8). Widths are chosen on validation data instead,
each tried from one start.

Imported only when the surrogate `lpcf` is asked for: lpcf brings jax, and importing it switches jax to float64
for the whole process. Values come from the network of `PCF` with lpcf's fitted weights (equal to 1e-8, tested).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from soctk import ConvexSurrogate
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
        self.rows, self.starts, self.seed = rows, starts, seed
        self.choices, self.quadratic = tuple(widths_psi), quadratic
        self.network = self._network(self.choices[0])
        self.options = {"adam_epochs": adam_epochs, "lbfgs_epochs": lbfgs_epochs}
        self._fitted: Any = None

    @property
    def traits(self) -> TrainingTraits:
        """Trained by lpcf, in which `FitConfig` has nothing to decide."""
        return TrainingTraits(own=self.train_by_lpcf)

    def train_by_lpcf(self, trainer: Trainer) -> None:
        """Train by lpcf on standardised data: every choice of widths from one start, the best from all."""
        part, held_out = trainer.standardized()
        part = part.candidates(max(1, self.rows // trainer.data.instances))
        losses = []
        for widths in self.choices if len(self.choices) > 1 else ():
            self._fit(part, widths, starts=1)
            with torch.no_grad():
                losses.append(float((self._value(held_out.x, held_out.context) - held_out.value).square().mean()))
        best = self.choices[int(np.argmin(losses))] if losses else self.choices[0]
        self._fit(part, best, self.starts)
        trainer.judge(FitStatus.ITERATION_LIMIT, sum(self.options.values()))

    def _fit(self, part: Standardized, widths: tuple[int, ...], starts: int) -> None:
        """Take on the widths, with the weights that lpcf finds."""
        self.network = self._network(widths).to(self.device)
        context = part.context.unsqueeze(1).expand(-1, part.x.shape[1], -1)
        self._fitted = self._fresh()
        self._fitted.fit(
            part.value.reshape(-1, 1).numpy(),
            part.x.reshape(-1, self.dim).numpy(),
            context.reshape(-1, self.context_dim).numpy(),
            seeds=np.arange(self.seed, self.seed + starts),
            cores=1,
            **self.options,
        )
        self.network.load_lpcf([np.asarray(array) for array in self._fitted.model.params])

    def _network(self, widths: tuple[int, ...]) -> PCF:
        return PCF(self.dim, self.context_dim, widths_psi=widths, quadratic=self.quadratic, seed=self.seed)

    def _fresh(self) -> Any:
        """Return an unfitted lpcf object; a used one would append to its layout."""
        network = self.network
        return _import().PCF(
            widths=list(network.widths),
            widths_psi=list(network.widths_psi),
            activation="relu",
            quadratic=network.quadratic,
        )

    def _conic_form(self, context: Tensor):
        return self.network._conic_form(context)

    def _expression(self, x: cp.Expression, context: Tensor) -> Any:
        """Return lpcf's own export; it must have been fitted in this process."""
        if self._fitted is None:
            raise RuntimeError("lpcf: call soctk.fit first; a loaded model's conic_form works without it")
        theta = cp.Parameter((self.context_dim, 1), value=context.numpy().reshape(-1, 1))
        column = cp.reshape(x, (self.dim, 1), order="F")
        return cp.sum(self._fitted.tocvxpy(column, theta))


def _import() -> Any:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import lpcf.pcf  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(MISSING) from None
    return lpcf.pcf
