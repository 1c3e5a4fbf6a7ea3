"""Approximating the ten convex targets at the paper's sizes, every method by the same recipe (Experiment 2).

The paper fixes SOC-ICNN's sizes; the other ICNNs keep its width and get layers until they have at least as many
weights. P1-ICKAN has one hidden layer, of the least width that does. In SOC and Quad the offset e of the full quadratic
block, ||B x + e||^2, takes the part of v'x, so that every count is the paper's; METHOD+linear is the same with v'x.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

import soctk
from soctk import SOCICNN, ConvexSurrogate, FitConfig, NormICNN, QuadICNN, ReLUICNN, SoftplusICNN, ValueData
from soctk.losses import relative_error
from soctk_baselines import ICKAN
from soctk_evaluation.harness.cell import Cell, make_config
from soctk_evaluation.harness.experiment import Experiment, pages
from soctk_evaluation.harness.names import APPROXIMATORS, DECIDERS, WITH_LINEAR, known_methods, split
from soctk_evaluation.harness.recipe import FIT_FIELDS, fit_fields, learn, recipe_config
from soctk_evaluation.harness.request import check_methods, check_names
from soctk_evaluation.tables.approximation import write_approximation
from soctk_tasks import TARGETS, make_target
from soctk_tasks.targets import SIZES

WIDTHS = {5: 16, 10: 20, 20: 24, 50: 32}
"""The paper's hidden widths by dimension."""
SEGMENTS = 8
RECIPE = FitConfig(starts=2, epochs=30, batch_rows=250, lbfgs_iterations=1000)
"""To convergence: without a context one fit has 6000 values, not 64 000, and its iterations cost the less."""
QUICK_RECIPE = FitConfig(starts=1, epochs=15, batch_rows=250, lbfgs_iterations=250)
MEASURED = ("params", "relative_error", "test_points", "fit_seconds", "validation_loss", *FIT_FIELDS)
"""The measurements in a row."""

RELATIVE_COST = {"ickan": 3, "soc": 2, "quad": 2, "norm": 2, "softplus": 2, "relu": 1}


def approximation_cells(asked: Any, sizes: Mapping[str, int] | None = None, fit: FitConfig | None = None) -> list[Cell]:
    """Return the cells asked for, long ones first; UsageError at an unknown name.

    Args:
        asked: `soctk_evaluation.cli.commands.Approximation`.
        sizes: departures from `soctk_tasks.targets.SIZES`.
        fit: the training recipe, the same for every method.
    """
    check_methods(asked.methods, [name for name in (*known_methods(), *WITH_LINEAR) if name not in DECIDERS])
    check_names(asked.targets, TARGETS, "target")
    dims, seeds, recipe = ((5, 10), (0,), QUICK_RECIPE) if asked.quick else ((5, 10, 20, 50), (0, 1, 2), RECIPE)
    config = make_config(SIZES | dict(sizes or {}) | recipe_config(fit or recipe))
    methods = asked.methods or APPROXIMATORS
    grid = itertools.product(asked.dims or dims, methods, asked.seeds or seeds, asked.targets or TARGETS)
    cells = [Cell("approximation", target, dim, method, seed, "values", config) for dim, method, seed, target in grid]
    return sorted(cells, key=lambda cell: (-cell.dim, -RELATIVE_COST.get(split(cell.method)[0], 0)))


def run_cell(cell: Cell, _folder: Path | None = None) -> dict[str, Any]:
    """Learn one target by one method; return the measurements of `MEASURED` and the status.

    Uses one torch thread, so that the same seed gives the same numbers wherever it runs.
    """
    torch.set_num_threads(1)
    config = dict(cell.config)
    train, validation, test = load_data(cell.task, cell.dim, cell.seed, *(config[name] for name in SIZES))
    if cell.method == "constant":
        return {"params": 1, "relative_error": constant_error(train, test), "test_points": test.candidates}
    model = sized(cell.method, cell.dim, cell.seed)
    report, note = learn(model, train, validation, config, cell.seed)
    return {
        "params": model.parameter_count,
        "relative_error": relative_error(model, test),
        "test_points": test.candidates,
        "fit_seconds": report.seconds,
        "validation_loss": report.best_validation,
        **fit_fields(report),
        "status": note or "ok",
    }


@lru_cache(maxsize=4)
def load_data(target: str, dim: int, seed: int, *sizes: int) -> tuple[ValueData, ...]:
    """Return the training, validation and test data of a target; the points are the same for all targets."""
    return tuple(make_target(target, dim, seed).sample(dict(zip(SIZES, sizes, strict=True))).values())


def constant_error(train: ValueData, test: ValueData) -> float:
    """Return the relative l2 error of the training mean."""
    return float((test.value - train.value.mean()).norm() / test.value.norm())


def sized(method: str, dim: int, seed: int = 0) -> ConvexSurrogate:
    """Return a surrogate of the paper's size (METHOD+linear: and v'x), of its default sizes where the paper has none.

    The width at a dimension that the paper does not have is that of the next one it has, or the largest.
    """
    method, setting = split(method)
    if setting:
        model = sized(method, dim, seed)
        return type(model)(**{**model.config(), "linear": True, "seed": seed})
    width = next((width for known, width in WIDTHS.items() if known >= dim), WIDTHS[50])
    makers: dict[str, Callable[[int], ConvexSurrogate]] = {
        "relu": lambda layers: ReLUICNN(dim, hidden=(width,) * layers, seed=seed),
        "softplus": lambda layers: SoftplusICNN(dim, hidden=(width,) * layers, seed=seed),
        "quad": lambda layers: QuadICNN(dim, hidden=(width,) * layers, linear=False, seed=seed),
        "norm": lambda layers: NormICNN(dim, hidden=(width,) * layers, seed=seed),
        "ickan": lambda size: ICKAN(dim, hidden=(size,), segments=SEGMENTS, seed=seed),
    }
    soc = SOCICNN(dim, hidden=(width, width), quadratics=(dim,), norms=(dim,), linear=False, seed=seed)
    if method == "soc":
        return soc
    if method not in makers:
        return soctk.make_surrogate(method, dim, seed=seed)
    models = map(makers[method], itertools.count(1 if method == "ickan" else 2))
    return next(model for model in models if model.parameter_count >= soc.parameter_count)


WRITE = partial(write_approximation, quick_epochs=QUICK_RECIPE.epochs)
EXPERIMENT = Experiment(
    "approximation",
    approximation_cells,
    run_cell,
    MEASURED,
    WRITE,
    text=FIT_FIELDS,
    pages=pages("approximation.md", "approximation.svg"),
)
