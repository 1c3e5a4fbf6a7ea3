"""Exact imports: known convex functions as surrogates, without training."""
