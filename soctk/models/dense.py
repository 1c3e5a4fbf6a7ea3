"""The dense SOC-ICNN family: ReLU, Softplus, Quad, Norm and SOC as one class with branches on or off.

    f(x; theta) = b0(theta) + v(theta)'x + c(theta)'z_L(x; theta)
                + sum_h alpha_h(theta) / 2 ||B_h x + e_h(theta)||^2
                + sum_g lambda_g(theta) ||A_g x + d_g(theta)||
                + sum_k lambda_k(theta) sqrt((a_k'x + d_k(theta))^2 + kappa_k^2)

(paper eq. unified_soc_icnn; the last sum is conic branches with one constant row, "hyperbolic" here). The
matrices W, U, B, A are shared by all contexts; theta moves every other coefficient, affinely where its sign
is free and through softplus where it must be non-negative. `conditioning="affine"` keeps the weights c, alpha and
lambda constant, `conditioning="additive"` v as well: the published setting. With `context_units` the offsets and
weights are affine in (theta, tanh(F theta + f)) in place of theta, with one F and f for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from soctk.checks import as_counts, as_index, check_choice, check_count, check_flag, check_sequence, seeded
from soctk.conditioning import AffinePart, Conditioning, inverse_softplus, weights_of
from soctk.context_units import ContextUnits
from soctk.forms.context_map import ContextMap, Part
from soctk.models.centred import (
    CentredShape,
    CentredWeights,
    number_of,
    place_affine,
    place_constants,
    place_offset,
    place_weight,
)
from soctk.models.initial import ADDED_WEIGHT, Hyperbolics, InitialWeights
from soctk.models.reductions import smaller_than
from soctk.surrogate import ConvexSurrogate
from soctk.terms import Network, Norms, Quadratic
from soctk.terms.network import Activation
from soctk.traits import Reduction, TrainingTraits


class SOCICNN(ConvexSurrogate):
    """A dense input-convex network with quadratic and conic branches.

    Args:
        dim: the decision dimension n.
        context_dim: the context dimension p; 0 for none.
        hidden: backbone widths h_1, ..., h_L; () for no backbone.
        quadratics: rows m_h of each quadratic block ||B_h x + e_h||^2; () for no quadratic branch.
        diagonal: adds the quadratic block 1/2 ||diag(g) x + e||^2.
        diagonal_weights: whether it is n blocks of one row, each with a weight alpha of its own.
        norms: rows k_g of each conic block ||A_g x + d_g||; () for none.
        hyperbolics: number of hyperbolic blocks.
        activation: "relu" or "softplus".
        passthrough: every hidden layer sees x; otherwise only the first does.
        linear: whether the affine part v'x exists.
        conditioning: "full", "affine" or "additive", see the module.
        ridges: ridge functions of the context in each entry of v (`soctk.conditioning.AffinePart`).
        affine_hidden: hidden units of b0's response to the context.
        slope_hidden: hidden units of v's response to the context, shared by its entries, beside the ridges.
        level_squares: whether b0 is quadratic in the context beside them.
        context_units: hidden units of the context that offsets and weights are affine in beside the context itself.
        structures: sets of blocks, the smallest first, of which `fit` chooses one on validation data. Blocks are
            named "diagonal", "quadratic0", ..., "norm0", ..., "hyperbolics" and "backbone"; those in no set are always
            on. Nothing to choose by default.
        centred: how many of the structures, the first ones, are learned with one centre for all their branches
            (`soctk.learn.centred`): each one quadratic block, "diagonal" or of n rows, and beyond that a norm, of which
            the last row becomes a constant, or "hyperbolics".
        structure: index of the structure taken now; the last by default.
        without: blocks that it goes without all the same: `fit` found that it needs none of them.
        seed: of the initial weights.
        dtype: of the weights.

    Raises:
        ValueError: a size below 1 or an unknown activation or conditioning.
    """

    convex_by_construction = True

    def __init__(
        self,
        dim: int,
        context_dim: int = 0,
        *,
        hidden: Sequence[int] = (8,),
        quadratics: Sequence[int] = (),
        diagonal: bool = False,
        diagonal_weights: bool = False,
        norms: Sequence[int] = (),
        hyperbolics: int = 0,
        activation: Activation = "relu",
        passthrough: bool = True,
        linear: bool = True,
        conditioning: Conditioning = "full",
        ridges: int = 12,
        affine_hidden: int = 64,
        slope_hidden: int = 0,
        level_squares: bool = False,
        context_units: int = 0,
        structures: Sequence[Sequence[str]] = (),
        centred: int = 0,
        structure: int = -1,
        without: Sequence[str] = (),
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dim, context_dim, dtype=dtype)
        self.hidden, self.quadratics = as_counts(hidden, "hidden"), as_counts(quadratics, "quadratics")
        self.norms = as_counts(norms, "norms")
        self.diagonal, self.diagonal_weights, self.hyperbolics = diagonal, diagonal_weights, hyperbolics
        self.activation: Activation = activation
        self.passthrough, self.linear, self.conditioning, self.seed = passthrough, linear, conditioning, seed
        self.ridges, self.affine_hidden, self.slope_hidden = ridges, affine_hidden, slope_hidden
        self.level_squares = level_squares
        self._check_arguments()
        generator = seeded(seed)
        self.affine = AffinePart(
            dim,
            context_dim,
            linear=linear,
            conditioned=conditioning != "additive",
            ridges=ridges,
            hidden=affine_hidden,
            squares=level_squares,
            slope_hidden=slope_hidden,
            generator=generator,
            dtype=dtype,
        )
        make = self._initial(generator)
        self._make_backbone(make)
        self._make_quadratics(make)
        self._make_norms(make)
        self.units = ContextUnits(context_dim, dtype=dtype)
        self.units.resize(context_units, self, seed)
        check_sequence(structures, "structures")
        for blocks in structures:
            self._check_blocks(blocks, "structures")
        self.structures, self.centred = tuple(tuple(blocks) for blocks in structures), centred
        check_count(centred, "centred", minimum=0)
        self.set_structure(as_index(structure, "structure", self.structure_count), without)

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks that a structure can be made of."""
        names = ["diagonal"] if self.diagonal else []
        names += [f"quadratic{k}" for k in range(len(self.quadratics))]
        names += [f"norm{k}" for k in range(len(self.norms))]
        return (*names, *(("hyperbolics",) if self.hyperbolics else ()), *(("backbone",) if self.hidden else ()))

    @property
    def traits(self) -> TrainingTraits:
        """With branches that outweigh the backbone, or not, and structures to choose from.

        A subclass with a `config()` of its own, which need not hold the sizes, keeps those it has.
        """
        resizable = self.hyperbolics > 0 and type(self).config is SOCICNN.config
        return TrainingTraits(
            affine=self.affine,
            parts=self.parts if self._is_its_parts() else None,
            gauss_newton=sum(self.hidden) <= self.dim,
            structures=self.structure_count,
            structure=self.structure,
            without=self.without,
            set_structure=self.set_structure,
            reductions=self.reductions,
            blocks=tuple(block for block in self.blocks if block not in self._off),
            centred=self._centred,
            place_centred=self.place_centred,
            units=self.units,
            branches=self.hyperbolics if "hyperbolics" not in self._off else 0,
            set_branches=self.set_hyperbolics if resizable else None,
            take_sizes=self._take_sizes if resizable else None,
        )

    @property
    def structure_count(self) -> int:
        """The number of structures to choose from."""
        return max(1, len(self.structures))

    def set_structure(self, index: int, without: Sequence[str] = ()) -> None:
        """Take on structure `index`, without some of its blocks.

        Raises:
            ValueError: an index outside 0, ..., `structure_count` - 1, or a block that there is not.
        """
        if not 0 <= index < self.structure_count:
            raise ValueError(f"index: expected 0 to {self.structure_count - 1}, got {index}")
        self._check_blocks(without, "without")
        self.without, self.structure = tuple(without), index
        self._centred = tuple(self._centred_shape(blocks) for blocks in self.structures[: self.centred])
        active = self.structures[index] if self.structures else self.blocks
        optional = {block for blocks in self.structures for block in blocks}
        self._off = frozenset(optional.difference(active).union(self.without))
        for block in self.blocks:
            for weight in self._block_weights(block):
                weight.requires_grad_(block not in self._off)

    def reductions(self) -> list[Reduction]:
        """Return the next smaller structures: without hyperbolic blocks, or without the least direction of a norm."""
        on, norms = self.traits.blocks, {f"norm{k}": rows for k, rows in enumerate(zip(self.A, self.d, strict=True))}
        return smaller_than(on, norms, lambda block: self.set_structure(self.structure, (*self.without, block)))

    @torch.no_grad()
    def set_hyperbolics(self, count: int, seed: int = 0) -> None:
        """Take on so many hyperbolic blocks: the first of those there are, others of small weights drawn by `seed`.

        Raises:
            ValueError: a count below 1, or a model that has none.
        """
        check_count(count, "count")
        check_count(self.hyperbolics, "hyperbolics")
        make, share = self._initial(seeded(seed)), count / max(1, count - self.hyperbolics)
        made = make.hyperbolics(count, self.dim, ADDED_WEIGHT * share).behind(self._hyperbolic_parts())
        self.A_hyperbolic, self.d_hyperbolic, self.lam_hyperbolic, self.kappa = made
        self.hyperbolics = count
        self.set_structure(self.structure, self.without)

    def _hyperbolic_parts(self) -> Hyperbolics:
        return Hyperbolics(self.A_hyperbolic, self.d_hyperbolic, self.lam_hyperbolic, self.kappa)  # type: ignore[arg-type]

    def _take_sizes(self, state: Mapping[str, Tensor]) -> None:
        """Take on as many hyperbolic blocks as a state has, also where an interruption left them half replaced."""
        count = len(state["A_hyperbolic"])
        if any(len(weight) != count for weight in self._hyperbolic_parts().parameters()):
            self.set_hyperbolics(count)

    def _block_weights(self, block: str) -> list[nn.Parameter]:
        if block == "backbone":
            return weights_of(self.W, self.b, self.U_raw, self.c)
        if block == "hyperbolics":
            named = (self.A_hyperbolic, self.kappa)
            return [*(each for each in named if each is not None), *weights_of(self.d_hyperbolic)]
        if block == "diagonal":
            return [*([] if self.g is None else [self.g]), *weights_of(self.e_diagonal)]
        matrices, offsets = (self.B, self.e) if block.startswith("quadratic") else (self.A, self.d)
        return [matrices[number_of(block)], *weights_of(offsets[number_of(block)])]

    def _check_arguments(self) -> None:
        for name in ("hyperbolics", "ridges", "affine_hidden", "slope_hidden"):
            check_count(getattr(self, name), name, minimum=0)
        for name in ("diagonal", "diagonal_weights", "passthrough", "linear", "level_squares"):
            check_flag(getattr(self, name), name)
        check_choice(self.activation, "activation", get_args(Activation))
        check_choice(self.conditioning, "conditioning", get_args(Conditioning))

    def _check_blocks(self, blocks: Sequence[str], name: str) -> None:
        check_sequence(blocks, name)
        for block in blocks:
            check_choice(block, name, self.blocks)

    # -- one centre ------------------------------------------------------------------------------------

    def _centred_shape(self, blocks: tuple[str, ...]) -> CentredShape:
        free = self.linear and self.conditioning == "full" and (self.level_squares or self.context_dim == 0)
        if not free or set(self.blocks).difference(*self.structures):
            raise ValueError(
                'centred: expected conditioning="full", linear=True, level_squares=True and every block in one of the '
                "structures"
            )
        return CentredShape.of(blocks, self.dim, self.quadratics, self.norms, self.hyperbolics)

    @torch.no_grad()
    def place_centred(self, index: int, weights: CentredWeights) -> None:
        """Take on structure `index` with the weights of a function with one centre, in the model's units.

        The offset of A (x - m) is -A m.
        """
        self.set_structure(index)
        place_affine(self.affine, weights)
        branches = list(zip(weights.matrices, weights.kappa, weights.weights, strict=True))
        for block in self.structures[index]:
            number = number_of(block)
            if block == "hyperbolics":
                matrix, taken = torch.cat([rows for rows, *_ in branches[-self.hyperbolics :]]), self.hyperbolics
                self.A_hyperbolic.copy_(matrix)  # type: ignore[union-attr]
                place_offset(self.d_hyperbolic, -matrix @ weights.center)  # type: ignore[arg-type]
                self.kappa.copy_(weights.kappa[-taken:])  # type: ignore[union-attr]
                place_constants(self.lam_hyperbolic, slice(None), weights.weights[-taken:])  # type: ignore[arg-type]
            elif block.startswith("norm"):
                rows, kappa, weight = branches[0]
                offset = torch.nn.functional.pad(-rows @ weights.center, (0, 0, 0, 1))
                offset[-1, -1] = kappa  # the last row is a constant
                self.A[number].copy_(torch.nn.functional.pad(rows, (0, 0, 0, 1)))
                place_offset(self.d[number], offset)
                place_constants(self.lam, slice(number, number + 1), weight.reshape(1))  # type: ignore[arg-type]
            else:
                self._place_quadratic(block, weights)

    def _place_quadratic(self, block: str, weights: CentredWeights) -> None:
        offset = -weights.factor @ weights.center
        if block == "diagonal":
            self.g.copy_(weights.factor.diagonal())  # type: ignore[union-attr]
            place_offset(self.e_diagonal, offset)  # type: ignore[arg-type]
        else:
            self.B[number_of(block)].copy_(weights.factor)
            place_offset(self.e[number_of(block)], offset)
        last, k = len(self.quadratics), number_of(block)
        places = slice(last, None) if block == "diagonal" else slice(k, k + 1)
        place_weight(self.alpha, places, *weights.alpha)  # type: ignore[arg-type]

    # -- weights ---------------------------------------------------------------------------------------

    def _initial(self, generator: torch.Generator) -> InitialWeights:
        return InitialWeights(generator, self.context_dim, self.conditioning, self.dtype)

    def _make_backbone(self, make: InitialWeights) -> None:
        widths = self.hidden
        count = 0 if not widths else len(widths) if self.passthrough else 1
        self.W = nn.ParameterList(make.normal(width, self.dim) for width in widths[:count])
        self.b = nn.ModuleList(make.offset(width, 0.5) for width in widths)
        # Softplus of these are the mixing weights U_2, ..., U_L: a layer's incoming weights sum to about one.
        self.U_raw = nn.ParameterList(
            make.around(inverse_softplus(1.0 / inner), outer, inner) for inner, outer in pairwise(widths)
        )
        self.c = make.nonnegative(widths[-1], 1.0 / widths[-1]) if widths else None

    def _make_quadratics(self, make: InitialWeights) -> None:
        # 1/2 sum_i (g x_i)^2 of standardised coordinates has spread g^2 sqrt(n / 2): g = n^(-1/4) makes it order one.
        scale = self.dim**-0.25
        self.g = nn.Parameter(torch.full((self.dim,), scale, dtype=self.dtype)) if self.diagonal else None
        self.e_diagonal = make.offset(self.dim, 0.0) if self.diagonal else None
        self.B = nn.ParameterList(make.orthogonal(rows, self.dim, scale) for rows in self.quadratics)
        self.e = nn.ModuleList(make.offset(rows, 0.0) for rows in self.quadratics)
        blocks = len(self.quadratics) + int(self.diagonal)
        count = blocks + (self.dim - 1 if self.diagonal and self.diagonal_weights else 0)
        self.alpha = make.nonnegative(count, 1.0 / blocks) if blocks else None

    def _make_norms(self, make: InitialWeights) -> None:
        self.A = nn.ParameterList(make.normal(rows, self.dim) for rows in self.norms)
        self.d = nn.ModuleList(make.offset(rows, 0.3) for rows in self.norms)
        self.lam = make.nonnegative(len(self.norms), 0.3 / len(self.norms)) if self.norms else None
        count = self.hyperbolics
        made = make.hyperbolics(count, self.dim, 0.5) if count else (None, None, None, None)
        self.A_hyperbolic, self.d_hyperbolic, self.lam_hyperbolic, self.kappa = made

    # -- the function ----------------------------------------------------------------------------------

    def _context_map(self) -> ContextMap:
        return ContextMap.of(self.affine, self.parts(), self.units)

    def _is_its_parts(self) -> bool:
        """Return whether no subclass computes something else."""
        own = type(self)._context_map is SOCICNN._context_map
        return own and not self._overrides("_conic_form") and not self._overrides("_value")

    def parts(self) -> list[Part]:
        """Return what the terms are made of, in their order."""
        return [*self._network(), *self._quadratic(), *self._norms()]

    def _network(self) -> list[Part]:
        if "backbone" in self._off or self.c is None:
            return []
        mixing = tuple(softplus(raw).unsqueeze(0) for raw in self.U_raw)
        more = {"mixing": mixing, "widths": self.hidden, "activation": self.activation}
        matrices, used = list(self.W), None
        if len(self.W) < len(self.b):
            used = self.hidden[0]
            matrices.append(matrices[0].new_zeros(sum(self.hidden[1:]), self.dim))
        return [Part(Network, more, matrices, list(self.b), self.c, range(self.hidden[-1]), used)]

    def _quadratic(self) -> list[Part]:
        index = [k for k in range(len(self.quadratics)) if f"quadratic{k}" not in self._off]
        matrices, offsets = [self.B[k] for k in index], [self.e[k] for k in index]
        if "diagonal" not in self._off and self.g is not None and self.e_diagonal is not None:
            index.append(len(self.quadratics))
            matrices.append(torch.diag(self.g))
            offsets.append(self.e_diagonal)
        if self.alpha is None or not index:
            return []
        blocks = [matrix.shape[0] for matrix in matrices]
        if self.diagonal_weights and index[-1] == len(self.quadratics):  # a block for every coordinate
            blocks[-1:] = [1] * self.dim
            index.extend(range(index[-1] + 1, index[-1] + self.dim))
        spread = [k for k, rows in zip(index, blocks, strict=True) for _ in range(rows)]
        return [Part(Quadratic, {"blocks": tuple(blocks)}, matrices, offsets, self.alpha, spread)]

    def _norms(self) -> list[Part]:
        parts = []
        for size in dict.fromkeys(self.norms):  # groups of equal size are one term
            index = [k for k, rows in enumerate(self.norms) if rows == size and f"norm{k}" not in self._off]
            if index and self.lam is not None:
                more = {"kappa": self.lam.floor.new_zeros(1, 1, len(index)), "size": size}
                parts.append(Part(Norms, more, [self.A[k] for k in index], [self.d[k] for k in index], self.lam, index))
        if "hyperbolics" not in self._off and self.A_hyperbolic is not None and self.kappa is not None:
            more = {"kappa": self.kappa.reshape(1, 1, -1), "size": 1}
            matrices, offsets, index = [self.A_hyperbolic], [self.d_hyperbolic], range(self.hyperbolics)
            parts.append(Part(Norms, more, matrices, offsets, self.lam_hyperbolic, index))  # type: ignore[arg-type]
        return parts

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        blocks = ("hidden", "quadratics", "diagonal", "diagonal_weights", "norms", "hyperbolics", "activation")
        affine = ("linear", "ridges", "affine_hidden", "slope_hidden", "level_squares")
        more = ("passthrough", *affine, "conditioning", "context_units")
        names = ("dim", "context_dim", *blocks, *more, "seed", "structures", "centred", "structure", "without")
        return {name: getattr(self, name) for name in names}
