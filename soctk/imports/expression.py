"""Import of a CVXPY expression made of atoms that are terms of a conic form.

The expression is read from the outside in with a weight for each of its entries: sums and products pass weights on,
affine parts go to b0 and v, and every other atom becomes a term over its affine argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.unary_operators import NegExpression
from torch import Tensor

from soctk.checks import as_dense
from soctk.forms.conic_form import ConicForm
from soctk.imports.exact import max_affine_terms, psd_factor
from soctk.maps.linear import DenseMap
from soctk.models.exact import ExactSurrogate
from soctk.plugins import PluginError
from soctk.terms import Network, Quadratic, Recognised, Term, registered
from soctk.terms.registry import BUILT_IN

CHECKED, EQUAL = 3, 1e-6
"""At so many random points what was read is compared with the expression, to this relative error."""


def from_cvxpy(expression: cp.Expression, x: cp.Variable) -> ExactSurrogate:
    """Return a scalar CVXPY expression of one variable as a surrogate, exactly.

    Understood are sums, and products with non-negative constants, of: affine expressions; `square`, `sum_squares`,
    `quad_over_lin` by a constant, `quad_form` and `power(., 2)`; `norm2`, `norm1`, `norm_inf` and `abs`; `max`,
    `maximum`, `pos`; `huber`, `logistic` and `log_sum_exp` of affine arguments; and minus `min` and `minimum`.

    Args:
        expression: convex, scalar, without parameters, of x alone.
        x: the variable (n,). Its attributes, such as `nonneg`, say nothing of the function: they belong into the set.

    Raises:
        TypeError: no CVXPY expression, or no variable.
        ValueError: another shape, other variables, parameters, or an atom that has no exact counterpart.
    """
    for name, given, kind in (("expression", expression, cp.Expression), ("x", x, cp.Variable)):
        if not isinstance(given, kind):
            raise TypeError(f"{name}: expected a cvxpy.{kind.__name__}, got {type(given).__name__}")
    if expression.size != 1 or x.ndim != 1:
        raise ValueError(f"expected a scalar expression of a variable (n,), got {expression.shape} and {x.shape}")
    if expression.parameters() or any(v.id != x.id for v in expression.variables()):
        raise ValueError("expression: expected no parameters and no variable but x")
    if not expression.is_convex():
        remedy = "; to maximise it, minimise its negative" if expression.is_concave() else ""
        raise ValueError(f"expression: expected a convex one by the DCP rules, got {expression.curvature}{remedy}")
    reader = _Reader(x)
    reader.read(expression, np.ones(1))
    model = ExactSurrogate.of(reader.form())
    _check_equal(model, expression, x)
    return model


def _check_equal(model: ExactSurrogate, expression: cp.Expression, x: cp.Variable) -> None:
    """Raise ValueError where the model and the expression differ at a random point: an atom was read as another."""
    points = np.random.default_rng(0).normal(size=(CHECKED, x.size))
    for point, found in zip(points, model(torch.from_numpy(points)).tolist(), strict=True):
        value = float(_value_at(expression, x, point)[0])
        if not abs(found - value) <= EQUAL * max(1.0, abs(value)):
            raise ValueError(
                f"expression: has no exact counterpart; at a random point it is {value:.6g}, what was read {found:.6g}"
            )


def _value_at(expression: cp.Expression, x: cp.Variable, point: np.ndarray) -> np.ndarray:
    """Return an expression's entries at a point, flattened in column order; the variable keeps its value."""
    kept = x.value
    x.save_value(point)  # whatever the variable's bounds
    try:
        return np.asarray(expression.value, dtype=float).flatten(order="F")
    finally:
        x.save_value(kept)


def _places(shape: tuple[int, ...], whole: tuple[int, ...]) -> np.ndarray:
    """Return which entry of an array of one shape each entry of the array that it is broadcast to is."""
    entries = np.arange(np.prod(shape, dtype=int)).reshape(shape, order="F")
    return np.broadcast_to(entries, whole).flatten(order="F")


@dataclass
class _Argument:
    """The affine argument A x + d of an atom, flattened in column order."""

    A: np.ndarray
    d: np.ndarray


def _recognised(atom: Any, kinds: Iterable[type[Term]]) -> tuple[type[Term] | None, Recognised | None]:
    """Return the first class of terms that an atom of affine arguments is one of, and how; None where there is none."""
    candidates = ((kind, _asked(kind, atom)) for kind in kinds if type(atom).__name__ in kind.atoms)
    return next((pair for pair in candidates if pair[1] and pair[1].argument.is_affine()), (None, None))


