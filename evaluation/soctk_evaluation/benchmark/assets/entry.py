"""An entry of the soctk benchmark: a quadratic of the decision for each context, fitted by least squares."""

import numpy as np
import torch


class Entry:
    name = "least squares"
    who = "your name"
    how = "sum_i q_i x_i^2 + (A theta + b)'x by least squares; each decision by 300 projected gradient steps"
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
        sets = self.data.sets(contexts)
        slope = self.slope + contexts @ self.mixed.T
        x = sets.project(torch.from_numpy(-slope / (2 * self.curvature)))
        step = 0.5 / self.curvature.max()
        for _ in range(300):
            gradient = 2 * self.curvature * x.numpy() + slope
            x = sets.project(x - torch.from_numpy(step * gradient))
        return x.numpy()
