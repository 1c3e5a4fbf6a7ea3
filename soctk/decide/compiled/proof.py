"""Points, values and lower bounds over polyhedra as given, in compiled code, from what was found in free coordinates.

The iterations over a polyhedron work in other coordinates than the user's (`soctk.decide.free_coordinates`). Here
nothing is taken over from them but points, dual points and multipliers: the function is the one given, in all of its
coordinates, and so are the rows (`soctk.decide.compiled.original_rows`).
"""

from __future__ import annotations

import numpy as np

from soctk.decide.compiled.arrays import ARRAYS
from soctk.decide.compiled.certificate import bound, reaches, slope, value_at
from soctk.decide.compiled.dispatch import problem_of
from soctk.decide.compiled.iteration import load_lane
from soctk.decide.compiled.original_rows import recover, row_of
from soctk.decide.compiled.terms import references
from soctk.sets.rounding import FEASIBLE
from soctk.simd.options import called_from_python, compiled
from soctk.simd.records import record_of

work_of = record_of(ARRAYS, "memory")


def make_prove(kinds: int):
    """Return the function that is called from outside; `kinds` as `make_advance_all`'s."""

    def prove(layout, shared, common, data, memory, sets, found, empty, scratch, answers):
        """Fill points, multipliers of rows, values and bounds.

        Args:
            layout, shared, common, data, memory: as `make_advance_all`'s, of a set of bounds that are filled in here.
            sets: matrices, places, ends and right-hand sides of the polyhedra, as `recover` has them.
            found: points, what passes left beside the dual points, and multipliers, (N, any) each.
            empty: where the multipliers may prove that there is no point: the slope counts as 0, and there is neither
                value nor bound, bool (N,).
            scratch: as `recover`'s.
            answers: x, y and w, filled as by `recover`, (N, any) each; and values, bounds, what these add beside w'x,
                and how far points are outside, (4, N).
        """
        matrices, places, ends, given = sets
        points, passes, multipliers = found
        x, y, w, out = answers
        work, lo, hi = work_of(layout, memory), given[4], given[5]
        for i in range(x.shape[0]):
            if i < shared.shape[0]:  # matrices of its own, or the one set of all
                problem = problem_of(kinds, layout, shared[i], common, work.held_sides, work.held_data)
                furthest(problem, lo, hi)
                reaches(problem)
            load_lane(data[i], work.held_data, 0)
            for j in range(problem.n):
                problem.lo[j], problem.hi[j] = lo[row_of(lo, i), j], hi[row_of(hi, i), j]
            references(problem, work)
            here, g = work.here, work.g
            for k in range(here.size):
                here[k] = passes[i, k]
            slope(problem, here, g)
            if empty[i]:
                for j in range(problem.n):
                    g[j] = 0.0
            own = points[i], g, multipliers[i]
            beside, share = recover(matrices, places, ends, given, own, scratch, i, x[i], y[i], w[i])
            lower = bound(problem, w[i], here, work.point) + beside
            value = value_at(problem, work, x[i], work.trial, work.other)
            out[0, i] = value if share <= FEASIBLE and not empty[i] else np.inf
            out[1, i] = -np.inf if empty[i] or np.isnan(lower) else lower
            out[2, i], out[3, i] = beside, share

    return called_from_python(prove)


@compiled
def furthest(problem, lo, hi):
    """Fill the largest |x_j| within any of the bounds (1 or N, n), and their sum."""
    most = 0.0
    for j in range(problem.n):
        largest = 0.0
        for i in range(lo.shape[0]):
            largest = max(largest, abs(lo[i, j]))
        for i in range(hi.shape[0]):
            largest = max(largest, abs(hi[i, j]))
        problem.largest[j] = largest
        most += largest
    problem.most = most
