"""Contexts beyond those that were learned from: taken as they are, or at the nearest of these.

Contexts with heavy tails have numbers in every sample that are far beyond those of another one. What a network makes
of them rests on no data: weights and offsets go on growing, their products faster than the values, and b0 and v,
learned where these were small, do not take it back. A model that is the function itself goes on being right there. So
held-out contexts tell: only those beyond the range of the training data differ, and the model has its range where the
errors, within instances or of levels too, are clearly smaller with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from soctk.learn.data import ValueData
from soctk.learn.residuals import Residuals
from soctk.learn.units import Standardized
from soctk.models.average import average
from soctk.surrogate import ConvexSurrogate

BETTER = 0.9
"""A range is kept if an error is below this share of what it is without. Not the .7 of larger structures: nothing is
added, and all but few contexts have the same errors. Those within instances, which decisions depend on, must not be
larger with it; those of levels too not by more than the inverse of the share."""


@torch.no_grad()
def limit_context(model: ConvexSurrogate, data: ValueData, validation: ValueData, focus: float = 0.0) -> None:
    """Give a learned model the range of its training contexts, if that makes the validation loss clearly smaller.

    Not a model of branches over windows, whose contexts are signals in one unit.

    Args:
        model: the surrogate, which has no range yet.
        data: training data.
        validation: validation data.
        focus: that both are weighed by.
    """
    if not model.traits.shifts_inputs or model.context_dim == 0:
        return
    ends = torch.stack(data.context.aminmax(dim=0)).to(model.context_mean)
    contexts = validation.context.to(ends)
    if torch.equal(contexts, contexts.clamp(*ends)):
        return
    within, whole = _errors(model, validation, focus)
    model.context_range = ends
    within_range, whole_range = _errors(model, validation, focus)
    better = within_range < BETTER * within or whole_range < BETTER * whole
    if not (better and within_range <= within and BETTER * whole_range <= whole):
        model.context_range = None


def _errors(model: ConvexSurrogate, validation: ValueData, focus: float) -> list[float]:
    """Return the mean squared errors within instances, and with their levels."""
    held_out = Standardized.of(model, validation, model.dtype).focused(focus)
    return [float(Residuals.weighted(held_out, weight).total(model)) for weight in (0.0, 1.0)]


def average_of(members: Sequence[ConvexSurrogate]) -> ConvexSurrogate:
    """Return the mean of members of one fit; of their ranges one for all, where most of them have one."""
    ranges = [model.context_range for model in members]
    known = [ends for ends in ranges if ends is not None]
    for model in members:
        model.context_range = None
    mean = average(members)
    if 2 * len(known) > len(members):
        stacked = torch.stack(known)
        mean.context_range = torch.stack([stacked[:, 0].amin(dim=0), stacked[:, 1].amax(dim=0)])
    return mean
