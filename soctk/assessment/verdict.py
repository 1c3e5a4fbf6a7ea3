"""From measurements to one word."""

from __future__ import annotations

from collections.abc import Mapping

from soctk.assessment.assessment import Error, Verdict
from soctk.assessment.convexity import Curvature
from soctk.assessment.minimum import Costs
from soctk.assessment.overlap import Overlap

FEWEST_ROWS = 30
AGAINST = 0.005
"""The probability below which the least curvature is evidence against convexity."""
SIGNIFICANT = 1.6449
"""Standard errors that a smaller error must be smaller by: 5 % of comparisons of equals pass."""
CHEAPER = 0.5
"""Standard errors that decisions must be cheaper by, on average of the two ways to measure that."""
EXTRAPOLATED = 0.1
"""The share of decisions farther from the usual ones than any logged decision, above which nothing is said of them."""
WORTH = 0.05
"""The share of the values' variance that an improvement too small to matter explains."""


def judge(
    rows: int,
    needed: int,
    seen: bool,
    errors: Mapping[str, Error],
    variance: float,
    costs: Costs,
    curvature: Curvature,
    near: Overlap | None,
) -> tuple[Verdict, str]:
    """Return the verdict and its reason.

    Args:
        rows: how many were measured on.
        needed: how many there must be.
        seen: whether the model has learned from them.
        errors: see `Assessment`.
        variance: the values'.
        costs: of decisions.
        curvature: see `Assessment`.
        near: how far decisions are from logged ones.
    """
    if rows < needed:
        return Verdict.FEW, f"{rows} rows, of which {needed} are needed"
    if seen:
        return Verdict.FEW, "the model has learned from these rows; give rows that it has not seen"
    if curvature.p_value < AGAINST:
        return Verdict.CURVATURE, (
            f"in one direction the second derivative is {curvature.least:.2g}; where the cost is convex it would be as "
            f"low with probability {curvature.p_value:.1g}"
        )
    names = ("constant", "context alone")
    weakest = min(names, key=lambda name: errors[name].score)
    if errors[weakest].score < SIGNIFICANT:
        what = "their mean" if weakest == "constant" else "a function of the context alone"
        if errors[weakest].excess.high > WORTH * variance and errors[weakest].score > -SIGNIFICANT:
            return Verdict.FEW, f"the values may be predicted better than by {what}, or may not"
        return Verdict.CONSTANT, f"the values are predicted as well by {what}"
    if near is not None and near.beyond_all > EXTRAPOLATED:
        return Verdict.FEW, str(near)
    quadratic = errors["quadratic"]
    if quadratic.score < SIGNIFICANT:
        return Verdict.QUADRATIC, f"its error is {quadratic.rms:.3g}, the model's {errors['model'].rms:.3g}"
    found = [costs.difference] if costs.on_mean is None else [costs.difference, costs.on_mean]
    better = f"the model's error is smaller, {errors['model'].rms:.3g} beside {quadratic.rms:.3g}"
    if all(each.is_nothing(variance**0.5) for each in found):
        return Verdict.QUADRATIC, f"{better}, but it decides as the quadratic does"
    estimate = sum(each.estimate for each in found) / len(found)
    if sum(each.estimate / each.error for each in found if each.error > 0) <= -CHEAPER * len(found):
        return Verdict.GOOD, f"its decisions are expected to cost {-estimate:.2g} less than the quadratic's"
    return Verdict.QUADRATIC, (
        f"{better}, but its decisions are not seen to cost less: the difference is {costs.difference}"
    )
