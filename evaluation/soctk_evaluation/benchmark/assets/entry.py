"""An entry of the soctk benchmark: a quadratic of the decision for each context, fitted by least squares."""

import cvxpy as cp
import numpy as np


class Entry:
    name = "least squares"
    who = "your name"
    how = "sum_i q_i x_i^2 + (A theta + b)'x by least squares; each decision by CVXPY"
    track = "values"  # or "optima" (data.optimum is given), or "objective" (data.task is the true objective)

    def fit(self, data):
        """Learn from data.context (N, p), data.x (N, M, n) and data.value (N, M); data.sets(contexts) says where
        decisions may be."""
        self.data = data
        n, p = data.dim, data.context_dim
        x, context = data.x, np.repeat(data.context[:, None], data.x.shape[1], axis=1)
        products = (x[..., :, None] * context[..., None, :]).reshape(*x.shape[:2], n * p)
        features = np.concatenate([x**2, x, products], axis=-1)
        # a constant of its own for each context: only differences between its candidates matter for a decision
        features = features - features.mean(axis=1, keepdims=True)
        value = data.value - data.value.mean(axis=1, keepdims=True)
        weights = np.linalg.lstsq(features.reshape(-1, n * (p + 2)), value.ravel(), rcond=None)[0]
        self.curvature = np.maximum(weights[:n], 1e-3)
        self.slope, self.mixed = weights[n : 2 * n], weights[2 * n :].reshape(n, p)

    def decide(self, contexts):
        """Return decisions (T, n) for contexts (T, p)."""
        slope = self.slope + contexts @ self.mixed.T
        return np.stack([self._decide(*one) for one in zip(contexts, slope, strict=True)])

    def _decide(self, context, slope):
        sets = self.data.sets(context[None])
        region = sets.one(0) if hasattr(sets, "one") else sets  # where a set moves with the context: that of this one
        x = cp.Variable(self.data.dim)
        cost = cp.sum_squares(cp.multiply(np.sqrt(self.curvature), x)) + slope @ x
        cp.Problem(cp.Minimize(cost), region.constraints(x)).solve(solver=cp.CLARABEL)
        return region.project(x.value).numpy()
