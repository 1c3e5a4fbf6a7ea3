"""Feasible sets of a decision."""

from soctk.sets.base import Box, Budget, FeasibleSet, Simplex

__all__ = ["Box", "Budget", "FeasibleSet", "Simplex"]
