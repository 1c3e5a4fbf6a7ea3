"""`soctk.assess`: verdicts where the truth is known, intervals that hold it, and the arithmetic behind them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import soctk
from soctk import ValueData, Verdict
from soctk.assessment.assess import _error
from soctk.assessment.assessment import Error
from soctk.assessment.convexity import Curvature, curvature
from soctk.assessment.minimum import Costs, Interval
from soctk.assessment.noise import noise_floor
from soctk.assessment.overlap import Overlap, overlap
from soctk.assessment.quadratic import QuadraticRival
from soctk.assessment.regret import sampled_regrets
from soctk.assessment.rows import Axes, Rows
from soctk.assessment.smoother import LEVELS, SLOPES, Smoother, _covariance
from soctk.assessment.verdict import judge

DIM, CONTEXT = 3, 2
BOX = soctk.Box(DIM, -1.0, 1.0)


def log(cost, rows: int = 500, noise: float = 0.1, seed: int = 0, context_dim: int = CONTEXT) -> ValueData:
    """Decisions near a policy that follows the context, and what they cost."""
    random = np.random.default_rng(seed)
    theta = random.normal(size=(rows, context_dim))
    x = 0.2 * theta.sum(axis=1, keepdims=True) + 0.4 * random.normal(size=(rows, DIM))
    value = cost(x, theta) + noise * random.normal(size=rows)
    return ValueData(theta, x[:, None], value[:, None])


ONE_DECISION = ValueData(torch.zeros(60, CONTEXT), torch.full((60, 1, DIM), 0.5), torch.arange(60.0).reshape(60, 1))


def bowl(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    return 2 + ((x - 0.2 * np.tanh(theta[:, :1])) ** 2).sum(axis=1)


def saddle(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    return bowl(x, theta) - 3 * x[:, 0] ** 2


def learned(data: ValueData) -> soctk.ConvexSurrogate:
    model = soctk.make_surrogate("quadratic", data.dim, data.context_dim)
    soctk.fit(model, data)
    return model


def test_a_quadratic_is_as_good_as_the_quadratic_and_its_cost_is_where_it_is_said() -> None:
    train, data = log(bowl, seed=1), log(bowl, seed=2)
    model = learned(train)
    found = soctk.assess(model, data, BOX, train=train)
    assert found.verdict == Verdict.QUADRATIC
    assert "keep the quadratic" in found.line
    decision = soctk.minimize(model, BOX, data.context[:300])
    truth = bowl(decision.x.numpy(), data.context[:300].numpy()).mean()
    assert found.expected.low < truth < found.expected.high
    assert found.noise.deviation == pytest.approx(0.1, rel=0.2)
    # The model was fitted to four fifths of the rows, the quadratic to all: a few percent of a few percent's worth.
    assert found.errors["model"].rms == pytest.approx(found.errors["quadratic"].rms, rel=0.06)
    assert found.regret is not None
    assert 0 <= found.regret.low <= found.regret.estimate <= found.regret.high


def test_the_truth_is_good_where_it_is_no_quadratic() -> None:
    lengths = [(4.0, np.eye(DIM)[k : k + 1], np.zeros(1)) for k in range(DIM)]
    truth = soctk.from_quadratic(np.zeros((DIM, DIM)), -1.5 * np.ones(DIM), norms=lengths)

    def cost(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return truth(torch.from_numpy(x)).numpy()

    random = np.random.default_rng(0)
    x = random.normal(size=(800, DIM)) + 0.5
    value = cost(x, x) + 0.1 * random.normal(size=800)
    data = ValueData(np.zeros((800, 0)), x[:, None], value[:, None])
    found = soctk.assess(truth, data, BOX)
    assert found.verdict == Verdict.GOOD
    assert found.difference.estimate < 0
    assert found.expected.low < 0 < found.expected.high


def test_a_log_that_is_curved_the_wrong_way_is_found_out() -> None:
    data = log(saddle, rows=800)
    found = soctk.assess(learned(log(saddle, seed=1)), data, BOX)
    assert found.verdict == Verdict.CURVATURE
    assert found.curvature.least < 0


def test_of_too_few_rows_for_halves_all_are_tested_and_allowed_for() -> None:
    """A cost that is curved the wrong way is found out, and flat ones are not accused: 150 rows, 60 coefficients."""
    model = soctk.from_quadratic(torch.zeros(3, 3), torch.zeros(3))

    def found(bend: float, seed: int) -> Curvature:
        random = np.random.default_rng(seed)
        theta, x = random.normal(size=(150, 5)), random.normal(size=(150, 3))
        value = theta[:, 0] + x @ [1.0, 2.0, 0.0] - bend * x[:, 1] ** 2 + 0.3 * random.normal(size=150)
        rows = Rows(theta, x, value, np.arange(150))
        return curvature(model, rows, Axes.of(rows))

    against = found(1.0, 0)
    assert not against.apart
    assert against.p_value < 1e-6
    assert against.least < -1
    flat = [found(0.0, seed) for seed in range(40)]
    assert not any(each.apart for each in flat)
    assert min(each.p_value for each in flat) > 0.005


def test_convex_logs_are_not_accused() -> None:
    """The probability is one of chance: of 20 convex logs with a flat direction none is below 0.005, or it is bad luck
    of one in ten."""

    def flat(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return bowl(x, theta) - ((x[:, 2] - 0.2 * np.tanh(theta[:, 0])) ** 2)

    model = learned(log(flat))
    found = []
    for seed in range(20):
        rows = Rows.of(log(flat, rows=300, noise=1.0, seed=seed))
        found.append(curvature(model, rows, Axes.of(rows)).p_value)
    assert min(found) > 0.005


def test_measuring_a_decision_again_is_no_evidence() -> None:
    """What the context explains and a quadratic does not is the same in all measurements: a third were accused."""
    model, found = soctk.from_quadratic(torch.zeros(2, 2), torch.zeros(2)), []
    for seed in range(20):
        random = np.random.default_rng(seed)
        theta, x = (random.normal(size=(60, k)).repeat(12, axis=0) for k in (1, 2))
        value = 3 * np.sin(4 * theta[:, 0]) + x[:, 0] + 0.3 * random.normal(size=len(x))
        rows = Rows(theta, x, value, np.arange(len(x)))
        found.append(curvature(model, rows, Axes.of(rows)).p_value)
    assert min(found) > 0.005


def test_the_probability_of_one_so_low_is_what_is_said() -> None:
    """Residuals of a fit are smaller than noise where features are large: of 60 rows .085 were below .05."""
    model, found = soctk.from_quadratic(torch.zeros(1, 1), torch.zeros(1)), []
    for seed in range(400):
        theta, x = np.random.default_rng(seed).normal(size=(2, 60, 1))
        value = theta[:, 0] + x[:, 0] + np.random.default_rng(1000 + seed).normal(size=60)
        rows = Rows(theta, x, value, np.arange(60))
        found.append(curvature(model, rows, Axes.of(rows)).p_value)
    assert 0.02 < np.mean(np.array(found) < 0.05) < 0.07  # 400 draws: .011 a standard error


@pytest.mark.parametrize(("level", "slope"), [(100.0, 1.0), (1e3, 0.0), (1e-6, 1e-9), (0.0, 1.0)])
def test_the_rounding_of_affine_logs_is_no_evidence(level: float, slope: float) -> None:
    """Residuals of 1e-13 were noise of that size, and what they regress on evidence: in a fifth of such logs."""

    def affine(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return level + slope * (3 * x[:, 0] + 2 * x[:, 1])

    model = learned(log(affine, noise=0.0))
    for seed in range(20):
        rows = Rows.of(log(affine, rows=100 + 20 * seed, noise=0.0, seed=seed))
        assert curvature(model, rows, Axes.of(rows)).p_value > 0.4


def test_curvature_of_the_wrong_sign_is_evidence_however_small_beside_the_level() -> None:
    rows = Rows.of(log(lambda x, theta: 1e6 + 1e-3 * saddle(x, theta), noise=0.0))
    assert curvature(learned(log(saddle)), rows, Axes.of(rows)).p_value < 1e-9


def test_residuals_that_are_zero_have_no_noise() -> None:
    """They had 2.8e-5, whatever the unit of the values."""
    random = np.random.default_rng(0)
    process = Smoother.of(random.normal(size=(60, 2)), random.normal(size=(60, 3)), np.zeros(60), 1.0, LEVELS)
    mean, covariance = process.at(random.normal(size=(5, 2)), random.normal(size=(5, 3)))
    assert (process.noise, process.noise_error(), np.abs(mean).max(), np.abs(covariance).max()) == (0, 0, 0, 0)


def test_noise_alone_is_no_reason_to_decide() -> None:
    def nothing(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
        return np.zeros(len(x))

    found = soctk.assess(learned(log(nothing, seed=1)), log(nothing, rows=800, noise=1.0), BOX)
    assert found.verdict == Verdict.CONSTANT


@pytest.mark.parametrize(("rows", "seen"), [(20, False), (300, True)])
def test_too_few_rows_and_rows_that_were_seen_tell_nothing(rows: int, seen: bool) -> None:
    data = log(bowl, rows=rows)
    found = soctk.assess(learned(log(bowl)), data, seen=seen)
    assert found.verdict == Verdict.FEW
    assert ("has learned" in str(found)) == seen


def test_the_noise_of_replicated_rows_is_theirs() -> None:
    data = log(bowl, rows=100, noise=0.0)
    noise = 0.3 * np.random.default_rng(0).normal(size=(100, 8))
    again = ValueData(data.context, data.x.expand(-1, 8, -1), data.value + torch.from_numpy(noise))
    found = soctk.assess(learned(log(bowl)), again, BOX)
    assert found.noise.deviation == pytest.approx(np.sqrt(noise.var(axis=1, ddof=1).mean()), rel=1e-9)
    assert "800 replicated rows" in found.noise.source


def test_rows_that_were_written_twice_say_nothing_of_noise() -> None:
    """15 copies among 400 rows made it 0, with an error of 0."""
    rows = Rows.of(log(bowl, rows=200))
    copied = rows.select(np.concatenate([np.arange(200), np.arange(15)]))
    axes = Axes.of(copied)
    process = Smoother.of(
        axes.z(copied.context), axes.d(copied.context, copied.x), copied.value - copied.value.mean(), 1.0, SLOPES
    )
    found = noise_floor(copied, process)
    assert found.deviation == process.noise > 0
    assert found.error > 0


def test_rows_that_happen_to_be_equal_are_rows() -> None:
    """Two prices, sold or not: most rows of a context equal another, and the mean would change without them."""
    random = np.random.default_rng(0)
    x = random.integers(1, 3, size=(40, 9, 1)).astype(float)
    value = (random.random((40, 9)) < 0.2).astype(float)
    rows = Rows.of(ValueData(np.arange(40.0)[:, None], x, value))
    np.testing.assert_array_equal(rows.value, value.reshape(-1))


@pytest.mark.parametrize("count", [4, 5, 7])
def test_rows_that_only_fill_a_context_up_do_not_count(count: int) -> None:
    random = np.random.default_rng(0)
    x, value = random.normal(size=(6, count, 2)), random.normal(size=(6, count))
    places = np.arange(7) % count
    counts = torch.full((6,), count)
    rows = Rows.of(ValueData(random.normal(size=(6, 1)), x[:, places], value[:, places], counts))
    np.testing.assert_array_equal(rows.value, value.reshape(-1))


@pytest.mark.parametrize("heavy", [False, True])
def test_the_error_of_a_noise_floor_is_what_it_varies_by(heavy: bool) -> None:
    """Of 200 logs the estimates' deviation is known to 1 / sqrt(400) = 5 % for normal noise, and to more in tails."""
    random, found = np.random.default_rng(0), []
    x = random.normal(size=(60, 1)).repeat(3, axis=0)
    for _ in range(200):
        value = random.standard_t(6, size=180) if heavy else random.normal(size=180)
        found.append(noise_floor(Rows(np.zeros((180, 0)), x, value, np.arange(180)), process=None))
    assert all("180 replicated rows" in each.source for each in found)
    varies = np.std([each.deviation for each in found])
    assert np.mean([each.error for each in found]) == pytest.approx(varies, rel=0.2)


