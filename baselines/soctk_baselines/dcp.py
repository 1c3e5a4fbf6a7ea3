"""DCP: a disciplined convex template whose coefficients come from the context.

    f(x; theta) = b0(theta) + v(theta)'x + 1/2 sum_i w_i(theta) x_i^2
                + sum_k beta_k(theta) log(1 + exp(a_k'x + b_k(theta)))
                + sum_g lambda_g(theta) ||A_g x + d_g(theta)||

What a modeller would write in CVXPY without knowing the task: affine, diagonal quadratic, logistic and norm
atoms. It is DPP in every coefficient, so that decisions can go through a real cvxpylayers layer
(`CvxpyLayerDecider`, differentiable; Agrawal et al. 2019) as well as through `soctk.minimize`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from soctk import ConicForm, ConvexSurrogate
from soctk.checks import as_counts, check_count, seeded
from soctk.conditioning import AffinePart, NonNegative, Offset
from soctk.context_units import ContextUnits
from soctk.maps.linear import DenseMap
from soctk.terms import Logistic, Norms, Quadratic, Term


class DCP(ConvexSurrogate):
    """The disciplined template.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p.
        logistics: number of logistic atoms.
        norms: rows of each norm atom; one norm of n rows by default.
        slope_hidden: hidden units of v's response to the context (`soctk.conditioning.AffinePart`).
        context_units: hidden units of the context that the other coefficients follow beside the context itself.
        seed: of the initial weights.
        dtype: of the weights.
    """

    def __init__(
        self,
        dim: int,
        context_dim: int = 0,
        *,
        logistics: int = 8,
        norms: Sequence[int] | None = None,
        slope_hidden: int = 0,
        context_units: int = 0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        check_count(logistics, "logistics")
        check_count(slope_hidden, "slope_hidden", minimum=0)
        self.slope_hidden = slope_hidden
        self.logistics, self.norms, self.seed = logistics, as_counts((dim,) if norms is None else norms, "norms"), seed
        generator = seeded(seed)
        options: dict[str, Any] = {"generator": generator, "dtype": dtype}

        def matrix(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, dim, **options) / math.sqrt(dim))

        self.affine = AffinePart(dim, context_dim, slope_hidden=slope_hidden, **options)
        self.curvature = NonNegative(context_dim, dim, value=1.0 / math.sqrt(dim), dtype=dtype)
        self.a = matrix(logistics)
        self.b = Offset(context_dim, logistics, scale=0.5, **options)
        self.beta = NonNegative(context_dim, logistics, value=1.0 / logistics, dtype=dtype)
        self.A = nn.ParameterList(matrix(rows) for rows in self.norms)
        self.d = nn.ModuleList(Offset(context_dim, rows, scale=0.3, **options) for rows in self.norms)
        self.lam = NonNegative(context_dim, len(self.norms), value=0.3 / max(len(self.norms), 1), dtype=dtype)
        self.units = ContextUnits(context_dim, dtype=dtype)
        self.units.resize(context_units, self, seed)

    def _conic_form(self, context: Tensor) -> ConicForm:
        b0, v = self.affine(context)
        context = self.units(context)
        identity = DenseMap(torch.eye(self.dim, dtype=self.dtype, device=self.device).unsqueeze(0))
        curvature, lam = self.curvature(context), self.lam(context)
        terms: list[Term] = [
            Quadratic(identity, torch.zeros_like(curvature[:1]), curvature),
            Logistic(DenseMap(self.a.unsqueeze(0)), self.b(context), self.beta(context)),
        ]
        apex = torch.zeros(1, 1, 1, dtype=self.dtype, device=self.device)
        for k, (matrix, offset) in enumerate(zip(self.A, self.d, strict=True)):
            terms.append(
                Norms(DenseMap(matrix.unsqueeze(0)), offset(context), lam[..., k : k + 1], apex, matrix.shape[0])
            )
        return ConicForm(b0, v, tuple(terms), (context.shape[0],))

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        names = ("dim", "context_dim", "logistics", "norms", "slope_hidden", "context_units", "seed")
        return {name: getattr(self, name) for name in names}
