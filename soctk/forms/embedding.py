"""A conic form as a part of CVXPY problems: as one expression, or by its epigraph with coefficients as parameters.

    f(x) = min b0 + v'x + sum_j phi_j(u_j)    s.t. u_j = A_j x + d_j,

network terms by their epigraph variables z. With the arguments u_j as variables the program is DPP in *every*
coefficient, whatever depends on the context (A, U and c of a PCF included), and the multiplier of u_j = A_j x + d_j is
the dual point y_j of the certificate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from soctk.checks import to_numpy
from soctk.forms.sum_of_terms import SumOfTerms
from soctk.lazy import cvxpy as cp
from soctk.terms import Term
from soctk.terms.base import Coefficient

AFFINE_TOLERANCE = 1e-9
PROBE_SIZES = 1.0, 1e3, 1e6


class FormEmbedding:
    """The parameterised lift of a conic form.

    Coefficients that differ between contexts become parameters; shared ones are constants.

    Args:
        form: any form of the structure to embed; its shared coefficients are baked in.
        x: the decision, a CVXPY expression of shape (n,).
        trained: makes parameters of shared coefficients too where they require a gradient, but of matrices that are
            not dense, such as those of convolutions.

    Attributes:
        value: f(x) where it is minimised or bounded from above; together with `constraints`.
        constraints: what ties `value` to x.
        parameters: the parameters in a fixed order, see `parameter_values`.
        links: the constraints u_j = A_j x + d_j among them.
    """

    def __init__(self, form: SumOfTerms, x: cp.Expression, *, trained: bool = False) -> None:
        if x.shape != (form.dim,):
            raise ValueError(f"x: expected a CVXPY expression of shape ({form.dim},), got {x.shape}")
        self._batched, self._trained = form.size > 1, trained
        self._constants: list[np.ndarray | None] = []
        self._matrices: dict[int, Any] = {}
        self.parameters: list[cp.Parameter] = []
        self.links: list[cp.Constraint] = []
        given = {name: self._coefficient(tensor, name) for name, tensor in _coefficients(form)}
        epigraphs: list[cp.Constraint] = []
        total: Any = given["b0"][0] + given["v"] @ x
        for index, term in enumerate(form.terms):
            name = _name(term, index)
            data = {key: given[f"{name}.{key}"] for key in term.coefficients()}
            if "A" not in data:
                data["A"] = self._matrices[index] = term.map.to_sparse()
            u = cp.Variable(term.map.rows, name=f"{name}.u")
            self.links.append(u == term.inner_expression(x, data))
            part, more = term.epigraph(u, data)
            total = total + part
            epigraphs += more
        self.value: cp.Expression = total
        self.constraints = [*self.links, *epigraphs]

    def _coefficient(self, tensor: Tensor, name: str) -> Any:
        if not ((self._batched and tensor.shape[0] > 1) or (self._trained and tensor.requires_grad)):
            self._constants.append(to_numpy(tensor[0]).copy())
            return self._constants[-1]
        self._constants.append(None)
        key = name.rpartition(".")[2]
        nonneg = key == "weights" or key.startswith("U")
        self.parameters.append(cp.Parameter(tuple(tensor.shape[1:]), name=name, nonneg=nonneg))
        return self.parameters[-1]

    def parameter_values(self, form: SumOfTerms) -> list[Tensor]:
        """Return the tensors of `parameters` at the functions of a form, in their order, each (N, ...)."""
        pairs = zip(_coefficients(form), self._constants, strict=True)
        varying = [tensor for (_, tensor), constant in pairs if constant is None]
        return [tensor.expand(form.size, *tensor.shape[1:]) for tensor in varying]

    def changed(self, form: SumOfTerms) -> str | None:
        """Return the name of a constant that a form has otherwise than the one embedded, None where there is none."""
        for (name, tensor), constant in zip(_coefficients(form), self._constants, strict=True):
            if constant is not None and not np.array_equal(to_numpy(tensor[0].detach()), constant):
                return name
        for index, matrix in self._matrices.items():
            term = form.terms[index]
            if (abs(term.map.to_sparse() - matrix)).max() != 0:
                return f"{_name(term, index)}.A"
        return None


def _name(term: Term, index: int) -> str:
    return f"{type(term).__name__.lower()}{index}"


def _coefficients(form: SumOfTerms) -> list[tuple[str, Tensor]]:
    """Return the tensors of a form in the order in which they are embedded, each with its name."""
    of_terms = [
        (f"{_name(term, index)}.{key}", tensor)
        for index, term in enumerate(form.terms)
        for key, tensor in term.coefficients().items()
    ]
    return [("b0", form.constant), ("v", form.linear[:, 0]), *of_terms]


def expression(form: SumOfTerms, x: cp.Expression) -> cp.Expression:
    """Return f(x) as a DCP-convex CVXPY expression, without further variables or constraints.

    Raises:
        ValueError: several functions, or x has another shape.
    """
    if form.size != 1:
        raise ValueError(f"expected one context for a CVXPY expression, got batch shape {form.batch_shape}")
    if x.shape != (form.dim,):
        raise ValueError(f"x: expected a CVXPY expression of shape ({form.dim},), got {x.shape}")
    total: Any = float(form.constant[0, 0].detach()) + to_numpy(form.linear[0, 0]) @ x
    for term in form.terms:
        data: dict[str, Coefficient] = {name: to_numpy(tensor[0]) for name, tensor in term.coefficients().items()}
        total = total + term.expression(term.inner_expression(x, data), data)
    return total


def affine_probes(p: int) -> Tensor:
    """Return contexts (p + 7, p) that tell whether a coefficient is affine: zero, the unit vectors and some others.

    What bends only far away, as a unit does whose weights are small, is not affine either.
    """
    others = torch.randn(2, p, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([torch.zeros(1, p), torch.eye(p), *(size * others for size in PROBE_SIZES)])


def affine_expression(form: SumOfTerms, probes: Tensor, x: cp.Expression, context: cp.Expression) -> cp.Expression:
    """Return f(x, context) for a parameter as the context: DPP, without further variables or constraints.

    Possible where the context enters b0, v and the offsets alone, and affinely: their slopes are differences between
    unit contexts, and the other probes are the test.

    Args:
        form: the function at `probes`.
        probes: `affine_probes`, (p + 7, p).
        x: the decision, a CVXPY expression of shape (n,).
        context: an expression (p,), affine in a parameter, in the units of the probes.

    Raises:
        ValueError: a coefficient depends on the context in another way; the message names it.
    """
    total: Any = _affine(form.constant, probes, context, "b0")[0]
    total = total + _affine(form.linear[:, 0], probes, context, "v") @ x
    for index, term in enumerate(form.terms):
        name, data = _name(term, index), dict[str, Any]()
        for key, tensor in term.coefficients().items():
            if key != "offset" and not _variation(tensor) <= AFFINE_TOLERANCE:  # of a NaN too
                raise _not_dpp(f"{name}.{key}", "depends on the context")
            data[key] = to_numpy(tensor[0]) if key != "offset" else _affine(tensor, probes, context, f"{name}.offset")
        total = total + term.expression(term.inner_expression(x, data), data)
    return total


def _affine(tensor: Tensor, probes: Tensor, context: cp.Expression, name: str) -> Any:
    """Return a coefficient (K,) as an affine expression of the context from its values (p + 7, K) at the probes."""
    if _variation(tensor) == 0.0:
        return to_numpy(tensor[0])
    slope = tensor[1 : context.size + 1] - tensor[0]
    errors = (tensor - tensor[0] - probes @ slope).abs().amax(dim=1)
    if not bool((errors <= AFFINE_TOLERANCE * tensor.abs().amax(dim=1)).all()):
        raise _not_dpp(name, "is not affine in the context")
    return to_numpy(tensor[0]) + to_numpy(slope).T @ context


def _variation(tensor: Tensor) -> float:
    """Return how much a coefficient (N or 1, K) differs between contexts, relative to its size."""
    size = float(tensor.abs().amax())
    return float((tensor - tensor[:1]).abs().amax()) / size if size > 0 and tensor.shape[0] > 1 else 0.0


def _not_dpp(name: str, what: str) -> ValueError:
    return ValueError(
        f"context: {name} {what}, so the expression is not DPP in a cp.Parameter; give a number for the context, use "
        'soctk.Embedding (its coefficients are the parameters), or a model with conditioning="additive" and '
        "affine_hidden=0"
    )