@pytest.mark.parametrize("heavy", [False, True])
def test_the_error_of_smoothed_noise_is_what_it_varies_by(heavy: bool) -> None:
    """In its own units it is about 1; of 12 logs the root mean square is known to 20 %, and to less in tails."""
    random, scores = np.random.default_rng(0), []
    z, d = random.normal(size=(150, 1)), random.normal(size=(150, 2))
    for _ in range(12):
        noise = random.standard_t(6, size=150) / np.sqrt(1.5) if heavy else random.normal(size=150)
        process = Smoother.of(z, d, noise + 0.3 * d[:, 0], 1.0, SLOPES)
        scores.append((process.noise - 1.0) / process.noise_error())
    assert 0.5 < np.sqrt(np.mean(np.square(scores))) < 1.7


def test_each_context_may_have_a_set_of_its_own() -> None:
    data = log(bowl, rows=200)
    upper = torch.linspace(0.1, 1.0, 200, dtype=torch.float64)[:, None].expand(-1, DIM)
    found = soctk.assess(learned(log(bowl)), data, soctk.Box(DIM, -1.0, 1.0).at(upper=upper))
    assert (found.shown.decisions <= upper.numpy() + 1e-8).all()


def test_replicated_rows_that_agree_are_rows(tmp_path) -> None:
    """Of integer costs measured twice only the pairs that differ were kept: the noise floor was 1.7 times too high."""
    random = np.random.default_rng(0)
    context, x = np.repeat(random.normal(size=(300, 1)), 2, axis=0), np.repeat(random.uniform(size=(300, 2)), 2, axis=0)
    cost = np.round(20 * ((x - 0.5) ** 2).sum(axis=1) + 3 * context[:, 0] + 0.3 * random.normal(size=600))
    frame = pd.DataFrame({"context_a": context[:, 0], "x_a": x[:, 0], "x_b": x[:, 1], "value": cost})
    data = soctk.read_log(frame).data
    assert len(Rows.of(data)) == 600
    differ = cost.reshape(300, 2)
    model = soctk.make_surrogate("quadratic", 2, 1)
    soctk.fit(model, data)
    found = soctk.assess(model, data, soctk.Box(2))
    assert found.noise.deviation == pytest.approx(np.sqrt(differ.var(axis=1, ddof=1).mean()), rel=1e-9)


