"""The atom template that the SOC-ICNN paper calls PCF (Experiment 3), every coefficient affine in the context.

    f(x; theta) = b(theta) + c(theta)'x + 1/2 sum_i q_i(theta) (x_i - m_i(theta))^2
                + sum_g lambda_g(theta) ||A_g x + D_g theta + d_g||

b, c and m are affine in theta; q and lambda are softplus of such. With two norms of 12 rows that is the published
code's model, weight for weight: 51 n + 243 of them at p = 8, so 753, 1263 and 2793 at n = 10, 20 and 50. It is not the
network of the LPCF paper (`soctk_baselines.pcf`). The paper's tasks of quadratics and norms are nearly of its form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from soctk import ConicForm, ConvexSurrogate
from soctk.checks import as_counts, seeded
from soctk.conditioning import AffinePart, Offset
from soctk.maps.linear import DenseMap
from soctk.terms import Norms, Quadratic, Term

FLOOR = 1e-8
"""Added to q and lambda, as in the published code."""


class PCFTemplate(ConvexSurrogate):
    """Affine, separable quadratic and norm atoms.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p.
        norms: rows of each norm atom.
        seed: of the initial weights.
        dtype: of the weights.
    """

    convex_by_construction = True

    def __init__(
        self,
        dim: int,
        context_dim: int = 0,
        *,
        norms: Sequence[int] = (12, 12),
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        self.norms, self.seed = as_counts(norms, "norms"), seed
        generator = seeded(seed)
        options: dict[str, Any] = {"generator": generator, "dtype": dtype}
        self.affine = AffinePart(dim, context_dim, ridges=0, hidden=0, **options)
        self.m, self.q = (Offset(context_dim, dim, scale=0.3, **options) for _ in range(2))
        self.A = nn.ParameterList(
            nn.Parameter(torch.randn(rows, dim, **options) / math.sqrt(dim)) for rows in self.norms
        )
        self.d = nn.ModuleList(Offset(context_dim, rows, scale=0.3, **options) for rows in self.norms)
        self.lam = Offset(context_dim, len(self.norms), scale=0.3, **options)

    def _conic_form(self, context: Tensor) -> ConicForm:
        b0, v = self.affine(context)
        options = {"dtype": self.dtype, "device": self.device}
        identity = DenseMap(torch.eye(self.dim, **options).unsqueeze(0))
        lam = softplus(self.lam(context)) + FLOOR
        terms: list[Term] = [Quadratic(identity, -self.m(context), softplus(self.q(context)) + FLOOR)]
        apex = torch.zeros(1, 1, 1, **options)
        for k, (matrix, offset) in enumerate(zip(self.A, self.d, strict=True)):
            rows = matrix.shape[0]
            terms.append(Norms(DenseMap(matrix.unsqueeze(0)), offset(context), lam[..., k : k + 1], apex, rows))
        return ConicForm(b0, v, tuple(terms), (context.shape[0],))

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in ("dim", "context_dim", "norms", "seed")}
