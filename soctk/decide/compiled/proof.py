"""Values and lower bounds of decisions over polyhedra in compiled code, from points and dual points found elsewhere.

The iterations over a polyhedron work in other coordinates than the user's (`soctk.decide.reduction`). Here nothing is
taken over from them but points, dual points and multipliers: the function is the one given, in all of its coordinates.
"""

from __future__ import annotations

from soctk.decide.compiled.arrays import ARRAYS
from soctk.decide.compiled.certificate import bound, reaches, slope, value_at
from soctk.decide.compiled.dispatch import problem_of
from soctk.decide.compiled.iteration import load_lane
from soctk.decide.compiled.terms import references
from soctk.simd.options import called_from_python
from soctk.simd.records import record_of

work_of = record_of(ARRAYS, "memory")


def make_prove(kinds: int):
    """Return the function that is called from outside; `kinds` as `make_advance_all`'s."""

    def prove(layout, shared, common, sides, data, x, caches, shift, scratch, answers):
        """Fill values and bounds.

        Args:
            layout, shared, common, sides, data, scratch: as `make_advance_all`'s, of a set of bounds.
            x: points, (N, n).
            caches: what a pass left with the dual points, (N, cache_size).
            shift: what is added to each slope, (N, n).
            answers: filled with values and bounds, (N, 2).
        """
        work = work_of(layout, scratch)
        problem = problem_of(kinds, layout, shared[0], common, work.held_sides, work.held_data)
        reaches(problem)
        for i in range(x.shape[0]):
            load_lane(data[i], work.held_data, 0)
            load_lane(sides[min(i, sides.shape[0] - 1)], work.held_sides, 0)
            references(problem, work)
            answers[i, 0] = value_at(problem, work, x[i], work.trial, work.here)
            here, g = work.here, work.g
            for k in range(here.size):
                here[k] = caches[i, k]
            slope(problem, here, g)
            for j in range(problem.n):
                g[j] += shift[i, j]
            answers[i, 1] = bound(problem, g, here, work.point)

    return called_from_python(prove)
