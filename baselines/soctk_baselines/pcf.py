"""PCF: the parametric convex function of the LPCF paper (Schaller and Bemporad), its network in torch.

Main network, convex in x for W >= 0:

    y_1 = V_1 x + omega_1,   y_j = W_j phi(y_{j-1}) + V_j x + omega_j,   f = y_L (+ ||U x||^2)

Every W_j (through max(., 0)), V_j, omega_j and the upper triangular U is the output of a parameter network
psi(theta) = out_M, out_1 = V'_1 theta + omega'_1, out_j = W'_j phi(out_{j-1}) + V'_j theta + omega'_j. The
layout of psi's output is that of the package `lpcf`, so that its fitted weights can be loaded (`load_lpcf`).

`affine` adds b0(theta) + v(theta)'x as the SOC-ICNN has it. The class of functions hardly grows, V_L being there, but
b0 and v can then be projected out while the curved part is learned (`soctk.learn.residuals`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from soctk import ConicForm, ConvexSurrogate
from soctk.checks import as_counts, check_choice, check_count, check_flag, seeded
from soctk.conditioning import AffinePart
from soctk.maps.linear import DenseMap
from soctk.terms import Network, Quadratic, Term
from soctk.traits import TrainingTraits


class PCF(ConvexSurrogate):
    """A parametric convex function with all weights made from the context.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p.
        widths: hidden widths of the main network; lpcf's default 2 ((n + 1) // 2) twice.
        widths_psi: hidden widths of the parameter network.
        activation: of the main network, "relu" or "logistic"; psi uses the same, as in lpcf.
        quadratic: adds ||U(theta) x||^2.
        affine: adds b0(theta) + v(theta)'x, which lpcf's network has not.
        slope_hidden: hidden units of v's response to the context (`soctk.conditioning.AffinePart`).
        seed: of the initial weights.
        dtype: of the weights.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int = 0,
        *,
        widths: Sequence[int] | None = None,
        widths_psi: Sequence[int] = (16, 16),
        activation: Literal["relu", "logistic"] = "relu",
        quadratic: bool = False,
        affine: bool = False,
        slope_hidden: int = 0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        self.widths = as_counts((2 * ((dim + 1) // 2),) * 2 if widths is None else widths, "widths")
        self.widths_psi = as_counts(widths_psi, "widths_psi")
        self.activation, self.quadratic, self.seed = activation, quadratic, seed
        check_choice(activation, "activation", ("relu", "logistic"))
        check_flag(quadratic, "quadratic")
        check_flag(affine, "affine")
        check_count(slope_hidden, "slope_hidden", minimum=0)
        self.slope_hidden = slope_hidden
        self._sections = self._layout()
        outputs = sum(count for _, count in self._sections)
        sizes = [*self.widths_psi, outputs]
        generator = seeded(seed)
        self.W_psi = nn.ParameterList(_uniform(o, i, generator, dtype) for i, o in pairwise(sizes))
        self.V_psi = nn.ParameterList(_uniform(size, context_dim, generator, dtype) for size in sizes)
        self.omega_psi = nn.ParameterList(_uniform(size, 1, generator, dtype).flatten() for size in sizes)
        options: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.affine = AffinePart(dim, context_dim, slope_hidden=slope_hidden, **options) if affine else None

    def _layout(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the shape and size of each section of psi's output: W_2.., V_1.., omega_1.., U."""
        sizes = [*self.widths, 1]
        shapes: list[tuple[int, ...]] = [(outer, inner) for inner, outer in pairwise(sizes)]
        shapes += [(size, self.dim) for size in sizes]
        shapes += [(size,) for size in sizes]
        sections = [(shape, math.prod(shape)) for shape in shapes]
        if self.quadratic:
            sections.append(((self.dim, self.dim), self.dim * (self.dim + 1) // 2))
        return sections

    @property
    def traits(self) -> TrainingTraits:
        """ReLU networks throughout: no Gauss-Newton steps."""
        return TrainingTraits(affine=self.affine, gauss_newton=False)

    def psi(self, context: Tensor) -> Tensor:
        """Return all weights of the main network at each context, flat: (N, p) -> (N, outputs)."""
        out = context @ self.V_psi[0].mT + self.omega_psi[0]
        for j, matrix in enumerate(self.W_psi, start=1):
            out = self._activate(out) @ matrix.mT + context @ self.V_psi[j].mT + self.omega_psi[j]
        return out

    def _activate(self, a: Tensor) -> Tensor:
        return torch.relu(a) if self.activation == "relu" else softplus(a)

    def _conic_form(self, context: Tensor) -> ConicForm:
        parts = self.psi(context).split([count for _, count in self._sections], dim=-1)
        depth = len(self.widths)
        shaped = [
            part.unflatten(-1, shape) for part, (shape, _) in zip(parts[: 3 * depth + 2], self._sections, strict=False)
        ]
        W = [torch.relu(matrix) for matrix in shaped[:depth]]
        V, omega = shaped[depth : 2 * depth + 1], shaped[2 * depth + 1 : 3 * depth + 2]
        terms: list[Term] = [
            Network(
                DenseMap(torch.cat(V[:-1], dim=1)),
                torch.cat(omega[:-1], dim=-1).unsqueeze(1),
                W[-1],
                mixing=tuple(W[:-1]),
                widths=self.widths,
                activation="relu" if self.activation == "relu" else "softplus",
            )
        ]
        if self.quadratic:
            terms.append(self._quadratic_term(parts[-1]))
        b0, v = (0.0, 0.0) if self.affine is None else self.affine(context)
        return ConicForm(omega[-1] + b0, V[-1] + v, tuple(terms), (context.shape[0],))

    def _quadratic_term(self, flat: Tensor) -> Quadratic:
        rows, columns = torch.triu_indices(self.dim, self.dim, device=flat.device)
        factor = flat.new_zeros(flat.shape[0], self.dim, self.dim)
        factor = factor.index_put((torch.arange(flat.shape[0], device=flat.device)[:, None], rows, columns), flat)
        none = flat.new_zeros(1, 1, self.dim)
        return Quadratic(DenseMap(factor), none, torch.full_like(none, 2.0))

    @torch.no_grad()
    def load_lpcf(self, parameters: Sequence[np.ndarray]) -> None:
        """Copy the weights of a fitted `lpcf.PCF` of the same widths (its `model.params`)."""
        arrays = [torch.from_numpy(np.array(array, dtype=float)) for array in parameters]
        depth = len(self.V_psi)
        groups = (arrays[: depth - 1], arrays[depth - 1 : 2 * depth - 1], arrays[2 * depth - 1 :])
        for weights, given in zip((self.W_psi, self.V_psi, self.omega_psi), groups, strict=True):
            for weight, array in zip(weights, given, strict=True):
                weight.copy_(array.reshape(weight.shape))

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        names = ("dim", "context_dim", "widths", "widths_psi", "activation", "quadratic", "slope_hidden", "seed")
        return {name: getattr(self, name) for name in names} | {"affine": self.affine is not None}


def _uniform(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Return numbers uniform on [-1/2, 1/2], lpcf's initial weights, scaled down by the fan-in."""
    return (torch.rand(rows, columns, generator=generator, dtype=dtype) - 0.5) * (3.0 / max(columns, 1)) ** 0.5
