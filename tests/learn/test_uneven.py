"""Contexts of unequally many decisions: none is lost, none counts twice, and few rows of one spoil nothing."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from tolerances import CERTIFIED, DOUBLE

import soctk
from soctk import ValueData
from soctk.learn.data import typical
from soctk.learn.ladder import Ladder, Step
from soctk.learn.least_squares import LeastSquaresQuadratic
from soctk.learn.residuals import Residuals, needed_candidates
from soctk.learn.units import Standardized

N, EACH, CONTEXTS = 3, 8, 40
RECIPE = soctk.FitConfig(starts=1, epochs=2, newton_iterations=10, lbfgs_iterations=60, level_iterations=60)
SLOPE = 10.0
"""How steeply the level rises with the context; it never moves a decision."""


def log_of(counts: list[int], seed: int = 0, theta: np.ndarray | None = None) -> pd.DataFrame:
    """Return a log of noiseless values, rows of a context apart from each other, in contexts `theta` or random ones."""
    random = np.random.default_rng(seed)
    theta = random.normal(size=len(counts)) if theta is None else theta
    theta = np.repeat(theta, counts)
    x = random.uniform(size=(len(theta), N))
    columns = {f"x_{k}": x[:, k] for k in range(N)}
    frame = pd.DataFrame({"context_heat": theta, **columns, "value": cost(x, theta) + SLOPE * np.sin(2 * theta)})
    return frame.iloc[random.permutation(len(frame))].reset_index(drop=True)


def cost(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    center = 0.4 + 0.1 * np.tanh(theta)[:, None] * np.array([1.0, -1.0, 0.5])
    return ((x - center) ** 2 * np.array([1.0, 2.0, 3.0])).sum(axis=1) + 0.3 * np.abs(x[:, 0] - x[:, 1])


def fitted(data: ValueData) -> soctk.ConvexSurrogate:
    model = soctk.make_surrogate("soc", N, data.context_dim)
    soctk.fit(model, data, RECIPE)
    return model


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([8] * 60 + [1], 8),
        ([1] * 60 + [2], 1),
        ([5, 8, 20], 20),
        ([12] * 5 + [1] * 500, 1),  # most rows stand alone
        ([200] * 5 + [1] * 500, 1),  # and here most contexts do: five say little of how decisions follow contexts
        ([2] * 100 + [1] * 100, 2),
    ],
)
def test_what_is_typical(counts: list[int], expected: int) -> None:
    assert typical(torch.tensor(counts)) == expected


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(0, 99))
def test_every_row_is_there_once_with_its_context_and_tables_stay_small(counts: list[int], seed: int) -> None:
    log = log_of(counts, seed, np.arange(len(counts)))
    read = soctk.read_log(log)
    single = read.data.one_by_one()
    assert sorted(single.value[:, 0].tolist()) == sorted(log["value"])
    assert sorted(zip(single.context[:, 0].tolist(), single.value[:, 0].tolist(), strict=True)) == sorted(
        zip(read.columns.contexts(read.source)[:, 0].tolist(), log["value"], strict=True)
    )
    assert read.data.value.numel() <= 10 * len(log)
    assert torch.equal(read.data.observed.sum(), torch.tensor(len(log)))


def test_a_very_long_context_is_several_instances_each_of_decisions_from_all_of_it() -> None:
    log = log_of([4] * 40 + [400], theta=np.arange(41.0))
    log = log.sort_values(["context_heat", "x_0"])  # as of a sweep over one variable
    read = soctk.read_log(log)
    parts = read.data.rows((read.data.observed > 4).nonzero()[:, 0])
    assert parts.instances > 1
    spread = parts.x[..., 0].std(dim=1)
    assert bool((spread > 0.5 * float(log["x_0"].std())).all())
    assert "in instances of at most" in read.shape


@pytest.mark.parametrize("extra", [1, 2, 4])
def test_a_context_of_few_rows_changes_no_decision(extra: int) -> None:
    log, more = log_of([EACH] * CONTEXTS), log_of([extra], seed=5, theta=np.array([0.3]))
    alone = fitted(soctk.read_log(log).data)
    # As a part of the log, in whose units the contexts are, and of the data.
    data, lone = soctk.read_log(log).data, soctk.read_log(more).data
    place = torch.arange(EACH) % extra
    with_few = ValueData(
        *(
            torch.cat([getattr(data, name), part])
            for name, part in (
                ("context", data.context[:1] + 0.01),
                ("x", lone.x[:, place]),
                ("value", lone.value[:, place]),
            )
        ),
        torch.tensor([EACH] * CONTEXTS + [extra]),
    )
    box, contexts = soctk.Box(N), data.context
    found = [soctk.minimize(model, box, contexts, tol=CERTIFIED) for model in (alone, fitted(with_few))]
    torch.testing.assert_close(found[0].x, found[1].x, rtol=0, atol=10 * CERTIFIED)
    assert needed_candidates(alone, [with_few]) > extra


def test_a_log_with_a_row_of_another_context_is_decided_as_well_as_without() -> None:
    log = log_of([EACH] * CONTEXTS)
    uneven = pd.concat([log, log_of([1], seed=5)])
    theta = np.linspace(-1, 1, 50)
    costs = []
    for frame in (log, uneven):
        read = soctk.read_log(frame)
        contexts = read.columns.contexts(pd.DataFrame({"context_heat": theta}))
        x = soctk.minimize(fitted(read.data), soctk.Box(N), contexts).x.numpy()
        costs.append(float(cost(x, theta).mean()))
    assert costs[1] < 1.01 * costs[0]


def test_levels_are_learned_where_a_context_has_but_one_row() -> None:
    """Of contexts below 0 there are many decisions, of those above but one each: the level rises there all the same."""
    theta = np.concatenate([np.linspace(-1, 0, CONTEXTS), np.linspace(0.1, 1.5, CONTEXTS)])
    read = soctk.read_log(log_of([EACH] * CONTEXTS + [1] * CONTEXTS, theta=theta))
    assert read.data.candidates == EACH
    model = fitted(read.data)
    single = read.data.one_by_one()
    above = single.rows((single.context[:, 0] > float(single.context[:, 0].median()) + 0.5).nonzero()[:, 0])
    with torch.no_grad():
        missed = (model(above.x, above.context) - above.value).square().mean().sqrt()
    assert float(missed) < 0.2 * float(above.value.std())


def test_a_repeated_value_counts_as_often_as_the_others() -> None:
    """The loss is that of all observed values within their instance, each once."""
    random = torch.Generator().manual_seed(0)
    counts = [8, 4, 2]
    x, value = torch.randn(3, 8, N, generator=random, dtype=DOUBLE), torch.randn(3, 8, generator=random, dtype=DOUBLE)
    place = torch.stack([torch.arange(8) % count for count in counts])
    rows = torch.arange(3).unsqueeze(1)
    data = ValueData(torch.zeros(3, 1), x[rows, place], value[rows, place], torch.tensor(counts))
    model = soctk.NormICNN(N, 1, hidden=(4,)).double()
    found = Residuals.weighted(Standardized.of(model, data, DOUBLE), 0.0).total(model)
    with torch.no_grad():
        left = [value[k, :count] - model(x[k, :count], torch.zeros(1)) for k, count in enumerate(counts)]
        expected = sum((each - each.mean()).square().sum() for each in left) / sum(counts)
    torch.testing.assert_close(found, expected / model.value_scale**2)


def test_few_contexts_are_on_both_sides_beside_one_of_a_row() -> None:
    read = soctk.read_log(log_of([60, 50, 40, 1], theta=np.arange(4.0)))
    parts = read.data.split(seed=1)
    contexts = [set(part.context[:, 0].tolist()) for part in parts]
    lone = {float(read.data.context[read.data.observed == 1, 0])}
    assert contexts[0] - contexts[1] == lone
    assert len(contexts[1]) == 3
    assert sorted(torch.cat([part.one_by_one().value[:, 0] for part in parts]).tolist()) == sorted(
        read.data.one_by_one().value[:, 0].tolist()
    )


def test_where_single_rows_are_typical_each_value_is_an_instance() -> None:
    """Also where data are given with counts."""
    data = soctk.read_log(log_of([1] * 60)).data
    filled = ValueData(
        data.context, data.x.expand(-1, 3, -1), data.value.expand(-1, 3), torch.ones(data.instances, dtype=torch.int64)
    )
    models = [fitted(each) for each in (data, filled)]
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["soc", "quadratic"])
def test_filled_up_everywhere_the_fit_is_the_one_of_the_values_alone(name: str) -> None:
    """Where noise leaves one centre, a quadratic or both."""
    log = log_of([4] * 60)
    log["value"] += 0.1 * np.random.default_rng(3).normal(size=len(log))
    data = soctk.read_log(log).data
    filled = ValueData(
        data.context, data.x.repeat(1, 3, 1), data.value.repeat(1, 3), torch.full((data.instances,), data.candidates)
    )
    models = [soctk.make_surrogate(name, N, 1, seed=1) for _ in range(2)]
    for model, each in zip(models, (data, filled), strict=True):
        soctk.fit(model, each, RECIPE)
    assert models[0].config() == models[1].config()
    x = [soctk.minimize(model, soctk.Box(N), data.context).x for model in models]
    torch.testing.assert_close(x[0], x[1], rtol=0, atol=1e-4)


def test_the_least_squares_quadratic_is_that_of_the_observed_values() -> None:
    random = torch.Generator().manual_seed(1)
    counts = torch.tensor([8, 4, 2, 1] * 20)
    x, value = (torch.randn(80, 8, *size, generator=random, dtype=DOUBLE) for size in ((N,), ()))
    place, rows = torch.arange(8) % counts.unsqueeze(1), torch.arange(80).unsqueeze(1)
    data = ValueData(torch.randn(80, 1, generator=random), x[rows, place], value[rows, place], counts)
    model = soctk.make_surrogate("quadratic", N, 1)
    found, expected = (
        LeastSquaresQuadratic.of(Standardized.of(model, each, DOUBLE)) for each in (data, data.one_by_one())
    )
    for name in ("Q", "slope", "level"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-5)
    models = [soctk.make_surrogate("quadratic", N, 1) for _ in range(2)]
    for each, of in zip(models, (data, data.one_by_one()), strict=True):
        soctk.fit(each, of)
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("seed", [1, 5])
def test_what_repeats_a_value_is_no_evidence_for_a_structure(seed: int) -> None:
    """Where few instances' candidates are left out one by one, copies of what was learned from were among them."""
    counts, width = torch.tensor([60] + 12 * [8]), 60
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(13, 2, generator=generator, dtype=DOUBLE)
    x = torch.rand(13, width, 3, generator=generator, dtype=DOUBLE)
    value = (x - 0.4).square().sum(dim=-1) + 0.3 * torch.randn(13, width, generator=generator, dtype=DOUBLE)
    place = torch.arange(width) % counts.unsqueeze(1)
    filled = ValueData(context, x.gather(1, place.unsqueeze(-1).expand(-1, -1, 3)), value.gather(1, place), counts)
    ladder = Ladder(soctk.make_surrogate("soc", 3, 2).traits.centred, 0.1, seed, lambda: False)
    for data in (filled, filled.one_by_one()):
        standard = Standardized.of(soctk.make_surrogate("soc", 3, 2), data, DOUBLE)
        assert ladder.choose(standard) == Step(0)  # the truth is the least-squares quadratic's


def test_repeated_values_are_no_more_to_learn_from() -> None:
    """Two contexts of two values each, filled up to thirty, were enough for no warning; half is held out."""
    few = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    place = torch.arange(30) % 2
    data = ValueData(torch.eye(2), few[:, place], few.sum(dim=-1)[:, place], torch.tensor([2, 2]))
    with pytest.warns(UserWarning, match="data: 2 observed values to learn from"):
        soctk.fit(soctk.make_surrogate("quad", 3, 2), data, RECIPE)
