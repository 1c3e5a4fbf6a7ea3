"""The mean of surrogates is their mean, as a value, as a form, as a decision and as a file, and costs less than its parts."""

from __future__ import annotations

import copy
from typing import ClassVar

import cvxpy as cp
import pytest
import torch
from surrogate_contract import SurrogateContract, inputs
from tolerances import CERTIFIED, CLARABEL, DOUBLE, SINGLE, VALUE, close
from torch import nn
from zoo import shaken

import soctk
from soctk import SOCICNN, Box, ConvexSurrogate, NormICNN, QuadICNN, ReLUICNN, SoftplusICNN, average
from soctk.terms import Network, Norms, Quadratic

SMALL = {"ridges": 2, "affine_hidden": 3}


def apart(*models: ConvexSurrogate) -> list[ConvexSurrogate]:
    """Return the models with weights and units of their own."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=DOUBLE)

    for index, model in enumerate(models):
        shaken(model, 0.2 + 0.1 * index)
        model.set_standardization(
            x=(float(draw(1)) - 0.5, 0.7 + float(draw(1))),
            value=(10 * float(draw(1)), 0.5 + 2 * float(draw(1))),
            context=(draw(model.context_dim) - 0.5, 0.6 + draw(model.context_dim)),
        )
    return list(models)


def soc(seed: int = 0, **options) -> SOCICNN:
    return SOCICNN(3, 2, **{"hidden": (4,), "quadratics": (3,), "norms": (2, 3), **SMALL, "seed": seed, **options})


def exact(seed: int = 0) -> ConvexSurrogate:
    draw = torch.Generator().manual_seed(seed)
    B, A, a, d = (torch.randn(*shape, generator=draw, dtype=DOUBLE) for shape in ((2, 3), (2, 3), (3,), (2,)))
    return soctk.from_quadratic(B.mT @ B, a, 0.5, norms=[(0.7, A, d)])


class TestDense(SurrogateContract):
    CASES: ClassVar = {
        "one": lambda: average(apart(soc())),
        "alike": lambda: average(apart(*(soc(seed) for seed in range(3)))),
        "additive": lambda: average(apart(*(soc(seed, conditioning="additive", quadratics=(3, 2)) for seed in range(3)))),
        "no_context": lambda: average(apart(*(SOCICNN(3, quadratics=(3,), norms=(3,), seed=seed) for seed in range(3)))),
        "unlike": lambda: average(
            apart(
                ReLUICNN(3, 2, hidden=(5, 4), **SMALL),
                SoftplusICNN(3, 2, hidden=(4,), **SMALL),
                QuadICNN(3, 2, hidden=(3,), linear=False, **SMALL),
                NormICNN(3, 2, hidden=(), diagonal=True, hyperbolics=2, **SMALL),
                soc(hidden=(3, 2), passthrough=False, norms=(1, 2)),
            )
        ),
        "of_averages": lambda: average(apart(average(apart(soc(1), soc(2))), soc(3))),
    }


class TestMixed(SurrogateContract):
    CASES: ClassVar = {
        "exact": lambda: average(apart(*(exact(seed) for seed in range(3)))),
        "structured": lambda: average(
            apart(
                soctk.RecurrentSOCICNN(3, 1, 2, hidden=2, quadratics=2, affine_hidden=2),
                SOCICNN(3, soctk.RecurrentSOCICNN(3, 1, 2).context_dim, quadratics=(3,), **SMALL),
            )
        ),
    }


CASES = TestDense.CASES | TestMixed.CASES


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_mean_of_its_models(name: str) -> None:
    model = CASES[name]()
    x, context = inputs(model, 6)
    values = torch.stack([member(x, context) for member in model.members])
    close(model(x, context), values.mean(dim=0), VALUE)
    close(model.conic_form(context).value(x), values.mean(dim=0), VALUE)
    close(model.spread(x, context), values.std(dim=0, correction=0), VALUE)
