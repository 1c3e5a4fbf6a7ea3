"""A surrogate inside a CVXPY problem of the user's own, re-solved for one context after another."""

from __future__ import annotations

import torch
from torch import Tensor

from soctk.checks import ArrayLike, to_numpy
from soctk.forms.embedding import FormEmbedding
from soctk.function import check_function
from soctk.lazy import cvxpy as cp
from soctk.surrogate import ConvexSurrogate


class Embedding(FormEmbedding):
    """A surrogate as part of a CVXPY problem that is re-solved for one context after another.

        embedded = soctk.Embedding(model, x)
        problem = cp.Problem(cp.Minimize(embedded.value), embedded.constraints + my_constraints)
        embedded.set_context(theta);  problem.solve()

    It is DPP for every surrogate with a conic form. `value` equals f(x) where it is minimised or bounded from above.

    Args:
        model: a surrogate with a conic form.
        x: the decision, a CVXPY expression of shape (n,).
        trained: whether weights will change, as those of a `CvxpyLayer` that is trained do: coefficients that no
            context moves are parameters then, too. Matrices of convolutions and other maps that are not dense stay
            constants. By default whatever no context moves is a constant, which is quicker.

    Raises:
        ValueError: x has another shape, or weights that make the function non-convex.
        NotImplementedError: the surrogate has no conic form.
    """

    def __init__(self, model: ConvexSurrogate, x: cp.Expression, *, trained: bool = False) -> None:
        check_function(model)
        # Two contexts make the coefficients that depend on the context show; only the structure is used.
        contexts = torch.zeros(2, model.context_dim, dtype=model.dtype, device=model.device)
        super().__init__(model.conic_form(contexts if model.context_dim else None), x, trained=trained)
        self._model = model

    def coefficients(self, context: ArrayLike) -> list[Tensor]:
        """Return the values of `parameters` at contexts (*batch, p), each (N, ...), differentiable.

        What a `CvxpyLayer` made of the problem takes as its arguments.

        Raises:
            ValueError: bad contexts.
            RuntimeError: a weight has changed that is a constant of the problem.
        """
        return self._values(self._model.check_context(context))

    def set_context(self, context: ArrayLike) -> None:
        """Give the parameters their values at one context (p,).

        Raises:
            ValueError: a bad context, or several.
            RuntimeError: as `coefficients`.
        """
        checked = self._model.check_context(context)
        if checked.ndim != 1:
            raise ValueError(f"context: expected one of shape ({self._model.context_dim},), got {tuple(checked.shape)}")
        for parameter, value in zip(self.parameters, self._values(checked, checked=True), strict=True):
            parameter.value = to_numpy(value[0])

    def _values(self, context: Tensor, *, checked: bool = False) -> list[Tensor]:
        """Return the parameters' values, `checked` as constants of a convex function.

        A single context is taken twice: alone it does not tell which matrices contexts move, and terms would be joined
        that are apart in the expression (`soctk.forms.joining`).
        """
        alone = self._model.context_dim > 0 and context.shape[:-1].numel() == 1
        form = self._model.form_at(context.reshape(1, -1).expand(2, -1) if alone else context)
        if (name := self.changed(form)) is not None:
            raise RuntimeError(
                f"{name}: the model's weights have changed since it was embedded, where they are constants; embed it "
                "again, or with trained=True for all weights but those of convolutions to be parameters"
            )
        values = self.parameter_values(form.check().detach() if checked else form)
        return [value[:1] for value in values] if alone else values
