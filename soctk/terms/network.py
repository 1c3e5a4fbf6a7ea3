"""The ICNN backbone as one term: phi(u) = c'z_L, z_l = act(u_l + U_l z_{l-1}), z_0 = 0, with U >= 0 and c >= 0.

u = (u_1, ..., u_L) stacks the layers' affine parts W_l x + b_l (zero rows W_l where there is no passthrough).

Dual chain (paper, Section 3.1). For slopes p_l in [0, 1] let nubar_L = c, nu_l = nubar_l p_l and
nubar_{l-1} = U_l' nu_l. Every nu made this way satisfies 0 <= nu_L <= c, 0 <= nu_l <= U_{l+1}' nu_{l+1},
and act(a) >= p a + H(p) (H = 0 for the ReLU, the binary entropy for softplus) applied from the last layer
to the first gives phi(u) >= sum_l nu_l'u_l + sum_l nubar_l'H(p_l): so phi*(nu) = -sum nubar_l'H(p_l).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from soctk.checks import as_counts, check_choice
from soctk.lazy import cvxpy as cp
from soctk.maps.linear import DenseMap, made_once
from soctk.terms.base import (
    SMALLEST_WEIGHT,
    Coefficient,
    Convex,
    CurvatureKind,
    Smoothed,
    Term,
    check_nonnegative,
    safe_divisor,
)
from soctk.terms.cones import Affine, ConeBuilder
from soctk.terms.kernel import Packs, Structure
from soctk.terms.logistic import binary_entropy, log1p_exp
from soctk.terms.mixing import Mixing, adjoint, dense, forward, on_numbers, transposed
from soctk.terms.network_kernel import KERNEL
from soctk.terms.network_piece import NetworkPiece
from soctk.terms.piece import Piece

Activation = Literal["relu", "softplus"]
CACHED_ENTRIES = 2**17
"""Numbers of an intermediate result worked on at a time: a megabyte in float64."""


@dataclass(frozen=True, eq=False)
class Network(Term):
    """A ReLU or softplus input-convex network; `weights` is the read-out c.

    Attributes:
        mixing: U_2, ..., U_L, non-negative: each a tensor (N or 1, h_l, h_{l-1}) or a map of h_l rows.
        widths: h_1, ..., h_L; the rows of `map` and `offset` in that order.
        activation: "relu" or "softplus".
    """

    mixing: tuple[Mixing, ...]
    widths: tuple[int, ...]
    activation: Activation = "relu"
    weights_name = "c"
    packs: ClassVar = Packs(numbers=("softplus",), matrices=("mixing",), counts=("widths",))
    kernel: ClassVar = KERNEL

    def check(self) -> None:
        """Raise ValueError naming the tensor that is not finite or that must not be negative."""
        super().check()
        for index, numbers in enumerate(self._mixing_numbers(), start=2):
            check_nonnegative(numbers, f"network.U{index}")

    def nonnegative(self) -> list[Tensor]:
        """Return c and the numbers of U_2, ..., U_L."""
        return [self.weights, *self._mixing_numbers()]

    def _mixing_numbers(self) -> list[Tensor]:
        numbers: list[Tensor] = []
        for matrix in self.mixing:
            on_numbers(matrix, lambda tensor: numbers.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return numbers

    def coefficients(self) -> dict[str, Tensor]:
        """Return the named tensors that a CVXPY form needs; U2, ... where they are dense."""
        dense = {f"U{k}": matrix for k, matrix in enumerate(self.mixing, start=2) if isinstance(matrix, Tensor)}
        return super().coefficients() | dense

    def to_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors of a network of one context by name, U2, ... among them, and its other fields."""
        tensors, options = super().to_parts()
        del options["mixing"]
        return tensors | {f"U{level}": dense(matrix) for level, matrix in enumerate(self.mixing, start=2)}, options

    @classmethod
    def from_parts(cls, tensors: dict[str, Tensor], options: dict[str, Any]) -> Network:
        """Return the network of what `to_parts` returned."""
        rest = {name: tensor for name, tensor in tensors.items() if name[0] != "U"}
        mixing = tuple(tensor for name, tensor in tensors.items() if name[0] == "U")
        return super().from_parts(rest, options | {"mixing": mixing})

    def _shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        check_choice(self.activation, "activation", get_args(Activation))
        widths = as_counts(self.widths, "widths")
        if sum(widths) != rows:
            raise ValueError(f"widths: expected layers of {rows} units together, the term's rows, got {list(widths)}")
        if len(self.mixing) != len(widths) - 1:
            raise ValueError(f"mixing: expected {len(widths) - 1} matrices between {len(widths)} layers")
        for level, (matrix, inner, outer) in enumerate(zip(self.mixing, widths, widths[1:], strict=False), start=2):
            if isinstance(matrix, Tensor) and tuple(matrix.shape[1:]) != (outer, inner):
                raise ValueError(f"U{level}: expected shape {[outer, inner]}, got {list(matrix.shape[1:])}")
        return {"weights": (1, widths[-1])}

    # -- the function ----------------------------------------------------------------------------------

    def preactivations(self, u: Tensor) -> list[Tensor]:
        """Return a_1, ..., a_L, each (N, M, h_l)."""
        parts = u.split(self.widths, dim=-1)
        activations = [parts[0]]
        for part, matrix in zip(parts[1:], self.mixing, strict=True):
            activations.append(part + forward(matrix, self._activate(activations[-1])))
        return activations

    def _activate(self, a: Tensor) -> Tensor:
        return log1p_exp(a) if self.softplus else torch.relu(a)

    def _slope(self, a: Tensor) -> Tensor:
        return torch.sigmoid(a) if self.softplus else (a > 0).to(a.dtype)

    def value(self, u: Tensor) -> Tensor:
        """Return c'z_L."""
        return (self.weights * self._activate(self.preactivations(u)[-1])).sum(dim=-1)

    def chain(self, slopes: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return (nu, nubar) of the dual chain for slopes p_1, ..., p_L, each (N, M, h_l)."""
        nubar = [self.weights]
        nu = [nubar[0] * slopes[-1]]
        for slope, matrix in zip(reversed(slopes[:-1]), reversed(self.mixing), strict=True):
            nubar.append(adjoint(matrix, nu[-1]))
            nu.append(nubar[-1] * slope)
        return nu[::-1], nubar[::-1]

    def subgradient(self, u: Tensor) -> Tensor:
        """Return nu for the slopes at u, the closed-form dual optimum (slope 0 at a ReLU's kink)."""
        return torch.cat(self.chain([self._slope(a) for a in self.preactivations(u)])[0], dim=-1)

    def slopes_of(self, y: Tensor) -> list[Tensor]:
        """Return slopes in [0, 1] whose chain is the feasible nu nearest to y, layer by layer from the last."""
        nu = y.split(self.widths, dim=-1)
        nubar = self.weights
        slopes: list[Tensor] = []
        for level in range(len(nu) - 1, -1, -1):
            slope = (nu[level] / safe_divisor(nubar)).clamp(0, 1)
            slopes.append(slope)
            if level > 0:
                nubar = adjoint(self.mixing[level - 1], nubar * slope)
        return slopes[::-1]

    def nearest_dual(self, y: Tensor) -> Tensor:
        """Return the chain nearest to y."""
        return torch.cat(self.chain(self.slopes_of(y))[0], dim=-1)

    def dual_violation(self, y: Tensor) -> Tensor:
        """Return the largest violation of 0 <= nu_L <= c and 0 <= nu_l <= U_{l+1}' nu_{l+1}."""
        nu = y.split(self.widths, dim=-1)
        above = [(nu[-1] - self.weights).amax(dim=-1)]
        for part, outer, matrix in zip(nu[:-1], nu[1:], self.mixing, strict=True):
            above.append((part - adjoint(matrix, outer)).amax(dim=-1))
        return torch.stack(torch.broadcast_tensors(*above, (-y).amax(dim=-1))).amax(dim=0).clamp(min=0)

    def nonsmooth(self, u: Tensor) -> Tensor:
        """Return whether any ReLU is at its kink."""
        if self.softplus:
            return super().nonsmooth(u)
        return torch.stack([(a == 0).any(dim=-1) for a in self.preactivations(u)]).any(dim=0)

    def conjugate(self, y: Tensor) -> Tensor:
        """Return 0 for the ReLU, -sum nubar'H(p) for softplus."""
        if not self.softplus:
            return torch.zeros_like(y[..., 0])
        slopes = self.slopes_of(y)
        nubar = self.chain(slopes)[1]
        return -sum((bar * binary_entropy(p)).sum(dim=-1) for bar, p in zip(nubar, slopes, strict=True))  # type: ignore[return-value]

    # -- smoothing -------------------------------------------------------------------------------------

    def reference_weight(self) -> Tensor:
        """Return the largest mean of nubar over the layers when every unit is active, (N or 1, 1)."""
        ones = [self.weights.new_ones(1, 1, width) for width in self.widths]
        nubar = self.chain(ones)[1]
        return torch.stack([bar.mean(dim=-1).expand(self.weights.shape[0], 1) for bar in nubar]).amax(dim=0)

    def smooth(self, u: Tensor, mu: Tensor) -> Smoothed:
        """Return the network with relu(a) replaced by (a + sqrt(a^2 + 4 delta^2)) / 2, delta = 2 mu / nubar.

        Softplus networks are smooth and return themselves.
        """
        parts = u.split(self.widths, dim=-1)
        spread: Tensor | None = None
        if not self.softplus:
            spread = 4 * (2 * mu / self.reference_weight().clamp(min=SMALLEST_WEIGHT)).square().unsqueeze(-1)
        z: Tensor | None = None
        layers, slopes = [], []
        for level, part in enumerate(parts):
            a = part if z is None else part + forward(self.mixing[level - 1], z)
            if spread is not None:
                r = (a.square() + spread).sqrt()
                # (a + r) / 2 loses all digits for very negative a; its conjugate form does not.
                z = torch.where(a > 0, 0.5 * (a + r), 0.5 * spread / (r - a))
                p = z / r
                layers.append((a, r))
            else:
                z, p = log1p_exp(a), torch.sigmoid(a)
                layers.append((a, a))
            slopes.append(p)
        nu, nubar = self.chain(slopes)
        value = (self.weights * z).sum(dim=-1)  # type: ignore[operator]
        return Smoothed(value, torch.cat(nu, dim=-1), (layers, slopes, nubar))

    def initial_lag(self, smoothed: Smoothed) -> tuple[Tensor, ...] | None:
        """Return t_l = a_l / r_l in [-1, 1]; None for softplus."""
        return None if self.softplus else tuple(a / r for a, r in smoothed.cache[0])

    def _curvatures(self, smoothed: Smoothed, lag: tuple[Tensor, ...] | None) -> list[Tensor]:
        layers, slopes, _ = smoothed.cache
        if lag is None:
            return [p * (1 - p) for p in slopes]
        return [(1 - t * a / r) / (2 * r) for (a, r), t in zip(layers, lag, strict=True)]

    def add_hessian(self, total: Tensor, smoothed: Smoothed, lag: tuple[Tensor, ...] | None) -> None:
        """Add sum_l J_l' diag(nubar_l k_l) J_l with J_1 = W_1, J_l = W_l + U_l diag(p_{l-1}) J_{l-1}.

        Of sparse maps dense copies are made, so for small networks alone.
        """
        _, slopes, nubar = smoothed.cache
        weights = [(bar * k)[:, 0] for bar, k in zip(nubar, self._curvatures(smoothed, lag), strict=True)]
        mixings = [dense(matrix) for matrix in self.mixing]
        first, *rest = self.layer_maps()
        first.add_gram(total, weights[0])
        # The J' are kept, (N, n, h_l), so that multiplying by a shared U_l is one matrix product for many contexts; not
        # for all at once, so that the intermediate results stay in the processor's cache.
        size, entries = total.shape[0], self.map.dim * max(self.widths)
        piece = max(1, CACHED_ENTRIES // entries)
        for start in range(0, size if rest else 0, piece):
            here = slice(start, start + piece)
            jacobian = first.matrix[_rows(first.matrix, here)].mT
            for level, layer in enumerate(rest, start=1):
                mixing, slope = mixings[level - 1], slopes[level - 1]
                jacobian = (jacobian * slope[_rows(slope, here)]) @ transposed(mixing[_rows(mixing, here)])
                jacobian = jacobian.add_(layer.matrix[_rows(layer.matrix, here)].mT)
                weight = weights[level][_rows(weights[level], here)].unsqueeze(1)
                total[here].baddbmm_(jacobian * weight, jacobian.mT)

    def curvature(self, smoothed: Smoothed, lag: tuple[Tensor, ...] | None, du: Tensor) -> Tensor:
        """Return the product with the Hessian in u: da_l = du_l + U_l p da_{l-1} forwards, its transpose backwards."""
        _, slopes, nubar = smoothed.cache
        bent: list[Tensor] = []
        moved: Tensor | None = None
        for level, (part, bar, k) in enumerate(
            zip(du.split(self.widths, dim=-1), nubar, self._curvatures(smoothed, lag), strict=True)
        ):
            da = part if moved is None else part + forward(self.mixing[level - 1], moved)
            bent.append(bar * k * da)
            moved = slopes[level] * da
        for level in range(len(bent) - 2, -1, -1):
            bent[level] = bent[level] + slopes[level] * adjoint(self.mixing[level], bent[level + 1])
        return torch.cat(bent, dim=-1)

    def layer_maps(self) -> list[DenseMap]:
        """Return the maps W_1, ..., W_L, views of the stacked map."""
        dense = self.map.to_dense()
        matrix = dense.matrix
        return made_once(dense._cache, "layers", lambda: [DenseMap(m) for m in matrix.split(self.widths, 1)], matrix)

    def advance_lag(self, smoothed: Smoothed, lag: tuple[Tensor, ...] | None, du: Tensor) -> tuple[Tensor, ...] | None:
        """Return t after the linearised condition r t = a, clipped to [-1, 1]."""
        if lag is None:
            return None
        layers, slopes, _ = smoothed.cache
        moved: Tensor | None = None
        advanced = []
        for level, part in enumerate(du.split(self.widths, dim=-1)):
            da = part if moved is None else part + forward(self.mixing[level - 1], moved)
            (a, r), t = layers[level], lag[level]
            advanced.append((a / r + (1 - t * a / r) / r * da).clamp(-1, 1))
            moved = slopes[level] * da
        return tuple(advanced)

    def lagged_dual(self, smoothed: Smoothed, lag: tuple[Tensor, ...] | None) -> Tensor:
        """Return the chain of the slopes (1 + t) / 2."""
        if lag is None:
            return smoothed.dual
        return torch.cat(self.chain([0.5 * (1 + t) for t in lag])[0], dim=-1)

    def implicit_dual(self, u: Tensor, smoothed: Smoothed, lag: tuple[Tensor, ...] | None) -> Tensor:
        """Return the chain of the slopes (1 + t) / 2 as r(a) t = a moves it, u_l by U_l z_{l-1} as well."""
        if lag is None:
            return self.subgradient(u)
        layers, slopes, _ = smoothed.cache
        moved = [*u.split(self.widths, dim=-1)]
        for level, matrix in enumerate(self.mixing, start=1):
            z = slopes[level - 1] * layers[level - 1][1]  # p r
            moved[level] = moved[level] + forward(matrix, z)
        du = torch.cat(moved, dim=-1)
        return self.lagged_dual(smoothed, lag) + self.curvature(smoothed, lag, du - du.detach())

    def piece(self, smoothed: Smoothed, lag: tuple[Tensor, ...] | None) -> Piece:
        """Return which units are on, off or at their kink; a softplus network is smooth."""
        return super().piece(smoothed, lag) if lag is None else NetworkPiece.of(smoothed, lag)

    def envelope(self, u: Tensor, smoothed: Smoothed, lag: tuple[Tensor, ...] | None) -> Tensor:
        """Return c'z_L with every unit's slope (1 + t) / 2 held; softplus networks return themselves."""
        if lag is None:
            return self.value(u)
        z: Tensor | None = None
        for level, (part, t) in enumerate(zip(u.split(self.widths, dim=-1), lag, strict=True)):
            z = 0.5 * (1 + t) * (part if z is None else part + forward(self.mixing[level - 1], z))
        return (self.weights * z).sum(dim=-1)  # type: ignore[operator]

    # -- CVXPY -----------------------------------------------------------------------------------------

    def expression(self, u: cp.Expression, data: dict[str, Coefficient]) -> Convex:
        """Return c'z_L as nested atoms."""
        act = cp.logistic if self.softplus else cp.pos
        z: cp.Expression | None = None
        for level, part in enumerate(self._split(u)):
            z = act(part if z is None else part + self._mixing(level + 1, data) @ z)
        return cp.sum(cp.multiply(data["weights"], z))

    def epigraph(self, u: cp.Expression, data: dict[str, Coefficient]) -> tuple[Convex, list[cp.Constraint]]:
        """Return the paper's LP lift: min c'z_L over z_l >= act(u_l + U_l z_{l-1}) with variables z_l."""
        constraints: list[cp.Constraint] = []
        z: cp.Variable | None = None
        for level, part in enumerate(self._split(u)):
            a = part if z is None else part + self._mixing(level + 1, data) @ z
            z = cp.Variable(self.widths[level], nonneg=True, name=f"z{level + 1}")
            constraints.append(z >= (cp.logistic(a) if self.softplus else a))
        return data["weights"] @ z, constraints

    def cones(self, builder: ConeBuilder, u: Affine, data: dict[str, np.ndarray]) -> Affine:
        """Return c'z_L over z_l >= act(u_l + U_l z_{l-1}): linear rows for the ReLU, exponential cones for softplus."""
        z: Affine | None = None
        for level, part in enumerate(self._split(u), start=1):
            a = part if z is None else part + z.times(self._mixing(level, data))
            z = builder.variable(f"z{level}", part.size)
            if self.softplus:
                builder.above_log1p_exp(f"layer{level}", z, a)
            else:
                builder.require(f"layer{level}", "nonneg", z - a)
                builder.require(f"active{level}", "nonneg", z)
        return z.times(data["weights"][None])  # type: ignore[union-attr]

    def _mixing(self, level: int, data: Mapping[str, Any]) -> Any:
        """Return U_level as `data` has it, a SciPy matrix where it is a map."""
        matrix = self.mixing[level - 2]
        return data[f"U{level}"] if isinstance(matrix, Tensor) else matrix.to_sparse()

    def _split(self, u: Any) -> list:
        """Return u_1, ..., u_L of a CVXPY or an affine expression."""
        stops = np.cumsum(self.widths)
        return [u[stop - width : stop] for stop, width in zip(stops, self.widths, strict=True)]

    # -- compiled code ---------------------------------------------------------------------------------

    @property
    def softplus(self) -> bool:
        """Whether the units are softplus."""
        return self.activation == "softplus"

    @property
    def curvature_kind(self) -> CurvatureKind:  # type: ignore[override]
        """A ReLU network has no curvature but at its kinks."""
        return "continuous" if self.softplus else "none"

    def structure(self) -> Structure:
        """Return that the rows of the first layer act by their own curvature, the others through their Jacobian."""
        deep = len(self.widths) > 1
        return Structure(self.widths[0], scratch=2 * self.map.dim * max(self.widths) if deep else 0)

    def unpack_lag(self, rows: Tensor) -> tuple[Tensor, ...] | None:
        """Return t_l layer by layer; None for softplus."""
        return None if self.softplus else rows.split(self.widths, dim=-1)


def _rows(tensor: Tensor, here: slice) -> slice:
    """Return the slice for a tensor that may be shared by all contexts."""
    return here if tensor.shape[0] > 1 else slice(None)
