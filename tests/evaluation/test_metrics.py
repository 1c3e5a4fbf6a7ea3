"""Scores on a real task: exact decisions, failed and infeasible ones, errors and policies."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from ball import Ball
from torch import Tensor

from soctk_evaluation.metrics import Scores, evaluate, relative_error, solver_regret
from soctk_tasks import make_task

TASK = make_task("budget_twocone_socp", dim=5, seed=1)
DATA = TASK.sample(12, 6, seed=3)
OPTIMUM = TASK.solve(DATA.context)


class Fixed:
    """A policy that always answers with the same given decisions."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def decide(self, context: Tensor) -> Tensor:
        return self.x[: len(context)].clone()


def score(x: Tensor) -> Scores:
    return evaluate(Fixed(x), TASK, DATA.context, optimum=OPTIMUM)


def test_the_oracle_has_no_error_and_a_regret_within_its_tolerance() -> None:
    scores = evaluate(TASK.surrogate(), TASK, DATA.context, optimum=OPTIMUM, test_data=DATA, tol=1e-6)
    scale = max(1.0, float(OPTIMUM.value.abs().max()))
    assert scores.relative_error == 0.0
    assert -1e-8 * scale <= float(scores.regret.min()) <= scores.regret_max <= 1e-6 * scale
    assert scores.gap_max is not None
    assert scores.gap_max <= 1e-6 * scale
    assert scores.status == "ok"
    assert scores.decide_ms > 0


def test_over_a_set_of_ones_own_the_oracle_is_decided_without_newton_steps() -> None:
    task = replace(TASK, feasible_set=Ball(5, 0.5))
    scores = evaluate(task.surrogate(), task, DATA.context[:4])
    assert scores.regret_max <= 1e-5
    assert scores.status == "ok"


def test_the_papers_protocol_has_a_regret_of_its_own_on_a_budget_set() -> None:
    oracle = TASK.surrogate()
    exact = solver_regret(oracle, TASK, DATA.context, optimum=OPTIMUM, method="newton")
    paper = solver_regret(oracle, TASK, DATA.context, optimum=OPTIMUM, method="projected_adam")
    assert paper > 100 * max(exact, 1e-8)


def test_optimal_decisions_have_no_regret_and_others_have_theirs() -> None:
    assert score(OPTIMUM.x).regret_max == 0.0
    x = TASK.feasible_set.center().expand(12, -1)
    scores = score(x)
    expected = TASK.objective(x, DATA.context) - TASK.objective(OPTIMUM.x, DATA.context)
    torch.testing.assert_close(scores.regret, expected, rtol=0, atol=0)
    assert scores.regret_mean == pytest.approx(float(expected.mean()))
    assert scores.regret_stderr == pytest.approx(float(expected.std()) / math.sqrt(12))
    assert scores.decision_error == pytest.approx(float((x - OPTIMUM.x).norm(dim=-1).mean()))
    assert scores.relative_error is None
    assert scores.gap_max is None


def test_failed_decisions_are_scored_at_the_centre_and_counted() -> None:
    x = OPTIMUM.x.clone()
    x[3] = torch.nan
    x[5, 0] = torch.inf
    scores = score(x)
    center = TASK.feasible_set.center().expand(12, -1)
    at_center = TASK.objective(center, DATA.context) - TASK.objective(OPTIMUM.x, DATA.context)
    assert len(scores.regret) == 12
    assert float(scores.regret[3]) == pytest.approx(float(at_center[3]))
    assert float(scores.regret[5]) == pytest.approx(float(at_center[5]))
    assert scores.status == "2 of 12 decisions failed (scored at the set's centre)"


def test_infeasible_decisions_gain_nothing() -> None:
    x = OPTIMUM.x.clone()
    x[2] -= 0.5  # leaves the set, possibly below the optimum
    scores = score(x)
    assert float(scores.regret.min()) >= -1e-8
    assert scores.status == "1 of 12 decisions infeasible (scored at their projection)"


def test_relative_error_is_the_relative_norm_over_all_candidates() -> None:
    other = make_task("budget_twocone_socp", dim=5, seed=2)
    predicted = other.objective(DATA.x, DATA.context)
    expected = float((predicted - DATA.value).norm() / DATA.value.norm())
    assert relative_error(other.surrogate(), DATA) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("contexts", [torch.zeros(8), torch.zeros(0, 8), torch.zeros(3, 7)])
def test_wrong_contexts_are_refused(contexts: Tensor) -> None:
    with pytest.raises(ValueError, match="contexts"):
        evaluate(TASK.surrogate(), TASK, contexts)


def test_an_optimum_of_other_contexts_is_refused() -> None:
    with pytest.raises(ValueError, match="optimum"):
        evaluate(TASK.surrogate(), TASK, DATA.context[:3], optimum=OPTIMUM)
