"""The recurrent SOC-ICNN: decisions and contexts are sequences.

The backbone is a recurrence over the T steps with non-negative transitions, its last state read out:

    z_t = act(W u_t + E r_t + U z_{t-1} + b),   f = c'z_T,   U = softplus(raw) >= 0,  c >= 0,

which unrolled is an ICNN of T layers, layer t seeing step t alone. Weights are shared by the steps, or each step has
its own. The branches are convolutions over time (`soctk.models.branches`).
Source: paper, appendix "Extension to Recurrent SOC-ICNNs".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from soctk.checks import check_count, check_flag, seeded
from soctk.conditioning import NonNegative, inverse_softplus
from soctk.maps.windows import Grid, Tied, Windows
from soctk.models.branches import ContextAffine, Kinds
from soctk.models.structured import StructuredICNN, Variant, check_counts
from soctk.terms import Network
from soctk.terms.logistic import log1p_exp
from soctk.terms.network import Activation

MEMORY = 0.9
"""What a state's incoming transition weights sum to at the start."""


class RecurrentSOCICNN(StructuredICNN):
    """A SOC-ICNN of sequences: x is (steps, channels) flattened step by step, the context likewise.

    Args:
        steps: T, the horizon.
        channels: numbers of the decision at each step.
        context_channels: of the context at each step; as many as the decision's by default, 0 for no context.
        variant: "relu", "softplus", "quad", "norm" or "soc": which branches stand beside the backbone.
        hidden: units of the recurrence; 0 for no backbone, with branches only.
        quadratics: channels of the quadratic branch.
        quadratic_kernel: steps in its windows.
        norms: local norm groups; at each step one norm each.
        norm_size: kernels in a group; `channels` by default.
        norm_kernel: steps in its windows.
        whole_norms: norm groups over all steps.
        affine_hidden: tanh units of the affine part's response to the context.
        time_varying: every step has its own recurrence weights, gates and norm weights.
        structure: index of the structure taken now, see `StructuredICNN`; the last by default.
        seed: of the initial weights.
        dtype: of the weights.

    Raises:
        ValueError: a size that is too small, or an unknown variant.
    """

    def __init__(
        self,
        steps: int,
        channels: int,
        context_channels: int | None = None,
        *,
        variant: Variant = "soc",
        hidden: int = 20,
        quadratics: int = 24,
        quadratic_kernel: int = 3,
        norms: int = 1,
        norm_size: int | None = None,
        norm_kernel: int = 2,
        whole_norms: int = 0,
        affine_hidden: int = 16,
        time_varying: bool = False,
        structure: int = -1,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        context_channels = channels if context_channels is None else context_channels
        check_count(steps, "steps")
        check_count(channels, "channels")
        check_count(context_channels, "context_channels", minimum=0)
        check_flag(time_varying, "time_varying")
        super().__init__(steps * channels, steps * context_channels, variant, dtype)
        self.steps, self.channels, self.context_channels = steps, channels, context_channels
        self.hidden, self.quadratics, self.quadratic_kernel = hidden, quadratics, quadratic_kernel
        self.norms, self.norm_size, self.norm_kernel = norms, channels if norm_size is None else norm_size, norm_kernel
        self.whole_norms, self.affine_hidden, self.time_varying = whole_norms, affine_hidden, time_varying
        self.seed = seed
        check_counts(self, ("quadratic_kernel", "norm_size", "norm_kernel"), 1)
        check_counts(self, ("hidden", "quadratics", "norms", "whole_norms", "affine_hidden"), 0)
        generator = seeded(seed)
        grid = Grid(steps, channels=channels)
        context = Grid(steps, channels=context_channels) if context_channels else None

        def pair(kernel: int, *, replicate: bool = False) -> tuple[Windows, Windows | None]:
            padding = "replicate" if replicate else "zero"
            own = Windows(grid, (kernel, 1), padding=padding)
            return own, None if context is None else Windows(context, (kernel, 1), padding=padding)

        self._add_branches(
            (quadratics, *pair(quadratic_kernel), self._kinds(quadratic_kernel), None),
            (norms, whole_norms, self.norm_size, *pair(norm_kernel, replicate=True), self._kinds(norm_kernel)),
            generator,
        )
        if hidden:
            single = pair(1)
            self.backbone = Recurrence(*single, hidden, time_varying, self.activation, generator, dtype)
        self.context_affine = ContextAffine(*pair(3), affine_hidden, generator, dtype)
        self._choose_structure(structure)

    def _kinds(self, kernel: int) -> Kinds:
        """Return the kinds of the steps: their own near the ends, where windows reach beyond them."""
        before = (kernel - 1) // 2
        return Kinds(self.steps, before, kernel - 1 - before, self.time_varying)

    def resized(self, steps: int) -> RecurrentSOCICNN:
        """Return the model with the same weights for another horizon.

        Raises:
            ValueError: the weights vary in time.
        """
        if self.time_varying:
            raise ValueError("steps: weights that vary in time have no meaning at another horizon")
        return self._resized(steps=steps)

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        sizes = ("steps", "channels", "context_channels", "hidden", "quadratics", "quadratic_kernel", "norms")
        more = ("norm_size", "norm_kernel", "whole_norms", "affine_hidden", "time_varying")
        return {name: getattr(self, name) for name in (*sizes, *more, "variant", "structure", "seed")}


class Recurrence(nn.Module):
    """The backbone of `RecurrentSOCICNN`.

    Args:
        windows: single steps of the decision.
        context: single steps of the context, or None.
        hidden: h, units.
        varying: whether every step has its own weights.
        activation: "relu" or "softplus".
        generator: of random numbers.
        dtype: of the weights.
    """

    def __init__(
        self,
        windows: Windows,
        context: Windows | None,
        hidden: int,
        varying: bool,
        activation: Activation,
        generator: torch.Generator,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.grid, self.context, self.hidden = windows.grid, context, hidden
        self.activation: Activation = activation
        self.steps, count = windows.count, windows.count if varying else 1

        def normal(rows: int, *shape: int) -> nn.Parameter:
            noise = torch.randn(rows, *shape, generator=generator, dtype=dtype)
            return nn.Parameter(noise / math.sqrt(shape[-1]))

        self.W = normal(count, hidden, windows.length)
        self.E = normal(count, hidden, context.length) if context is not None else None
        self.b = nn.Parameter(torch.zeros(count, hidden, dtype=dtype))
        raw = 0.1 * torch.randn(max(1, count - 1), hidden, hidden, generator=generator, dtype=dtype)
        self.U_raw = nn.Parameter(raw + inverse_softplus(MEMORY / hidden))
        self.c = NonNegative(0, hidden, value=(1 - MEMORY) / hidden, dtype=dtype)

    @property
    def units(self) -> int:
        """The number of units."""
        return self.steps * self.hidden

    def _offset(self, context: Tensor) -> Tensor:
        """Return E r_t + b, (N or 1, T, h)."""
        offset = self.b.expand(self.steps, -1).unsqueeze(0)
        if self.E is None or self.context is None:
            return offset
        return offset + torch.einsum("ntj,thj->nth", context.unflatten(-1, (self.steps, -1)), self._each(self.E))

    def _each(self, weights: Tensor) -> Tensor:
        return weights.expand(self.steps, -1, -1)

    def term(self, context: Tensor) -> Network:
        """Return the recurrence unrolled, a network of T layers."""
        U = softplus(self.U_raw)
        return Network(
            unrolled(self.grid, self.hidden, self.W.shape[0] > 1).map(self.W),
            self._offset(context).flatten(-2).unsqueeze(1),
            self.c(context),
            mixing=tuple(U[min(t, len(U) - 1)].unsqueeze(0) for t in range(self.steps - 1)),
            widths=(self.hidden,) * self.steps,
            activation=self.activation,
        )

    def value(self, x: Tensor, context: Tensor) -> Tensor:
        """Return c'z_T at (N or 1, M, n) and (N, p): (N, M)."""
        steps = x.unflatten(-1, (self.steps, -1))
        inputs = torch.einsum("nmtj,thj->nmth", steps, self._each(self.W)) + self._offset(context).unsqueeze(1)
        U, act = softplus(self.U_raw), torch.relu if self.activation == "relu" else log1p_exp
        z = act(inputs[:, :, 0])
        for t in range(1, self.steps):
            z = act(inputs[:, :, t] + z @ U[min(t, len(U)) - 1].mT)
        return (self.c(context) * z).sum(dim=-1)


@lru_cache(maxsize=64)
def unrolled(grid: Grid, hidden: int, varying: bool) -> Tied:
    """Return the map of all steps' W u_t, (T h, T p), of W (T or 1, h, p)."""
    size = hidden * grid.channels
    step, unit, channel = np.ogrid[: grid.places, :hidden, : grid.channels]
    rows, columns = step * hidden + unit + 0 * channel, grid.index()[:, 0][:, None, :] + 0 * unit
    source = (size * step if varying else 0 * step) + unit * grid.channels + channel
    shape = (grid.places * hidden, grid.size)
    return Tied.of(rows.reshape(-1), columns.reshape(-1), source.reshape(-1), shape)
