"""The estimator: scikit-learn's own checks, convexity in the decision's columns, texts and dates, decisions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

import soctk
from soctk.sklearn import ConvexRegressor

QUICK = soctk.FitConfig(
    starts=1, epochs=2, newton_iterations=4, lbfgs_iterations=20, level_iterations=10, choose_structure=False
)
ROWS = 240


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([ConvexRegressor(config=QUICK), ConvexRegressor(context=[0], model="quadratic")])
def test_scikit_learns_own_checks(estimator, check) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Rows whose cost is a squared distance that moves with the site and the hour."""
    random = np.random.default_rng(0)
    when = pd.date_range("2024-01-01", periods=ROWS, freq="h")
    table = pd.DataFrame({"when": when, "site": random.choice(["Nord", "Süd"], ROWS), "load": random.normal(size=ROWS)})
    table[["u", "w"]] = random.uniform(-1, 1, size=(ROWS, 2))
    best = 0.3 * (table["site"] == "Süd") + 0.2 * np.cos(2 * np.pi * when.hour / 24)
    return table.assign(cost=(table["u"] - best) ** 2 + (table["w"] - 0.2 * table["load"]) ** 2)


@pytest.fixture(scope="module")
def estimator(frame: pd.DataFrame) -> ConvexRegressor:
    return ConvexRegressor(decision=["u", "w"], config=QUICK).fit(frame.drop(columns="cost"), frame["cost"])


def test_predictions_are_convex_in_the_decision(estimator: ConvexRegressor, frame: pd.DataFrame) -> None:
    random, X = np.random.default_rng(1), frame.drop(columns="cost")
    ends = [X.assign(u=random.normal(size=ROWS), w=random.normal(size=ROWS)) for _ in range(2)]
    share = random.uniform(size=ROWS)
    between = X.assign(**{k: share * ends[0][k] + (1 - share) * ends[1][k] for k in ("u", "w")})
    chord = share * estimator.predict(ends[0]) + (1 - share) * estimator.predict(ends[1])
    assert (estimator.predict(between) <= chord + 1e-9).all()


def test_texts_and_dates_are_learned_from(estimator: ConvexRegressor, frame: pd.DataFrame) -> None:
    X = frame.drop(columns="cost")
    assert [str(feature) for feature in estimator.features_] == [
        "a date, by hour of day, weekday",
        "2 categories, Nord, Süd",
        "a number",
    ]
    assert estimator.score(X, frame["cost"]) > 0.9
    with pytest.raises(ValueError, match="column site, row 1: expected a category that the model knows, Nord, Süd"):
        estimator.predict(X.assign(site="Ost"))
    with pytest.raises(ValueError, match="feature names"):
        estimator.predict(X.drop(columns="site"))


@pytest.mark.parametrize(
    "codes",
    [
        np.array([False, True]),
        np.array([0.1, 0.2], np.float32),
        np.array([10**16, 10**16 + 2]),
        np.array([2**53, 2**53 + 1]),
    ],
)
def test_numbers_that_are_categories_are_the_same_to_learn_from_and_to_decide_for(codes: np.ndarray) -> None:
    random = np.random.default_rng(0)
    night = random.integers(0, 2, 100)
    log = pd.DataFrame({"x": random.normal(size=100), "night": codes[night]})
    estimator = ConvexRegressor(decision=["x"], category=["night"], model="quadratic")
    estimator.fit(log, (log["x"] - 0.5 * night) ** 2)
    found = estimator.decide(soctk.Box(1, -1.0, 1.0), log)
    np.testing.assert_allclose(found.x[:, 0], 0.5 * night, atol=1e-3)
    with pytest.raises(ValueError, match="expected a category that the model knows"):
        estimator.decide(soctk.Box(1, -1.0, 1.0), log.assign(night=7))


def test_the_estimator_decides(estimator: ConvexRegressor, frame: pd.DataFrame) -> None:
    contexts = frame.head(20)
    decision = estimator.decide(soctk.Box(2, -1.0), contexts)
    assert decision.optimal.all()
    best = contexts.assign(u=decision.x[:, 0].numpy(), w=decision.x[:, 1].numpy()).drop(columns="cost")
    np.testing.assert_allclose(estimator.predict(best), decision.value.numpy(), rtol=0, atol=1e-9)
    given = frame.drop(columns="cost").head(20)
    assert (estimator.predict(given) >= decision.lower_bound.numpy() - 1e-9).all()


def test_columns_go_by_number_in_arrays(frame: pd.DataFrame) -> None:
    X, y = frame[["u", "load", "w"]].to_numpy(), frame["cost"]
    one, other = (
        ConvexRegressor(model="quadratic", **part).fit(X, y) for part in ({"context": [1]}, {"decision": [0, -1]})
    )
    assert one.model_.dim == 2
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    decision = one.decide(soctk.Box(2, -1.0), X[:5, 1:2])
    assert torch.equal(decision.x, soctk.minimize(one.model_, soctk.Box(2, -1.0), X[:5, 1:2].copy()).x)
    with pytest.raises(ValueError, match=r"context: expected shape \(N, 1\), got \(5, 3\)"):
        one.decide(soctk.Box(2, -1.0), X[:5])


