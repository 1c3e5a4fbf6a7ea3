"""A surrogate that is given rather than learned: a conic form with fixed coefficients and no context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from soctk.checks import as_counts, check_sequence
from soctk.forms.conic_form import ConicForm
from soctk.surrogate import ConvexSurrogate
from soctk.terms.registry import term_class, term_name

FIELDS = {"kind", "shapes", "options"}


class ExactSurrogate(ConvexSurrogate):
    """b0 + v'x + sum_j phi_j(A_j x + d_j) with the coefficients of a given form, as buffers: nothing is trained.

    Decided with, embedded, differentiated in x, saved and loaded like any other surrogate. Made by
    `ExactSurrogate.of(form)`, `soctk.from_quadratic`, `soctk.from_max_affine` and `soctk.from_cvxpy`.

    Args:
        dim: the decision dimension n.
        terms: for each term its "kind", the "shapes" of its tensors by field and its other "options".
        dtype: of the coefficients.
    """

    def __init__(self, dim: int, terms: Sequence[dict[str, Any]] = (), *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dim, 0, dtype=dtype)
        self.terms = _checked(terms, dim)
        self.register_buffer("b0", torch.zeros(1, 1, dtype=dtype))
        self.register_buffer("v", torch.zeros(1, 1, dim, dtype=dtype))
        for index, term in enumerate(self.terms):
            for name, shape in term["shapes"].items():
                self.register_buffer(self._name(index, name), torch.zeros(1, *shape, dtype=dtype))

    @classmethod
    def of(cls, form: ConicForm) -> ExactSurrogate:
        """Return a form of one function as a surrogate.

        Raises:
            ValueError: the form holds several functions, terms that are not registered, or coefficients that make it
                non-convex.
        """
        if form.size != 1:
            raise ValueError(f"form: expected one function, got batch shape {form.batch_shape}; select one first")
        form.check()
        described = [term.to_parts() for term in form.terms]
        terms = [
            {
                "kind": term_name(type(term)),
                "shapes": {name: list(tensor.shape[1:]) for name, tensor in tensors.items()},
                "options": options,
            }
            for term, (tensors, options) in zip(form.terms, described, strict=True)
        ]
        model = cls(form.dim, terms, dtype=form.dtype)
        model.b0.copy_(form.constant.detach())  # type: ignore[operator]
        model.v.copy_(form.linear.detach())  # type: ignore[operator]
        for index, (tensors, _) in enumerate(described):
            for name, tensor in tensors.items():
                getattr(model, model._name(index, name)).copy_(tensor.detach())
        return model

    def _name(self, index: int, field: str) -> str:
        return f"{self.terms[index]['kind'].lower()}{index}_{field}"

    def _conic_form(self, context: Tensor) -> ConicForm:
        terms = []
        for index, term in enumerate(self.terms):
            tensors = {name: getattr(self, self._name(index, name)) for name in term["shapes"]}
            terms.append(term_class(term["kind"]).from_parts(tensors, term["options"]))
        return ConicForm(self.b0, self.v, tuple(terms))  # type: ignore[arg-type]

    def config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"dim": self.dim, "terms": self.terms}


def _checked(terms: Sequence[dict[str, Any]], dim: int) -> list[dict[str, Any]]:
    """Return the terms' descriptions, copied; ValueError where one describes no term of n variables.

    Nothing is allocated: the terms are made of tensors without memory.
    """
    check_sequence(terms, "terms")
    for index, term in enumerate(terms):
        place = f"terms: number {index}"
        if not (isinstance(term, dict) and set(term) == FIELDS and isinstance(term["kind"], str)):
            raise ValueError(f'{place}: expected a dictionary of "kind", "shapes" and "options", got {term!r}')
        try:
            shapes = {name: as_counts(shape, name, minimum=0) for name, shape in term["shapes"].items()}
            tensors = {name: torch.zeros(1, *shape, device="meta") for name, shape in shapes.items()}
            made = term_class(term["kind"]).from_parts(tensors, dict(term["options"]))
            made.check_shapes(dim)
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{place}, of kind {term['kind']!r}: {error}") from None
    return [dict(term) for term in terms]
