"""What the arithmetic of a decision alone would take: floating-point operations, and how many a second there are.

Those of products and factorisations follow from the sizes, with symmetric matrices halved; the others are counted while
PyTorch carries out the same steps.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from soctk import ConicForm, FeasibleSet
from soctk.decide.batched import solve_batched
from soctk.decide.newton import DEFAULT_ITERATIONS
from soctk.terms import Network, Quadratic

COUNTED = 64
"""Contexts whose elementwise operations are counted."""
UNCOUNTED = {"where", "_to_copy", "copy_", "clone", "fill_", "zero_", "masked_fill", "masked_fill_", "neg", "abs"}


def decision_flops(
    coefficients: Callable[[], ConicForm], feasible_set: FeasibleSet, iterations: float, tol: float
) -> float:
    """Return the operations of decisions: of their coefficients, and of so many Newton steps in all."""
    with FlopCounterMode(display=False) as products, ElementwiseCounter() as others, torch.no_grad():
        form = coefficients()
    per_step = step_flops(form) + elementwise_step_flops(form, feasible_set, tol)
    return products.get_total_flops() + others.total + iterations * per_step


class ElementwiseCounter(TorchDispatchMode):
    """Counts the numbers that elementwise operations yield and that sums and the like take.

    Sums, products, quotients, roots, logarithms, minima and maxima count as one each; conditions, selections and copies
    as none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out and count one operation."""
        answer = func(*args, **(kwargs or {}))
        if isinstance(answer, Tensor) and answer.is_floating_point() and func.overloadpacket.__name__ not in UNCOUNTED:
            if torch.Tag.pointwise in func.tags:
                self.total += answer.numel()
            elif torch.Tag.reduction in func.tags:
                self.total += args[0].numel()
        return answer


def elementwise_step_flops(form: ConicForm, feasible_set: FeasibleSet, tol: float) -> float:
    """Return the operations of a Newton step beside `step_flops`, with a share of the start and of the certificates."""
    form = form.select(torch.arange(min(form.size, COUNTED)))
    start = feasible_set.center().expand(form.size, -1).clone()
    with ElementwiseCounter() as counter, torch.no_grad():
        result = solve_batched(form, feasible_set, tol=tol, max_iter=DEFAULT_ITERATIONS, start=start)
    return counter.total / float(result.iterations.sum())


def step_flops(form: ConicForm) -> float:
    """Return the operations of a Newton step's matrix products and its factorisation, symmetric matrices halved.

    Quadratic terms and groups of rows have a Hessian in x that can be kept: n^2 operations for each group.
    """
    n = form.dim
    total = n**3 / 3 + 6 * n**2
    for term in form.terms:
        total += 2 * 3 * term.map.rows * n  # forward, adjoint, and the adjoint of the certificate
        size = getattr(term, "size", 1)
        if isinstance(term, Network):
            mixed = sum(outer * inner for inner, outer in itertools.pairwise(term.widths))  # weights between layers
            total += (4 * 2 + 2 * n) * mixed + term.map.rows * n**2
        elif not isinstance(term, Quadratic):
            total += (term.map.rows // size) * n**2 * (1 if size == 1 else 3)
    return total


def matrix_product_rate(size: int = 768, repeats: int = 5) -> float:
    """Return the floating-point operations a second of a float64 matrix product on this machine."""
    a = torch.randn(size, size, dtype=torch.float64)
    least = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        torch.mm(a, a)
        least = min(least, time.perf_counter() - started)
    return 2 * size**3 / least