@pytest.mark.parametrize("kind", ["array", "frame", "frame with texts"])
def test_numbers_are_categories_where_they_are_named(kind: str) -> None:
    """The best decision jumps from zone to zone: what a number of the zone could not tell."""
    random, best = np.random.default_rng(0), np.array([0.5, -0.5, 0.9, -0.2])
    zone, u = random.integers(4, size=400), random.uniform(-1, 1, size=400)
    X = pd.DataFrame({"zone": zone, "u": u} | ({"site": "Nord"} if kind == "frame with texts" else {}))
    given = X.to_numpy() if kind == "array" else X
    columns = {"decision": [1], "category": [0]} if kind == "array" else {"decision": ["u"], "category": ["zone"]}
    estimator = ConvexRegressor(**columns, model="quadratic").fit(given, (u - best[zone]) ** 2)
    assert len(estimator.features_[0].labels) == 4
    contexts = X.drop(columns="u").iloc[[0]].assign(zone=2)
    chosen = estimator.decide(soctk.Box(1, -1.0, 1.0), contexts.to_numpy() if kind == "array" else contexts)
    assert float(chosen.x.squeeze()) == pytest.approx(0.9, abs=1e-4)
    with pytest.raises(ValueError, match=r"^category: expected columns of the context"):
        ConvexRegressor(**columns | {"category": columns["decision"]}).fit(given, u)


def test_it_stands_in_pipelines(frame: pd.DataFrame) -> None:
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["site"]), remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    pipeline = make_pipeline(encoder, ConvexRegressor(decision=["u", "w"], model="quadratic"))
    X = frame[["site", "load", "u", "w"]]
    assert cross_val_score(pipeline, X, frame["cost"], cv=3).min() > 0.5


@pytest.mark.parametrize(
    "roles",
    [
        {"decision": ["u", "v"]},
        {"context": [7]},
        {"context": ["u", "w", "load"]},
        {"decision": ["u"], "context": ["u"]},
    ],
)
def test_columns_that_make_no_sense_are_refused(roles: dict, frame: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="decision, context: "):
        ConvexRegressor(**roles).fit(frame[["u", "w", "load"]], frame["cost"])


def test_members_predict_and_decide_by_their_mean() -> None:
    random = np.random.default_rng(0)
    X = random.uniform(size=(60, 3))
    y = ((X[:, :2] - X[:, 2:]) ** 2).sum(axis=1)
    config = soctk.FitConfig(members=2, jobs=1, starts=1, epochs=1, newton_iterations=2, lbfgs_iterations=5)
    found = ConvexRegressor(decision=[0, 1], model="dcp", config=config).fit(X, y)
    assert isinstance(found.model_, soctk.AverageSurrogate)
    x, theta = torch.from_numpy(X[:, :2]), torch.from_numpy(X[:, 2:])
    mean = sum(member(x, theta) for member in found.model_.members) / 2
    np.testing.assert_allclose(found.predict(X), mean.detach().numpy(), rtol=1e-12)


def test_columns_that_have_numbers_for_names_are_known_by_their_places() -> None:
    random = np.random.default_rng(0)
    X = random.uniform(size=(60, 3))
    table = pd.DataFrame(X, columns=[1, 2, 0])
    found = ConvexRegressor(decision=[0, 1], model="quadratic").fit(table, X.sum(axis=1) ** 2)
    one, two = (found.decide(soctk.Box(2), part) for part in (X[:5, 2:], table[[0]][:5]))
    torch.testing.assert_close(one.value, two.value, rtol=0, atol=0)
    with pytest.raises(ValueError, match="context: expected shape"):
        found.decide(soctk.Box(2), table[:5])


def test_masked_entries_are_refused() -> None:
    X = np.random.default_rng(0).normal(size=(30, 2))
    masked, y = np.ma.masked_less(X, 0.0), X.sum(axis=1) ** 2
    for given in ((masked, y), (X, np.ma.masked_less(y, 0.5))):
        with pytest.raises(TypeError, match="expected an array without masked entries"):
            ConvexRegressor(decision=[0, 1], model="quadratic").fit(*given)
    found = ConvexRegressor(decision=[0], model="quadratic").fit(X, y)
    with pytest.raises(TypeError, match="X: expected an array without masked entries"):
        found.predict(masked)
    with pytest.raises(TypeError, match="context: expected an array without masked entries"):
        found.decide(soctk.Box(1), masked[:, 1:])


def test_a_column_may_have_the_name_of_an_arrays_mask() -> None:
    frame = pd.DataFrame({"x": np.linspace(0, 1, 30), "_mask": np.linspace(1, 2, 30)})
    found = ConvexRegressor(decision=["x"], model="quadratic").fit(frame, frame["x"] ** 2)
    assert found.predict(frame).shape == (30,)


def test_contexts_where_there_are_none_and_tensors_of_a_graph() -> None:
    X = np.random.default_rng(0).normal(size=(80, 4))
    y = np.square(X).sum(axis=1)
    whole = ConvexRegressor(model="quadratic").fit(X, y)
    with pytest.raises(ValueError, match=r"^context: expected none, as all columns are decisions"):
        whole.decide(soctk.Box(4, -1.0, 1.0), X)
    some = ConvexRegressor(decision=[0, 1], model="quadratic").fit(X, y)
    context = torch.zeros(2, 2, dtype=torch.float64)
    expected = some.decide(soctk.Box(2, -1.0, 1.0), context)
    assert torch.equal(some.decide(soctk.Box(2, -1.0, 1.0), context.requires_grad_()).x, expected.x)
