"""A convex function plus a linear one that is part of the context."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from soctk.forms.conic_form import ConicForm
from soctk.function import ConvexFunction


class Tilted(ConvexFunction):
    """f(x; theta) + g'x, with (theta, g) as its context: (*batch, p + n).

    Args:
        model: f, with a conic form.
    """

    def __init__(self, model: ConvexFunction) -> None:
        super().__init__(model.dim, model.context_dim + model.dim, dtype=model.dtype)
        self.to(model.device)
        self.model = model

    def _conic_form(self, context: Tensor) -> ConicForm:
        theta, g = context.split([self.model.context_dim, self.dim], dim=-1)
        form = self.model._folded_form(theta)
        return dataclasses.replace(form, linear=form.linear + g.unsqueeze(1), batch_shape=(context.shape[0],))