def test_a_row_more_in_one_context_leaves_standard_errors_as_they_were() -> None:
    """Rows of a context are together in it, however they are given: taken one by one they counted as independent."""
    random = np.random.default_rng(0)
    context, level = random.normal(size=(120, 1)), random.normal(size=(120, 1))
    x = random.uniform(-1, 1, size=(120, 10, DIM))
    data = ValueData(context, x, level + np.square(x).sum(axis=-1))
    blind = soctk.make_surrogate("quadratic", DIM, 1)
    soctk.fit(blind, data)
    scores = [soctk.assess(blind, part, BOX).errors for part in (data, data.one_by_one())]
    for name, error in scores[0].items():
        assert error.score == pytest.approx(scores[1][name].score, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("contexts", [2, 5, 19, 20, 60])
def test_intervals_hold_the_truth_for_few_contexts_too(contexts: int) -> None:
    """Rows of fewer than 20 contexts counted as independent: intervals of 90 % held the truth in 20 %."""
    random, held = np.random.default_rng(contexts), []
    theta = np.arange(contexts, dtype=float).repeat(40)[:, None]
    for _ in range(400):
        more = random.normal(size=contexts).repeat(40) + 0.5 * random.normal(size=len(theta))
        squares = 10.0 + more
        excess = _error(squares, np.full(len(theta), 10.0), Rows(theta, theta, squares, np.arange(len(theta)))).excess
        held.append(excess.low <= 0.0 <= excess.high)
    assert 0.85 < np.mean(held) < 0.95  # 400 draws: .015 a standard error


def test_a_model_that_decides_as_the_quadratic_does_is_said_to() -> None:
    train, data = log(bowl, seed=1), log(bowl, seed=2)
    found = soctk.assess(QuadraticRival(Rows.of(train)), data, BOX, train=train)
    assert "it decides as the quadratic does" in str(found)
    assert str(found.difference) not in str(found)
    assert "the verdict is to keep the quadratic all the same" in str(found)


@pytest.mark.parametrize(("upper", "share"), [(1.0, 0.0), (3.0, 1.0)])
def test_decisions_that_no_row_is_near_at_their_context_are_counted(upper: float, share: float) -> None:
    """Decisions follow the context within 1 and range over 5; a plan 3 above is usual in some contexts, not there."""
    random = np.random.default_rng(0)
    theta = random.uniform(-5, 5, size=(600, 1))
    x = theta + random.uniform(-1, 1, size=(600, 1))
    rows = Rows(theta, x, np.zeros(600), np.arange(600))
    at = np.linspace(-2.5, 2.5, 50)[:, None]
    found = overlap(rows, at, at + 0.7 * upper)
    assert (found.beyond_all, found.beyond_most) == (share, share)
    assert ("extrapolated" in str(found)) == (share > 0)


def test_of_a_plan_far_from_the_log_nothing_is_said() -> None:
    """A better prediction and cheaper decisions are good where the log is near, and only there."""
    errors = {
        name: Error(1.0, 9.0, Interval(9.0, 8.0, 10.0)) for name in ("model", "quadratic", "constant", "context alone")
    }
    less = Interval.around(-3.0, 1.0)
    costs = Costs(less, np.zeros(1), np.zeros(1), less, less)
    none = Curvature(np.zeros((0, 1)), np.zeros(0), np.zeros(0), np.zeros(0), 0.0, 1.0, False)
    verdicts = [judge(500, 30, False, errors, 1.0, costs, none, Overlap(far, far))[0] for far in (0.0, 0.05, 0.2)]
    assert verdicts == [Verdict.GOOD, Verdict.GOOD, Verdict.FEW]


@pytest.mark.parametrize(
    ("data", "sets", "message"),
    [
        (log(bowl, context_dim=3), BOX, "data: expected decision and context dimensions"),
        (log(bowl), soctk.Box(4), "feasible_set: expected dimension 3"),
        (log(bowl), soctk.Box(DIM).at(upper=torch.ones(7, DIM)), "one for each of 500 instances"),
        (ONE_DECISION, None, "expected the set of decisions; the logged decisions are one point"),
    ],
)
def test_mistakes_are_named(data: ValueData, sets, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        soctk.assess(learned(log(bowl)), data, sets)


def test_the_process_given_residuals_is_that_of_the_dense_formulas() -> None:
    random = np.random.default_rng(0)
    z, d, r = random.normal(size=(60, 2)), random.normal(size=(60, 3)), random.normal(size=60)
    process = Smoother.of(z, d, r, 1.0, LEVELS)
    at = random.normal(size=(5, 2)), random.normal(size=(5, 3))
    mean, covariance = process.at(*at)

    def k(a, b) -> np.ndarray:
        left, right = (tuple(map(torch.from_numpy, part)) for part in (a, b))
        return process.unit**2 * _covariance(left, right, process.log, True).numpy()

    K = k((z, d), (z, d)) + (process.noise**2 + 1e-8 * process.unit**2) * np.eye(60)
    across = k((z, d), at)
    np.testing.assert_allclose(mean, across.T @ np.linalg.solve(K, r), atol=1e-9)
    np.testing.assert_allclose(covariance, k(at, at) - across.T @ np.linalg.solve(K, across), atol=1e-9)


def test_a_model_that_is_not_tilted_has_no_regret() -> None:
    model, theta = learned(log(bowl)), torch.randn(6, CONTEXT, dtype=torch.float64)
    best = soctk.minimize(model, BOX, theta).x.numpy()
    none = sampled_regrets(model, BOX, theta.numpy(), best, np.zeros((2, 6, DIM)), None)
    np.testing.assert_allclose(none, 0.0, atol=1e-4)  # decisions over tilted models are certified to that


def test_the_unit_of_the_values_does_not_matter() -> None:
    train, data = (log(bowl, rows=200, seed=seed) for seed in (1, 2))
    found = []
    for unit in (1.0, 1e-8):
        parts = [ValueData(part.context, part.x, unit * part.value) for part in (train, data)]
        found.append(soctk.assess(learned(parts[0]), parts[1], BOX))
    usual, small = found
    assert small.regret is not None
    assert usual.regret is not None
    assert small.regret.estimate / 1e-8 == pytest.approx(usual.regret.estimate, rel=0.05)
    assert small.verdict == usual.verdict


def test_models_of_single_precision_are_assessed_too() -> None:
    model = learned(log(bowl, rows=200, seed=1)).float()
    assert soctk.assess(model, log(bowl, rows=200, seed=2), BOX).regret is not None


def test_one_value_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two observed values"):
        soctk.assess(learned(log(bowl, rows=50)), log(bowl, rows=1), BOX)
