"""Gradient-boosted trees of scikit-learn on (context, decision), minimised over random candidates."""

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

CANDIDATES = 500


class Trees:
    name = "gradient-boosted trees"
    who = "soctk"
    how = f"scikit-learn's HistGradientBoostingRegressor on (context, decision), the best of {CANDIDATES} candidates"
    track = "values"

    def fit(self, data):
        self.data, count = data, data.x.shape[1]
        rows = np.concatenate([np.repeat(data.context, count, axis=0), data.x.reshape(-1, data.dim)], axis=1)
        self.model = HistGradientBoostingRegressor(random_state=0, early_stopping=True).fit(rows, data.value.ravel())

    def decide(self, contexts):
        sets, dim = self.data.sets(contexts), self.data.dim
        rng = np.random.default_rng(0)
        drawn = rng.choice(len(self.data.x) * self.data.x.shape[1], CANDIDATES)
        pool = self.data.x.reshape(-1, dim)[drawn]
        scores = np.stack([self._scores(context, pool) for context in contexts])
        ranked = np.argsort(scores, axis=1)[:, :8]
        # the mean of the best candidates is smoother than the best one, and stays in a convex set
        x = torch.from_numpy(pool[ranked].mean(axis=1))
        return x if bool(sets.contains(x, atol=1e-9).all()) else sets.project(x)

    def _scores(self, context, pool):
        return self.model.predict(np.concatenate([np.tile(context, (len(pool), 1)), pool], axis=1))
