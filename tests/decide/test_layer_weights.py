"""The decision layer's derivatives in all weights where decisions rest at kinks, against the exact KKT system there.

A decision inside of the set is determined by: the slope is zero; preactivations of units at their kink are zero, whose
slopes p in (0, 1) are unknown; arguments of norms at their apex are zero, whose dual points rho are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tolerances import DOUBLE, EXACT_WEIGHTS
from torch import Tensor

import soctk
from soctk.forms.conic_form import ConicForm

DIM, CONTEXT, BOX = 4, 3, 3.0
AT_KINK, CLEAR = 1e-6, 1e-3
"""What is nearer to zero is at its kink; how far from other kinks, and inside its multiplier's range, one has to be."""
KINDS = {
    "one layer": {"hidden": (6,), "norms": (2,)},
    "two layers": {"hidden": (6, 5), "norms": (2,)},
    "norms": {"hidden": (), "norms": (2, 2)},
}


@dataclass
class Kkt:
    """The system at a decision, of unknowns y = (x, p, rho)."""

    kinks: list[Tensor]
    on: list[Tensor]
    apex: Tensor

    @classmethod
    def of(cls, form: ConicForm, x: Tensor) -> Kkt:
        """Return what a decision x (n,) shows."""
        found = cls([], [], torch.zeros(0, dtype=torch.bool))
        for term in form.terms:
            u = term.inner(x.reshape(1, 1, -1))
            if isinstance(term, soctk.terms.Network):
                activations = [a.flatten() for a in term.preactivations(u)]
                found.kinks = [a.abs() < AT_KINK for a in activations]
                found.on = [(a > 0).to(DOUBLE) for a in activations]
            elif isinstance(term, soctk.terms.Norms):
                found.apex = u.reshape(-1, term.size).norm(dim=1) < AT_KINK
        return found

    def start(self, x: Tensor) -> Tensor:
        units, groups = sum(int(kink.sum()) for kink in self.kinks), int(self.apex.sum())
        return torch.cat([x, x.new_full((units,), 0.5), x.new_zeros(2 * groups)])

    def residual(self, y: Tensor, form: ConicForm, margins: list[Tensor] | None = None) -> Tensor:
        """Return what is zero at the decision; how far that is from other pieces goes into `margins`."""
        margins = [] if margins is None else margins
        x, unknown = y[:DIM], list(y[DIM:])
        slope, zeros = form.linear[0, 0], []
        for term in form.terms:
            A = term.map.to_dense().matrix[0]
            u = A @ x + term.offset[0, 0]
            if isinstance(term, soctk.terms.Network):
                nu, activations = self._chain(term, u, unknown)
                for a, kink in zip(activations, self.kinks, strict=True):
                    zeros.append(a[kink])
                    margins.append(a[~kink].abs())
            elif isinstance(term, soctk.terms.Norms):
                groups = []
                for group, weight, apex in zip(u.reshape(-1, 2), term.weights[0, 0], self.apex, strict=True):
                    if apex:
                        groups.append(torch.stack([unknown.pop(0), unknown.pop(0)]))
                        zeros.append(group)
                        margins.append(1 - groups[-1].norm()[None] / weight)
                    else:
                        groups.append(weight * group / group.norm())
                        margins.append(group.norm()[None])
                nu = torch.cat(groups)
            else:
                nu = term.weights[0, 0] * u
            slope = slope + A.mT @ nu
        return torch.cat([slope, *zeros])

    def _chain(self, term: soctk.terms.Network, u: Tensor, unknown: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        slopes = [
            torch.stack([unknown.pop(0) if kink else on for kink, on in zip(*layer, strict=True)])
            for layer in zip(self.kinks, self.on, strict=True)
        ]
        activations: list[Tensor] = []
        for level, part in enumerate(u.split(term.widths)):
            below = term.mixing[level - 1][0] @ (slopes[level - 1] * activations[-1]) if level > 0 else 0.0
            activations.append(part + below)
        nubar, nu = term.weights[0, 0], []
        for level in range(len(slopes) - 1, -1, -1):
            nu.append(nubar * slopes[level])
            nubar = term.mixing[level - 1][0].mT @ nu[-1] if level > 0 else nubar
        return torch.cat(nu[::-1]), activations


def exact(form: ConicForm, x: Tensor, weights: Tensor) -> tuple[Tensor, float, Tensor]:
    """Return the decision, how far it is from other pieces, and what has the gradient of <weights, decision>."""
    fixed, kkt = form.detach(), Kkt.of(form.detach(), x)
    y, margins = kkt.start(x), []

    def jacobian() -> Tensor:
        return torch.autograd.functional.jacobian(lambda y: kkt.residual(y, fixed), y)

    for _ in range(20):
        y = y - torch.linalg.solve(jacobian(), kkt.residual(y, fixed))
    assert float(kkt.residual(y, fixed, margins).abs().max()) <= AT_KINK
    p = y[DIM : DIM + sum(int(kink.sum()) for kink in kkt.kinks)]
    margin = torch.cat([torch.minimum(p, 1 - p), *margins]).min()
    adjoint = torch.linalg.solve(jacobian().mT, torch.nn.functional.pad(weights, (0, len(y) - DIM)))
    return y[:DIM], float(margin), -adjoint @ kkt.residual(y, form)


def comparison(kind: str, seed: int, tol: float) -> tuple[bool, float] | None:
    """Return whether a decision rests at a kink, and the largest relative error of its gradients; None without one."""
    model = soctk.SOCICNN(DIM, CONTEXT, quadratics=(DIM,), seed=seed, **KINDS[kind])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=DOUBLE)
            weight.add_(0.5 * noise * (weight.abs().mean() + 0.1) if weight.numel() > 0 else noise)
        if kind == "norms":  # the decisions rest at apexes, far from the ends of their multipliers' ranges
            model.lam.constant.add_(30.0)
    context = torch.randn(CONTEXT, generator=generator, dtype=DOUBLE).requires_grad_()
    weights = torch.randn(DIM, generator=generator, dtype=DOUBLE)
    decision = soctk.DecisionLayer(model, soctk.Box(DIM, -BOX, BOX), tol=tol)(context)
    if float(decision.detach().abs().max()) > BOX - CLEAR:
        return None
    x, margin, product = exact(model.form_at(context), decision.detach(), weights)
    if margin < CLEAR:
        return None
    torch.testing.assert_close(decision.detach(), x, rtol=0, atol=1e-6)
    inputs = [context, *model.parameters()]
    expected = torch.autograd.grad(product, inputs, allow_unused=True, materialize_grads=True)
    actual = torch.autograd.grad(decision @ weights, inputs, allow_unused=True, materialize_grads=True)
    errors = [float((a - e).norm() / e.norm().clamp(min=1e-2)) for a, e in zip(actual, expected, strict=True)]
    return len(Kkt.of(model.form_at(context).detach(), x).start(x)) > DIM, max(errors)


@pytest.mark.parametrize("tol", [1e-9, 1e-12])
@pytest.mark.parametrize("kind", KINDS)
def test_none_is_wrong(kind: str, tol: float) -> None:
    found = [each for seed in range(25) if (each := comparison(kind, seed, tol)) is not None]
    assert sum(kinked for kinked, _ in found) >= 5
    assert max(error for _, error in found) <= EXACT_WEIGHTS
