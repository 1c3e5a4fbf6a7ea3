"""Sums over the terms of a form: values and dual points, smoothed or not, and the dual iterates."""

from __future__ import annotations

from soctk.decide.compiled.arrays import ARRAYS
from soctk.decide.compiled.dispatch import operation, term_of
from soctk.simd import any_of, choose, view
from soctk.simd.options import compiled
from soctk.simd.records import record_of

term_value, term_dual, term_conjugate, term_reference, term_initial_lag, term_advance_lag, term_lagged_dual = map(
    operation, ("value", "dual", "conjugate", "reference", "initial_lag", "advance_lag", "lagged_dual")
)
cache_of = record_of(ARRAYS, "cache")


@compiled
def values(problem, work, u, mu, cache):
    """Return the sum of the smoothed terms at u, and fill what `duals` needs of the pass; mu = 0 smooths nothing."""
    total = 0.0
    for index in range(problem.terms):
        total += term_value(problem, index, cache, u, None, (mu, work.reference[index]))
    return total


@compiled
def duals(problem, u, cache):
    """Fill the dual point y of the last pass."""
    for index in range(problem.terms):
        term_dual(problem, index, cache, u, None, ())


@compiled
def references(problem, work):
    """Fill what each term's smoothing is relative to."""
    for index in range(problem.terms):
        work.reference[index] = term_reference(problem, index, work.other, None, None, ())


@compiled
def initial_lags(problem, work, u, lag, wanted):
    """Fill the dual iterates that are wanted by those that agree with the last pass."""
    y, agreed = cache_of(problem, work.here).y, work.trial
    for k in range(problem.rows):
        agreed[k] = y[k]
    for index in range(problem.terms):
        term = term_of(problem, index)
        term_initial_lag(problem, index, work.here, u, None, (view(agreed, term.first, term.rows),))
    for k in range(problem.rows):
        lag[k] = choose(wanted, agreed[k], lag[k])


@compiled
def advance_lags(problem, work, u, lag):
    """Update the dual iterates by their linearised optimality conditions after a step that moves u by du."""
    for index in range(problem.terms):
        term = term_of(problem, index)
        du, scratch = view(work.du, term.first, term.rows), view(work.trial, term.first, term.rows)
        term_advance_lag(problem, index, work.here, u, lag, (du, scratch))


@compiled
def balance_lags(problem, work, u, lag, balanced):
    """Fill `balanced` with dual iterates, advanced last, made such that their dual point balances Newton's equations.

    In layers the dual point is y = nubar p, nubar what the layers above weigh a unit with. Newton's equations move it
    by nubar dp + p dnubar, and the chain of the slopes p + dp by dnubar dp more: as large as dp while duals still move
    far, and left over in the slope v + A'y + ..., where a bound pays for it with the width of the set. Of

        p + nubar / (nubar + dnubar) dp

    the chain is as the equations have it, where these are slopes, from the last layer to the first. What stands for
    slopes is affine in them and between -1 and 1 (`soctk.terms.network_kernel`). Other terms have no layers.
    """
    here, other = cache_of(problem, work.here).nubar, cache_of(problem, work.other).nubar
    for k in range(problem.rows):
        balanced[k] = lag[k]
    for index in range(problem.terms):
        term = term_of(problem, index)
        if term.inner == 0:
            continue
        agreed = view(work.trial, term.first, term.rows)
        term_initial_lag(problem, index, work.here, u, None, (agreed,))
        for _ in range(term.rows):  # each time another layer is right
            term_lagged_dual(problem, index, work.other, None, balanced, ())
            changed = 0 * agreed[0]
            for k in range(term.first, term.first + term.rows):
                share = choose(other[k] > 0, here[k] / choose(other[k] > 0, other[k], 1.0), 1.0)
                moved = work.trial[k] + share * (lag[k] - work.trial[k])
                moved = choose(share == 1, lag[k], min(max(moved, -1.0), 1.0))
                changed += abs(moved - balanced[k])
                balanced[k] = moved
            if not any_of(changed > 0):
                break


@compiled
def lagged_duals(problem, work, lag):
    """Fill the dual point that the dual iterates stand for in the other cache."""
    here, other = work.here, work.other
    for k in range(other.size):
        other[k] = here[k]
    for index in range(problem.terms):
        term_lagged_dual(problem, index, other, None, lag, ())
