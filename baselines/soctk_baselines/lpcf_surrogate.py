"""The real `lpcf` package behind the common interface: its own training, its own CVXPY export.

Imported only when the surrogate `lpcf` is asked for: lpcf brings jax, and importing it switches jax to float64
for the whole process. Values come from the network of `PCF` with lpcf's fitted weights (equal to 1e-8, tested).
"""

from __future__ import annotations

import os
from typing import Any

import cvxpy as cp
import numpy as np
from torch import Tensor

from soctk import ConvexSurrogate
from soctk.learn.report import FitStatus
from soctk.learn.trainer import Trainer
from soctk.traits import TrainingTraits
from soctk_baselines.pcf import PCF

MISSING = 'lpcf is not installed; install it with: pip install "soctk[pcf]"'


class LPCF(ConvexSurrogate):
    """A parametric convex function trained and exported by `lpcf`.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p.
        widths_psi: hidden widths of the parameter network (lpcf's default needs 44.7 million weights at n = 50).
        quadratic: lpcf's quadratic term ||U(theta) x||^2.
        rows: observed values used for training, an equal share of each instance's candidates.
        adam_epochs: lpcf's.
        lbfgs_epochs: lpcf's.
        starts: random starts; the best by training R^2 is kept, as lpcf does.
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
        widths_psi: tuple[int, ...] = (16, 16),
        quadratic: bool = True,
        rows: int = 10_000,
        adam_epochs: int = 200,
        lbfgs_epochs: int = 400,
        starts: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(dim, context_dim)
        _import()
        self.network = PCF(dim, context_dim, widths_psi=widths_psi, quadratic=quadratic, seed=seed)
        self.options = {"adam_epochs": adam_epochs, "lbfgs_epochs": lbfgs_epochs}
        self.rows, self.starts, self.seed = rows, starts, seed
        self._fitted: Any = None

    @property
    def traits(self) -> TrainingTraits:
        """Trained by lpcf, in which `FitConfig` has nothing to decide."""
        return TrainingTraits(own=self.train_by_lpcf)

    def train_by_lpcf(self, trainer: Trainer) -> None:
        """Train by lpcf on standardised data."""
        part = trainer.standardized()[0].candidates(max(1, self.rows // trainer.data.instances))
        context = part.context.unsqueeze(1).expand(-1, part.x.shape[1], -1)
        fitted = self._fresh()
        fitted.fit(
            part.value.reshape(-1, 1).numpy(),
            part.x.reshape(-1, self.dim).numpy(),
            context.reshape(-1, self.context_dim).numpy(),
            seeds=np.arange(self.seed, self.seed + self.starts),
            cores=1,
            **self.options,
        )
        self._fitted = fitted
        self.network.load_lpcf([np.asarray(array) for array in fitted.model.params])
        trainer.judge(FitStatus.ITERATION_LIMIT, sum(self.options.values()))

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