def _asked(kind: type[Term], atom: Any) -> Recognised | None:
    """Return what a class of terms says of an atom.

    Raises:
        PluginError: a class that is not ours ends in an error.
    """
    try:
        return kind.recognise(atom)
    except Exception as error:
        if kind in BUILT_IN:
            raise
        what = f"{kind.__module__}.{kind.__name__}.recognise"
        raise PluginError(f"{what} ended in an error ({type(error).__name__}: {error})") from error


class _Reader:
    """Adds up weighted expressions; `weights` belong to the flattened entries of the expression read."""

    def __init__(self, x: cp.Variable) -> None:
        self.x = x
        self.constant, self.linear = 0.0, np.zeros(x.size)
        self.terms: list[Term] = []

    def form(self) -> ConicForm:
        constant = torch.full((1, 1), self.constant, dtype=torch.float64)
        return ConicForm(constant, torch.from_numpy(self.linear).reshape(1, 1, -1), tuple(self.terms))

    def read(self, expression: cp.Expression, weights: np.ndarray) -> None:
        """Add weights'vec(expression)."""
        if expression.is_affine():
            argument = self.argument(expression)
            self.linear = self.linear + weights @ argument.A
            self.constant += float(weights @ argument.d)
        elif isinstance(expression, AddExpression | Promote):
            for part in expression.args:
                self.read_broadcast(part, expression.shape, weights)
        elif isinstance(expression, Sum) and expression.axis is None:
            self.read(expression.args[0], np.repeat(weights, expression.args[0].size))
        elif isinstance(expression, NegExpression):
            self.read(expression.args[0], -weights)
        elif isinstance(expression, DivExpression):
            divisor = np.broadcast_to(np.asarray(expression.args[1].value, dtype=float), expression.shape)
            self.read_broadcast(expression.args[0], expression.shape, weights / divisor.flatten(order="F"))
        elif isinstance(expression, MulExpression | multiply):
            self.read_product(expression, weights)
        elif (mirrored := MIRRORED.get(type(expression).__name__)) and getattr(expression, "axis", None) is None:
            self.read(mirrored(*(-part for part in expression.args)), -weights)
        else:
            self.read_atom(expression, weights)

    def read_broadcast(self, part: Any, shape: tuple[int, ...], weights: np.ndarray) -> None:
        """Add weights'vec of a part that is broadcast to a shape."""
        self.read(part, np.bincount(_places(part.shape, shape), weights, part.size))

    def read_product(self, expression: Any, weights: np.ndarray) -> None:
        left, right = expression.args
        constant, rest = (left, right) if left.is_constant() else (right, left)
        factor = np.asarray(constant.value, dtype=float)
        if isinstance(expression, multiply) or factor.ndim == 0 or rest.ndim == 0:
            scaled = weights * np.broadcast_to(factor, expression.shape).flatten(order="F")
            self.read_broadcast(rest, expression.shape, scaled)
        elif rest.ndim == 1:
            rows = factor.reshape(weights.size, -1) if constant is left else factor.reshape(-1, weights.size).T
            self.read(rest, weights @ rows)
        elif factor.ndim == 2:
            whole = weights.reshape(expression.shape, order="F")
            passed = factor.T @ whole if constant is left else whole @ factor.T
            self.read(rest, passed.flatten(order="F"))
        else:
            raise self.unknown(expression)

    def read_atom(self, atom: Any, weights: np.ndarray) -> None:
        name = type(atom).__name__
        known = name in ATOMS and all(part.is_affine() for part in atom.args)
        kind, found = _recognised(atom, BUILT_IN)
        if kind is None and not known:
            kind, found = _recognised(atom, registered().values())
        if kind is None and not known:
            raise self.unknown(atom)
        if (weights < 0).any() and name != "QuadForm":  # whose matrix may be negative as well
            raise ValueError(f"expression: {name} has a negative weight, so it is not convex as written")
        self.terms += [self.term(kind, found, weights)] if kind and found else ATOMS[name](self, atom, weights)

    def term(self, kind: type[Term], found: Recognised, weights: np.ndarray) -> Term:
        """Return the term that an atom was recognised as."""
        argument = self.argument(found.argument)
        groups = argument.d.size // found.fields.get("size", 1)
        map_, d, (own,) = _tensors(argument, np.broadcast_to(found.factor * weights, groups))
        return kind(map_, d, own, **found.fields)

    def unknown(self, atom: Any) -> ValueError:
        names = sorted({*ATOMS, *MIRRORED, *(name for kind in registered().values() for name in kind.atoms)})
        return ValueError(
            f"expression: {type(atom).__name__} of these arguments has no exact counterpart; expected affine arguments "
            f"and one of {', '.join(names)}"
        )

    def argument(self, expression: cp.Expression) -> _Argument:
        """Return A and d of an affine expression: its derivative, which CVXPY reads off, and its value at 0."""
        if expression.is_complex():
            raise ValueError("expression: expected atoms of real arguments, got complex ones")
        n, kept = self.x.size, self.x.value
        d = _value_at(expression, self.x, np.zeros(n))
        if expression.is_constant():
            return _Argument(np.zeros((d.size, n)), d)
        self.x.save_value(np.zeros(n))
        try:
            slopes = expression.grad.get(self.x)
        except TypeError:  # from adding None, the derivative of one of several terms
            slopes = None
        finally:
            self.x.save_value(kept)
        if slopes is None:  # of some atoms, as power(x, 1), CVXPY knows no derivative at 0
            return _Argument(np.stack([_value_at(expression, self.x, unit) - d for unit in np.eye(n)], axis=1), d)
        return _Argument(as_dense(slopes, "gradient").reshape(n, d.size).T, d)

    def arguments(self, atom: Any) -> _Argument:
        """Return the atom's arguments, each broadcast to its shape, stacked: (arguments * entries) rows."""
        parts = [(self.argument(part), _places(part.shape, atom.shape)) for part in atom.args]
        stacked = [np.concatenate([getattr(part, name)[places] for part, places in parts]) for name in ("A", "d")]
        return _Argument(*stacked)


