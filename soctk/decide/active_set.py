"""Derivatives of decisions at kinks and bounds: what a solution rests at, and the equations of it.

A solution x rests on a smooth piece of f (`soctk.terms.piece`), at some kinks and some bounds. As long as that is so,
it solves

    min of f on the piece    over e(x) = 0: those kinks, the distances to those bounds, the set's equalities.

With the multipliers y of e held where they are, g the gradient, H the Hessian on the piece and E the derivative of e,
the implicit function theorem gives

    [H E'] [dx]     [dg]
    [E 0 ] [dy] = - [de]

dg and de the changes at fixed x. At a vertex E alone is square. This is right where the matrix is regular and
complementarity strict: every multiplier inside its range, every other unit, norm and coordinate away from its kink or
bound. Both are verified at the solution itself, which one Newton step on the same equations leads to; f being convex,
that is then the only minimiser, and the derivative its derivative (Fiacco 1983, theorem 3.2.2). Elsewhere a decision
jumps or turns with the smallest change, and nothing is said.

In the limit the barrier's system (soctk.decide.implicit) gives the same; but in rounded numbers its weights of 1 / mu
at kinks wipe out whatever is flat beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from soctk.decide.ends import Ends, redundant, sides
from soctk.decide.result import Final
from soctk.forms.conic_form import ConicForm, Dual
from soctk.terms.base import Term
from soctk.terms.piece import Piece

LARGEST_CONDITION = 1e10
"""Of the scaled matrix: rounding errors of 1e-16 then move a derivative by 1e-6 of its size at most."""
SMALLEST_MARGIN = 1e-9
"""Of multipliers, in units of their range or of the gradient, and of distances in x."""
LARGEST_RESIDUAL = 1e-6
"""Of the gradient after the Newton step, in units of the numbers that it is the sum of."""
ROUNDING = 1e-14
"""Of the largest of these, where one is far smaller."""
LARGEST_TURN = 1e-3
"""Of the Hessian on the Newton step, which is then near enough to that of the solution."""
LEAST_CURVATURE = 1e-8
"""By how much it changes the gradient over the size of x, in units of the gradient; less is taken as none."""
FIRM = 1e3
"""Of a multiplier over the room that is left, in units of f's curvature there: its end gives way by a thousandth."""
STEPS = 6
"""Newton steps, on one piece or on others, before a decision is taken to have no derivative that is known."""
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Place:
    """What N points rest at: the rows of e are those of all terms with kinks, all directions, all equalities.

    Attributes:
        pieces: of f's terms.
        bounds: of the set.
        side: 1 for directions at their lower end, -1 at their upper one, 0 between, (N, n + m).
        prices: E'nu, nu the equalities' multipliers, (N, n); 0 where there are none.
    """

    pieces: list[Piece]
    bounds: Ends
    side: Tensor
    prices: Tensor

    @classmethod
    def of(cls, form: ConicForm, bounds: Ends, final: Final) -> Place:
        """Return what the last iterates rest at."""
        points = final.x.unsqueeze(1)
        terms = zip(form.terms, final.lags, strict=True)
        pieces = [term.piece(term.smooth_at(term.inner(points), final.mu), lag) for term, lag in terms]
        place = cls(pieces, bounds, sides(bounds, final), torch.zeros_like(final.x))
        if bounds.rows is None:
            return place
        balance = final.s_lo - place.linearized(form, bounds, final.x)[0]
        balance = balance if final.s_hi is None else balance - final.s_hi
        return dataclasses.replace(place, prices=balance @ bounds.rows.mT @ bounds.rows)

    def resting(self) -> Tensor:
        """Return which rows of e are zero, bool; not equalities if all coordinates are at bounds, which imply them."""
        kinks = [piece.kinks[:, 0] for piece in self.pieces]
        n = self.prices.shape[1]
        equalities = (self.side[:, :n] == 0).any(dim=1, keepdim=True).expand(-1, len(self._equalities))
        return torch.cat([*kinks, self.side != 0, equalities], dim=1)

    @property
    def directions(self) -> slice:
        """Where those of the set stand among the rows of e."""
        first = sum(piece.kinks.shape[-1] for piece in self.pieces)
        return slice(first, first + self.side.shape[1])

    @property
    def _equalities(self) -> Tensor:
        return self.prices[:0] if self.bounds.rows is None else self.bounds.rows

    def _parts(self, form: ConicForm, x: Tensor) -> Iterator[tuple[Piece, Term, Tensor, slice]]:
        """Yield every piece with its term, the term's u at x, (N, 1, K), and where it stands among the rows of e."""
        first = 0
        for piece, term in zip(self.pieces, form.terms, strict=True):
            here = slice(first, first + piece.kinks.shape[-1])
            yield piece, term, term.inner(x.unsqueeze(1)), here
            first = here.stop

    def _values(self, x: Tensor) -> Tensor:
        return torch.cat([x, x @ self.bounds.R.mT], dim=1)

    def linearized(self, form: ConicForm, ends: Ends, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return g with the prices (N, n) and e at points x (N, n), as functions of what form and ends depend on."""
        parts = list(self._parts(form, x))
        duals = tuple(piece.dual(term, u) for piece, term, u, _ in parts)
        kinks = [piece.equations(term, u)[:, 0] for piece, term, u, _ in parts]
        rooms = self._values(x) - torch.where(self.side < 0, ends.high, ends.low)
        met = x.new_zeros(x.shape[0], len(self._equalities))  # every iterate meets them
        return form.slope(Dual(duals)).squeeze(1) + self.prices, torch.cat([*kinks, rooms, met], dim=1)

    def sizes(self, form: ConicForm, x: Tensor) -> Tensor:
        """Return the largest number that each entry of g is a sum of, (N, n)."""
        return largest_parts(form, [piece.dual(term, u) for piece, term, u, _ in self._parts(form, x)])

    def matrix(self, form: ConicForm) -> Tensor:
        """Return the derivative of e, (N, rows, n)."""
        size = len(self.prices)
        kinks = [piece.matrix(term) for piece, term in zip(self.pieces, form.terms, strict=True)]
        parts = (*kinks, self.bounds.normals.unsqueeze(0), self._equalities.unsqueeze(0))
        return torch.cat([part.expand(size, -1, -1) for part in parts], dim=1)

    def hessian(self, form: ConicForm, x: Tensor) -> Tensor:
        """Return H at points x, (N, n, n)."""
        total = x.new_zeros(*x.shape, x.shape[1])
        for piece, term, u, _ in self._parts(form, x):
            piece.add_hessian(term, total, u)
        return total

    def margin(self, form: ConicForm, x: Tensor, y: Tensor, lengths: Tensor, size: Tensor) -> Tensor:
        """Return the least distance of x and of the multipliers, moved by y, from other pieces and bounds, (N,).

        Args:
            form: detached.
            x: (N, n).
            y: (N, rows).
            lengths: of the rows of e's derivative, (N, rows).
            size: of the gradient, (N, 1).
        """
        reach, worst = x.abs().amax(dim=1, keepdim=True).clamp(min=1.0), []
        for piece, term, u, here in self._parts(form, x):
            away, inside = piece.margins(term, u, y[:, None, here])
            worst += [away[:, 0] / (lengths[:, here] * reach).clamp(min=TINY), inside[:, 0]]
        at = self._values(x)
        room = torch.minimum(at - self.bounds.low, self.bounds.high - at) / reach
        price = -self.side * y[:, self.directions] / size
        worst += [torch.where(self.side == 0, room, price)]
        return torch.cat(worst, dim=1).amin(dim=1)

    def adjusted(self, form: ConicForm, x: Tensor, y: Tensor, among: Tensor) -> Place | None:
        """Return a place nearer to the solutions of the instances `among`, bool (N,); None for no other.

        What has a multiplier of the wrong sign is left, and what was passed is rested at; x and y as in `margin`.
        """
        pieces = [piece.adjusted(term, u, y[:, None, here], among) for piece, term, u, here in self._parts(form, x)]
        at, among = self._values(x), among.unsqueeze(1)
        left = among & (self.side * y[:, self.directions] > 0)
        met = (at < self.bounds.low).to(at.dtype) - (at > self.bounds.high).to(at.dtype)
        side = torch.where(left, 0.0, torch.where(among & (self.side == 0), met, self.side))
        if all(new is old for new, old in zip(pieces, self.pieces, strict=True)) and torch.equal(side, self.side):
            return None
        return dataclasses.replace(self, pieces=pieces, side=side)


@dataclass(frozen=True, eq=False)
class ActiveSet:
    """The derivatives of N decisions.

    Attributes:
        place: what they rest at.
        point: where the equations hold, (N, n).
        multipliers: of e, beside those that pieces hold, (N, rows); 0 where not verified.
        rows: where that stands among the rows of e, (N, r), others behind where there are fewer.
        inverse: the first n columns of the inverse of the matrix above, (N, n + r, n).
        verified: whether the derivative was shown to be right, bool (N,).
    """

    place: Place
    point: Tensor
    multipliers: Tensor
    rows: Tensor
    inverse: Tensor
    verified: Tensor

    def equations(self, form: ConicForm, ends: Ends) -> Tensor:
        """Return (g + E'y, e) as a function of what form and ends depend on, y held, (N, n + r)."""
        g, e = self.place.linearized(form, ends, self.point)
        g = g + _times(self.place.matrix(form).mT, self.multipliers)
        return torch.cat([g, e.gather(1, self.rows)], dim=1)

    def solve(self, incoming: Tensor) -> Tensor:
        """Return minus the derivative of <incoming, x> in (g, e): (N, n) -> (N, n + r)."""
        return _times(self.inverse, incoming)


@torch.no_grad()
def find_active_set(form: ConicForm, bounds: Ends, final: Final, *, moving: bool) -> ActiveSet:
    """Return what the solutions of a detached form rest at, first by where the iterations ended.

    Near a kink or bound that shows it only roughly: where the Newton step leads out of the piece, the next is tried,
    and where the gradient turns on the way, as near the apex of a norm, another step.

    More normals of a set than are independent may meet there, at a degenerate vertex. As long as all of them have
    multipliers, a decision stays on all: those that follow from others are left out, and whether they have is told by
    the last iterate, whose multipliers tend to the middle of all that there are. Not if the ends are `moving`: one that
    moves alone parts them.
    """
    place, point = Place.of(form, bounds, final), final.x
    found, x, y, missed = _solve_at(place, form, bounds, final, point, moving=moving)
    for _ in range(STEPS - 1):
        if bool(found.verified.all()):
            break
        nearer = place.adjusted(form, x, y, ~found.verified)
        again = missed if nearer is None else missed & (nearer.resting() == place.resting()).all(dim=1)
        if nearer is None and not bool(again.any()):
            break
        place, point = nearer or place, torch.where(again.unsqueeze(1), x, point)
        found, x, y, missed = _solve_at(place, form, bounds, final, point, moving=moving)
    return found


def _solve_at(
    place: Place, form: ConicForm, bounds: Ends, final: Final, x: Tensor, *, moving: bool
) -> tuple[ActiveSet, Tensor, Tensor, Tensor]:
    """Return the derivatives at a place by one Newton step from points x (N, n).

    Returns:
        Them; x and the multipliers (N, rows) where the step leads; and whether the gradient is not zero there, (N,).
    """
    point, n = x, x.shape[1]
    resting, matrix = place.resting(), place.matrix(form)
    follows = torch.zeros_like(place.side, dtype=torch.bool) if moving else redundant(bounds, place.side)
    resting[:, place.directions] &= ~follows
    count = resting.sum(dim=1)
    rows = resting.to(torch.uint8).argsort(dim=1, descending=True)[:, : min(n, int(count.max()))]
    held = resting.gather(1, rows)
    equations = matrix.gather(1, rows.unsqueeze(-1).expand(-1, -1, n)) * held.unsqueeze(-1)
    (g, e), sizes = place.linearized(form, bounds, x), place.sizes(form, x)
    size = sizes.amax(dim=1, keepdim=True)
    least = LEAST_CURVATURE * size / x.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
    hessian = place.hessian(form, x)
    inverse, regular = _inverse(hessian, equations, held, least)
    step = -_times(inverse, torch.cat([g, e.gather(1, rows).where(held, 0.0)], dim=1))
    dx, multipliers = step[:, :n], step[:, n:]
    y = torch.zeros_like(e).scatter(1, rows, held * multipliers)
    x = x + dx
    residual = (place.linearized(form, bounds, x)[0] + _times(matrix.mT, y)).abs()
    solved = (residual <= LARGEST_RESIDUAL * sizes + ROUNDING * size).all(dim=1)
    turned = (place.hessian(form, x) - hessian).abs()
    along = hessian.diagonal(dim1=1, dim2=2).sqrt()
    solved &= (turned <= LARGEST_TURN * along.unsqueeze(2) * along.unsqueeze(1) + TINY).flatten(1).all(dim=1)
    degenerate = follows.any(dim=1, keepdim=True)
    last = torch.where(place.side > 0, final.low, 0.0 if final.high is None else final.high)
    y[:, place.directions] = torch.where(degenerate, -place.side * last, y[:, place.directions])
    room = torch.where(place.side > 0, final.values - bounds.low, bounds.high - final.values)
    curvature = hessian.diagonal(dim1=1, dim2=2).sum(dim=1, keepdim=True)
    firm = ((place.side == 0) | (last >= FIRM * curvature * room) | ~degenerate).all(dim=1)
    inside = place.margin(form, x, y, matrix.norm(dim=2), size) >= SMALLEST_MARGIN
    # More than n rows do not fit one point but by chance.
    verified = regular & solved & inside & firm & (count <= n)
    found = ActiveSet(place, point, torch.where(verified.unsqueeze(1), y, 0.0), rows, inverse[:, :, :n], verified)
    return found, x, y, regular & ~solved & x.isfinite().all(dim=1)


def largest_parts(form: ConicForm, duals: Iterable[Tensor]) -> Tensor:
    """Return the largest number that each entry of the slope at duals (N, 1, K) is a sum of, (N, n)."""
    largest = form.linear[:, 0].abs()
    for term, dual in zip(form.terms, duals, strict=True):
        largest = largest.maximum(term.map.adjoint(dual)[:, 0].abs())
    return largest.clamp(min=TINY)


def _inverse(hessian: Tensor, equations: Tensor, held: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse of the matrix above, 0 for rows that are not held, and whether it is regular, (N,)."""
    n = hessian.shape[1]
    # H and each row of E are brought to size 1 by a scaling of dx and y; an H that is nothing but rounding is not.
    unit = torch.maximum(hessian.diagonal(dim1=1, dim2=2).amax(dim=1, keepdim=True), least).sqrt()
    lengths = torch.where(held, equations.norm(dim=2), 1.0).clamp(min=TINY)
    scale = torch.cat([1 / unit.expand(-1, n), unit / lengths], dim=1)
    below = torch.cat([equations, torch.diag_embed((~held).to(hessian.dtype))], dim=2)
    matrix = torch.cat([torch.cat([hessian, equations.mT], dim=2), below], dim=1)
    matrix = scale.unsqueeze(1) * matrix * scale.unsqueeze(2)
    inverse, failed = torch.linalg.inv_ex(matrix)
    condition = torch.linalg.matrix_norm(matrix, 1) * torch.linalg.matrix_norm(inverse, 1)
    held = torch.cat([held.new_ones(held.shape[0], n), held], dim=1)
    inverse = scale.unsqueeze(1) * inverse * scale.unsqueeze(2) * held.unsqueeze(1) * held.unsqueeze(2)
    return inverse, (failed == 0) & (condition <= LARGEST_CONDITION)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
