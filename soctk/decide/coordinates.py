"""Conic forms in the coordinates x = m + S z of a set (`soctk.sets.coordinates`): g(z) = f(m + S z).

An objective is divided by about what it varies by over the set, r, and its constant is left out, since solvers compare
gaps with 1 or with the value.

What a quadratic term is at m is taken out of its square, since alpha u^2 / 2 with u between 999 and 1001 would have its
minimum decided by the last of its digits: with u = u0 + w and y0 = alpha u0

    alpha u^2 / 2 = (alpha / s^2) (s w)^2 / 2 + y0'w + y0'u0 / 2,

s the root of the largest alpha. Where y is a dual point of that square, s y + y0 is one of f's. s is a power of two,
so that multiplying by it is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soctk.forms.conic_form import ConicForm, Dual
from soctk.sets.coordinates import Coordinates, powers_of_two
from soctk.terms import Quadratic, Term


@dataclass(frozen=True, eq=False)
class Moved:
    """A form in the coordinates of a set, divided by a number.

    Attributes:
        form: g / r.
        scale: r, (N or 1,), powers of two.
        squares: what was done to each quadratic term, None for the other terms.
    """

    form: ConicForm
    scale: Tensor
    squares: tuple[Square | None, ...]

    @classmethod
    def of(cls, form: ConicForm, coordinates: Coordinates, size: Tensor | None = None) -> Moved:
        """Return the form moved; divided by about `size`, (N,), and without its constant where that is given."""
        unit, middle = (torch.from_numpy(part).to(form.linear) for part in (coordinates.unit, coordinates.middle))
        moved = form.transformed(scale=1.0, shift=0.0, x_scale=1 / unit, x_mean=-middle / unit)
        constant, linear = moved.constant, moved.linear
        terms: list[Term] = []
        squares: list[Square | None] = []
        for term in moved.terms:
            if not isinstance(term, Quadratic):
                terms.append(term)
                squares.append(None)
                continue
            square = Square.of(term)
            constant = constant + (square.y0 * term.offset).sum(dim=-1) / 2
            linear = linear + term.map.adjoint(square.y0)
            terms.append(square.taken_from(term))
            squares.append(square)
        moved = dataclasses.replace(moved, constant=constant, linear=linear, terms=tuple(terms))
        if size is None:
            return cls(moved, torch.ones(1, dtype=linear.dtype), tuple(squares))
        scale = torch.from_numpy(powers_of_two(size.numpy())).to(linear)
        moved = dataclasses.replace(moved, constant=torch.zeros_like(constant)).scaled(1 / scale)
        return cls(moved, scale, tuple(squares))

    def put_back(self, duals: Sequence[Tensor]) -> Dual:
        """Return the dual point of f from that of g / r, each (N, 1, K)."""
        scale = self.scale.reshape(-1, 1, 1)
        return Dual(
            tuple(
                scale * y if square is None else square.put_back(scale * y)
                for y, square in zip(duals, self.squares, strict=True)
            )
        )


@dataclass(frozen=True, eq=False)
class Square:
    """What is taken out of a quadratic term.

    Attributes:
        y0: its dual point at m, (N or 1, 1, K).
        size: s, a power of two near the root of the largest alpha.
    """

    y0: Tensor
    size: float

    @classmethod
    def of(cls, term: Quadratic) -> Square:
        """Return what is to be taken out of the term in z."""
        largest = term.weights.numpy().max(initial=0.0)
        return cls(term.weights * term.offset, float(powers_of_two(np.sqrt(largest))))

    def taken_from(self, term: Quadratic) -> Quadratic:
        """Return the square of what changes alone, of s w in place of w."""
        rows = term.map.apply(lambda tensor: tensor * self.size)
        weights, offset = term.weights / self.size**2, torch.zeros_like(term.offset)
        return dataclasses.replace(term, map=rows, weights=weights, offset=offset)

    def put_back(self, y: Tensor) -> Tensor:
        """Return the dual point of f from that of g, (N, 1, K)."""
        return self.size * y + self.y0