def _tensors(argument: _Argument, *weights: np.ndarray) -> tuple[DenseMap, Tensor, list[Tensor]]:
    def inner(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.array(array, dtype=float)).reshape(1, 1, -1)

    return DenseMap(torch.from_numpy(argument.A.copy())[None]), inner(argument.d), [inner(w) for w in weights]


def _quad_form(reader: _Reader, atom: Any, weights: np.ndarray) -> list[Term]:
    dense = float(weights[0]) * as_dense(atom.args[1].value, "quad_form")
    B, level = psd_factor(torch.from_numpy(0.5 * (dense + dense.T)), "quad_form")
    factor, inner = B.numpy(), reader.argument(atom.args[0])
    map_, d, (alpha,) = _tensors(_Argument(factor @ inner.A, factor @ inner.d), np.full(len(factor), 2 * level))
    return [Quadratic(map_, d, alpha)]


def _positive_part(argument: _Argument, weights: np.ndarray) -> list[Term]:
    map_, d, (c,) = _tensors(argument, weights)
    return [Network(map_, d, c, (), (argument.d.size,))]


def _max_of(reader: _Reader, pieces: _Argument, weight: float) -> list[Term]:
    """Add weight * max of the pieces."""
    reader.linear = reader.linear + weight * pieces.A[-1]
    reader.constant += weight * float(pieces.d[-1])
    terms = max_affine_terms(torch.from_numpy(pieces.A.copy()), torch.from_numpy(pieces.d.copy()))
    return [term.scaled(weight) for term in terms]


def _max(reader: _Reader, atom: Any, weights: np.ndarray) -> list[Term]:
    if atom.axis is not None:
        raise reader.unknown(atom)
    return _max_of(reader, reader.argument(atom.args[0]), float(weights[0]))


def _norm_inf(reader: _Reader, atom: Any, weights: np.ndarray) -> list[Term]:
    if atom.axis is not None:
        raise reader.unknown(atom)
    argument = reader.argument(atom.args[0])
    both = _Argument(np.concatenate([argument.A, -argument.A]), np.concatenate([argument.d, -argument.d]))
    return _max_of(reader, both, float(weights[0]))


def _maximum(reader: _Reader, atom: Any, weights: np.ndarray) -> list[Term]:
    stacked = reader.arguments(atom)
    entries = weights.size
    if len(atom.args) == 2:  # max(a, b) = b + pos(a - b), all entries at once
        A, d = stacked.A.reshape(2, entries, -1), stacked.d.reshape(2, entries)
        reader.linear = reader.linear + weights @ A[1]
        reader.constant += float(weights @ d[1])
        return _positive_part(_Argument(A[0] - A[1], d[0] - d[1]), weights)
    rows = [np.arange(entry, stacked.d.size, entries) for entry in range(entries)]
    found: list[Term] = []
    for row, weight in zip(rows, weights, strict=True):
        found += _max_of(reader, _Argument(stacked.A[row], stacked.d[row]), float(weight))
    return found


MIRRORED = {"min": cp.max, "minimum": cp.maximum}
"""Concave atoms, of which minus one is a convex atom of minus the arguments."""
ATOMS: dict[str, Callable[[_Reader, Any, np.ndarray], list[Term]]] = {
    "QuadForm": _quad_form,
    "norm_inf": _norm_inf,
    "max": _max,
    "maximum": _maximum,
}
