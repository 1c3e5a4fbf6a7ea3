"""Learning from decisions as a setting of a method: METHOD+SETTING goes on where METHOD, learned from values, ended.

    optima   the conditions of optimality at known optima           optima of the training instances
    fy       Fenchel-Young: f(x*) - min f                           the same
    regret   F(x_hat) through the derivative of the decision        the true objective F at any point
    spo      SPO+, where the true objective is linear in x          its coefficients, and the optima

The right-hand column is what a setting knows beyond the values: rows of other settings compare with it only so far. All
have the same search (`soctk.fine_tune`): a fifth of the training instances judges, and may keep the method as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

import soctk
from soctk import ConvexSurrogate, Decision, FineTuneReport, FitConfig, ValueData
from soctk.learn.decision_losses import DecisionLoss
from soctk_evaluation.harness.recipe import PREFIX, recipe_of
from soctk_tasks import Task

FIELDS = ("optima_iterations", "optima_weights")
THROUGH_CVXPYLAYERS = {"optima_iterations": 10, "optima_weights": (1.0,)}
"""A step through cvxpylayers takes about ten seconds where one through our layer takes a twentieth of one."""


def setting_config(recipe: FitConfig, protocol: str) -> dict[str, Any]:
    """Return what determines learning from decisions, for `make_config`."""
    fields = {name: asdict(recipe)[name] for name in FIELDS}
    if protocol == "cvxpylayers":
        fields |= THROUGH_CVXPYLAYERS
    return {f"{PREFIX}{name}": value for name, value in fields.items()}


def learn_from_decisions(
    surrogate: ConvexSurrogate,
    task: Task,
    train: ValueData,
    best: Decision,
    setting: str,
    protocol: str,
    config: Mapping[str, Any],
    seed: int,
) -> FineTuneReport:
    """Fine-tune a surrogate that was learned from the training values.

    Args:
        surrogate: it changes.
        task: where the decisions are made.
        train: the training data.
        best: the optima of its instances.
        setting: one of `SETTINGS`.
        protocol: "cvxpylayers" differentiates through that package.
        config: the cell's.
        seed: of what is held out.

    Raises:
        ValueError: SPO+ on a task whose objective is not linear in x.
    """
    loss = _loss(task, train, best, setting, protocol)
    return soctk.fine_tune(surrogate, train, loss, recipe_of(config, seed))


def _loss(task: Task, train: ValueData, best: Decision, setting: str, protocol: str) -> DecisionLoss:
    context, where = train.context, task.feasible_set
    if setting == "optima":
        return soctk.Optimality(context, where, best.x)
    if setting == "fy":
        return soctk.Suboptimality(context, where, best.x)
    if setting == "spo":
        return soctk.SPOPlus(context, where, linear_costs(task, context), best.x)
    decider = _through_cvxpylayers if protocol == "cvxpylayers" else None
    return soctk.Regret(context, where, task.objective, best.value, decider)


def linear_costs(task: Task, context: torch.Tensor) -> torch.Tensor:
    """Return c of a task's objectives c'x + b, (N, n).

    Raises:
        ValueError: they are not linear in x.
    """
    form = task.surrogate().conic_form(context)
    if form.terms:
        raise ValueError(f"spo: expected a task whose objective is linear in x, got {task.name}; take fy or regret")
    return form.linear[:, 0].expand(len(context), -1)


def _through_cvxpylayers(surrogate: ConvexSurrogate, feasible_set: soctk.FeasibleSet):
    from soctk_baselines import CvxpyLayerDecider

    return CvxpyLayerDecider(surrogate, feasible_set).layer
