"""An estimator of scikit-learn (the extra `sklearn`): convex in the decision's columns, free in the context's."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data
except ImportError as error:
    raise ImportError('soctk.sklearn needs scikit-learn 1.6 or later: pip install "soctk[sklearn]"') from error

from soctk.checks import as_array, check_sequence, check_unmasked
from soctk.decide.decision import Decision
from soctk.decide.minimize import minimize
from soctk.lazy import pandas as pd
from soctk.learn.config import FitConfig
from soctk.learn.fit import fit
from soctk.registry import make_surrogate
from soctk.sets import FeasibleSet, SetAt
from soctk.surrogate import ConvexSurrogate
from soctk.tables.features import Feature, learned_feature
from soctk.tables.log import Groups
from soctk.tables.table import Table, listed

Column = str | int
WHOLE, OTHERS = "iu", "fb"
"""Kinds of NumPy's types that are numbers: whole ones, of which floats do not hold all, and what floats hold."""
NUMBERS = WHOLE + OTHERS


class ConvexRegressor(RegressorMixin, BaseEstimator):
    """A convex surrogate as a regressor: predictions are convex in the decision's columns for every context.

    Of data frames, the context's columns may be numbers, texts (categories, one-hot) and dates (hour of day, weekday,
    time of year), as `soctk fit` takes them.

    Args:
        decision: columns of X that are the decision, by name or, as whole numbers, by place; all that are not the
            context by default.
        context: columns of X that are the context; all that are not the decision by default, none where that is not
            given either.
        category: columns of the context that are categories even where they have numbers.
        model: name of the surrogate (`soctk.surrogate_names`).
        max_parameters: the most weights that it may have.
        config: the recipe, `FitConfig(seed=...)` of `random_state` by default.
        random_state: of the initial weights and of what is held out while learning.

    Attributes:
        model_: the surrogate, a `ConvexSurrogate`, after `fit`.
        report_: what the fit did (`FitReport`).
        features_: what each column of the context became.
        n_features_in_: columns of X.
        feature_names_in_: their names, where X was a data frame.
    """

    def __init__(
        self,
        decision: Sequence[Column] | None = None,
        context: Sequence[Column] | None = None,
        *,
        category: Sequence[Column] | None = None,
        model: str = "soc",
        max_parameters: int | None = None,
        config: FitConfig | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.decision, self.context, self.category, self.model = decision, context, category, model
        self.max_parameters, self.config, self.random_state = max_parameters, config, random_state

    def fit(self, X: Any, y: Any) -> ConvexRegressor:
        """Learn from rows X (N, columns) and their values y (N,); return the estimator.

        Raises:
            ValueError: columns that X does not have or that have two meanings, missing values, a single row.
        """
        table, y = self._checked_both(X, y)
        decision, context = self._roles(list(table.names))
        category = self._categories(list(table.names), context)
        self.features_: tuple[Feature, ...] = tuple(
            learned_feature(table, name, category=name in category) for name in context
        )
        self._decision, self._numbers = decision, not _has_texts(X)
        x, z = self._parts(table)
        fixed = isinstance(self.random_state, numbers.Integral)
        seed = int(self.random_state if fixed else check_random_state(self.random_state).randint(2**31 - 1))
        model = make_surrogate(self.model, x.shape[1], z.shape[1], self.max_parameters, seed)
        self.report_ = fit(model, Groups.of(z).data(z, x, y), self.config or FitConfig(seed=seed))
        self.model_: ConvexSurrogate = self.report_.model
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the values of rows X, (N,).

        Raises:
            NotFittedError: `fit` comes first.
            ValueError: other columns than those of `fit`, missing values, unknown categories.
        """
        check_is_fitted(self)
        x, z = (torch.from_numpy(part) for part in self._parts(self._checked(X)))
        with torch.no_grad():
            return self.model_(x, z if z.shape[1] else None).numpy()

    def decide(self, feasible_set: FeasibleSet | SetAt, context: Any = None, **options: Any) -> Decision:
        """Return the best decisions in some contexts, each with a certified gap (`soctk.minimize`).

        Args:
            feasible_set: where to decide.
            context: a data frame with the context's columns, or an array (N, columns) of these alone.
            **options: of `soctk.minimize`.
        """
        check_is_fitted(self)
        if not self.features_:
            if context is not None:
                raise ValueError("context: expected none, as all columns are decisions, got one")
            return minimize(self.model_, feasible_set, None, **options)
        if not isinstance(context, pd.DataFrame) or not hasattr(self, "feature_names_in_"):
            # columns that had no names, or numbers for names, are known by their places
            names = [feature.name for feature in self.features_]
            check_unmasked(context, "context")
            array = as_array(context) if isinstance(context, torch.Tensor) else np.asarray(context)
            if array.ndim != 2 or array.shape[1] != len(names):
                raise ValueError(f"context: expected shape (N, {len(names)}), got {array.shape}")
            context = pd.DataFrame(array, columns=names)
        elif self._numbers:
            kinds = {name: kind.kind for name, kind in context.dtypes.items()}
            context = context.astype({name: float for name, kind in kinds.items() if kind in OTHERS})
        return minimize(self.model_, feasible_set, torch.from_numpy(self._encoded(Table.of(context))), **options)

    def _checked_both(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        """Return X as a table and y as numbers, and note X's columns."""
        check_unmasked(X, "X")
        check_unmasked(y, "y")
        if _has_texts(X):
            validate_data(self, X, y, skip_check_array=True)
            _, y = check_X_y(np.zeros((len(X), 1)), y, y_numeric=True, ensure_min_samples=2)
            return Table.of(X), np.array(y, float)
        checked, y = validate_data(self, X, y, y_numeric=True, ensure_min_samples=2, dtype=np.float64)
        return self._table(X, checked), np.array(y, float)

    def _checked(self, X: Any) -> Table:
        """Return X as a table, whose columns must be those of `fit`."""
        check_unmasked(X, "X")
        if _has_texts(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            return Table.of(X)
        return self._table(X, validate_data(self, X, reset=False, dtype=np.float64))

    def _table(self, X: Any, checked: np.ndarray) -> Table:
        """Return X as a table, its columns by their names or numbers: floats, and whole numbers as they are."""
        names = list(map(str, getattr(self, "feature_names_in_", range(checked.shape[1]))))
        frame = pd.DataFrame(checked, columns=names)
        given = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X))
        for place, name in enumerate(names):
            kind = given.dtypes.iloc[place].kind
            if kind in WHOLE:
                frame[name] = given.iloc[:, place].to_numpy(np.dtype(f"{kind}8"))
        return Table.of(frame)

    def _roles(self, names: list[str]) -> tuple[list[str], list[str]]:
        """Return the names of the decision's and of the context's columns."""
        for name, columns in (("decision", self.decision), ("context", self.context), ("category", self.category)):
            if isinstance(columns, str):  # whose letters would be the columns
                check_sequence(columns, name)
        given = [
            None if part is None else [self._name(column, names) for column in part]
            for part in (self.decision, self.context)
        ]
        decision, context = given
        if context is None:
            context = [] if decision is None else [name for name in names if name not in decision]
        if decision is None:
            decision = [name for name in names if name not in context]
        used = [*decision, *context]
        if sorted(used) != sorted(names) or not decision:
            raise ValueError(
                f"decision, context: expected each of the n_features = {len(names)} columns {listed(names)} once and a "
                f"decision, got {listed(decision)} and {listed(context)}"
            )
        return decision, context

    def _categories(self, names: list[str], context: list[str]) -> set[str]:
        """Return the names of the columns that are categories in any case."""
        found = {self._name(column, names, "category") for column in self.category or ()}
        if not found.issubset(context):
            raise ValueError(
                f"category: expected columns of the context, {listed(context)}, got {listed(sorted(found))}"
            )
        return found

    @staticmethod
    def _name(column: Column, names: list[str], role: str = "decision, context") -> str:
        if isinstance(column, str) and column in names:
            return column
        if isinstance(column, numbers.Integral) and not isinstance(column, bool) and -len(names) <= column < len(names):
            return names[column]
        raise ValueError(f"{role}: no column {column!r}; the columns are {listed(names)}")

    def _parts(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return decisions (N, n) and contexts (N, p)."""
        return table.numbers(self._decision), self._encoded(table)

    def _encoded(self, table: Table) -> np.ndarray:
        parts = [np.zeros((len(table), 0)), *(feature.encode(table) for feature in self.features_)]
        return np.concatenate(parts, axis=1)


def _has_texts(X: Any) -> bool:
    """Return whether X is a data frame with columns that are not numbers."""
    return isinstance(X, pd.DataFrame) and any(kind.kind not in NUMBERS for kind in X.dtypes)
