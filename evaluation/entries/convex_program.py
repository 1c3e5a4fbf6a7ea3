"""A convex program learned by least squares, and decided by CVXPY with Clarabel, one context at a time."""

import cvxpy as cp
import numpy as np


class ConvexProgram:
    name = "cvxpy quadratic"
    who = "soctk"
    how = "x'Qx + (A theta + b)'x by least squares, Q made positive semidefinite; decided by CVXPY with Clarabel"
    track = "values"

    def fit(self, data):
        self.data = data
        n, p = data.dim, data.context_dim
        self.upper = np.triu_indices(n)
        x, context = data.x, np.repeat(data.context[:, None], data.x.shape[1], axis=1)
        squares = x[..., self.upper[0]] * x[..., self.upper[1]]
        mixed = (x[..., :, None] * context[..., None, :]).reshape(*x.shape[:2], n * p)
        features = np.concatenate([squares, x, mixed], axis=-1)
        features -= features.mean(axis=1, keepdims=True)  # a constant of its own for each context
        value = data.value - data.value.mean(axis=1, keepdims=True)
        weights = np.linalg.lstsq(features.reshape(-1, features.shape[-1]), value.ravel(), rcond=None)[0]
        Q = np.zeros((n, n))
        Q[self.upper] = weights[: len(self.upper[0])]
        heights, axes = np.linalg.eigh((Q + Q.T) / 2)
        self.root = np.sqrt(np.maximum(heights, 0.0))[:, None] * axes.T
        rest = weights[len(self.upper[0]) :]
        self.slope, self.mixed = rest[:n], rest[n:].reshape(n, p)

    def decide(self, contexts):
        return np.stack([self._decide(context) for context in contexts])

    def _decide(self, context):
        sets = self.data.sets(context[None])
        region = sets.one(0) if hasattr(sets, "one") else sets
        x = cp.Variable(self.data.dim)
        cost = cp.sum_squares(self.root @ x) + (self.slope + self.mixed @ context) @ x
        cp.Problem(cp.Minimize(cost), region.constraints(x)).solve(solver=cp.CLARABEL)
        return region.project(x.value).numpy()
