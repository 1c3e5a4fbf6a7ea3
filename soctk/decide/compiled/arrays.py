"""What the compiled code works on: named arrays in six vectors, and a row of a table for each term.

`ARRAYS` declares them with their shapes. `shared`, `common`, `sides` and `data` make up a problem, `state` is an
iterate, `memory` the work. The last four are of lanes where several instances are treated in SIMD lanes.
"""

from __future__ import annotations

from functools import cache

from soctk.simd.tables import Shape, Table
from soctk.terms.kernel import Packs

ROW, VARIABLE, CONSTRAINT, NUMBER = ("rows",), ("n",), ("constraints",), ()

PASS: dict[str, Shape] = dict.fromkeys(("a", "inverse", "z", "p", "nubar", "y"), ROW)
"""What a pass over the terms at a point leaves for others (`soctk.terms.kernel`); y is the dual point."""

ARRAYS = Table(
    (
        # n variables, K rows, constraints of the set, terms; outer products kept; n + 2 columns of a bordered matrix;
        # numbers that terms want
        *("n", "rows", "constraints", "terms", "products", "bordered", "scratches", "jacobian_size", "pairs_size"),
        # of whole vectors, of the dual points that are kept, and of a row of the table of terms
        *("one", "six", "cache_size", "data_size", "sides_size", "state_size", "kept", "term_stride"),
    ),
    # A of all terms; numbers and matrices that terms pack follow
    shared={"A": ("rows", "n"), "A_transposed": ("n", "rows")},
    # the set, with |x|_1 and |x_i| at most, and R of its constraints; limits and the `Schedule`, its rules one after
    # the other; by how much sums may be off, and |A_k x| at most (`soctk.forms.rounding`); A_g'A_g of rows and groups
    common={
        **dict.fromkeys(("total", "has_sum", "has_hi", "most", "rounding"), NUMBER),
        **dict.fromkeys(("tol", "max_iter", "keep_final", "first_share", "last_share"), NUMBER),
        "rules": ("six",),
        "largest": VARIABLE,
        "reach": ROW,
        "outer": ("products", "n", "n"),
        "R": ("constraints", "n"),
        "R_transposed": ("n", "constraints"),
    },
    # bounds lo <= x <= hi, and R_lo <= R x <= R_hi
    sides={**dict.fromkeys(("lo", "hi"), VARIABLE), **dict.fromkeys(("R_lo", "R_hi"), CONSTRAINT)},
    # b0, v, d; the vectors that terms pack follow, term by term in the order in which each names them
    data={"constant": NUMBER, "linear": VARIABLE, "offset": ROW},
    # certified: after how many iterations the certificate was last tried; taken: iterations since the instance was last
    # begun; finished: whether nothing more is to be done for it; decrement: that of the last step;
    # first_gap: that of the linearisation at the first point; barriers: how many logarithms; balanced: the dual
    # iterates of a bound (`soctk.decide.compiled.terms`); the rest: `soctk.decide.compiled.constraints`, but for the
    # multipliers and the pass of the best bound
    state={
        **dict.fromkeys(("mu", "value", "best_value", "best_bound", "iterations", "stuck", "outcome"), NUMBER),
        **dict.fromkeys(("started", "certified", "taken", "decrement", "first_gap"), NUMBER),
        **dict.fromkeys(("barriers", "penalty", "residual"), NUMBER),
        "finished": ("one",),
        **dict.fromkeys(("x", "best_x"), VARIABLE),
        **dict.fromkeys(("multiplier", "best_multiplier"), CONSTRAINT),
        "best_cache": ("kept",),
        # from here on what an instance has only while it is in work, or afterwards too where `keep_final` is not 0
        **dict.fromkeys(("s_lo", "s_hi"), VARIABLE),
        **dict.fromkeys(("lag", "balanced", "u"), ROW),
        **dict.fromkeys(("t", "z_lo", "z_hi"), CONSTRAINT),
    },
    # inverse_lo, inverse_hi: 1 / (x - lo), 1 / (hi - x); factor: the Hessian, later its factor, bordered by two
    # right-hand sides; base: what of it never changes
    memory={
        "held_data": ("data_size",),
        "held_sides": ("sides_size",),
        "held_state": ("state_size",),
        **dict.fromkeys(("du", "trial", "curvature"), ROW),
        **dict.fromkeys(("here", "other"), ("cache_size",)),
        **dict.fromkeys(("g", "other_g", "dx", "ones", "point", "gradient", "inverse_lo", "inverse_hi", "q"), VARIABLE),
        **dict.fromkeys(("dt", "R_dx", "excess", "weight", "t_inverse_lo", "t_inverse_hi"), CONSTRAINT),
        "factor": ("n", "bordered"),
        "base": ("n", "n"),
        "jacobians": ("jacobian_size",),
        "coefficients": ("products",),
        "reference": ("terms",),
        "scratch": ("scratches",),
        "pairs": ("pairs_size",),
    },
    # of `here` and of `other`
    cache=PASS,
)

OUT_OF_WORK = ARRAYS.places["s_lo"]
"""Where a layout says how many numbers of `state` an instance has before it begins, and when it has ended."""
RUNNING, OPTIMAL, STALLED, ITERATION_LIMIT, INFEASIBLE = range(5)
"""What `outcome` can be."""

TERM_SIZES = (
    *("kind", "first", "rows", "n", "size", "groups"),
    *("direct", "shared_rows", "constant", "rank_ones", "inner", "products", "first_product"),
)
"""Of a term: the number of its kernel, its first row, and what `Structure` says of it; how many outer products are kept
for it, and the first."""


@cache
def term_table(packs: Packs) -> Table:
    """Return the view of a term that packs these attributes, over the same vectors and over u and the dual iterates."""
    shared: dict[str, Shape] = {"A": ("rows", "n")} | dict.fromkeys(packs.numbers, NUMBER)
    shared |= {part: ROW for name in packs.matrices for part in (name, f"{name}_transposed")}
    return Table(
        TERM_SIZES,
        u={"u": ROW},
        lag={"lag": ROW},
        cache=PASS,
        shared=shared,
        data=dict.fromkeys(packs.coefficients, ROW),
        counts=dict.fromkeys(packs.counts, ROW),
    )
