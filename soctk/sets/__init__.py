"""Feasible sets of a decision."""

from soctk.sets.at import SetAt
from soctk.sets.base import FeasibleSet, Presolved
from soctk.sets.box import Box
from soctk.sets.budget import Budget
from soctk.sets.conic_set import ConicSet
from soctk.sets.polyhedron import Polyhedron
from soctk.sets.rows import Rows
from soctk.sets.simplex import Simplex

__all__ = ["Box", "Budget", "ConicSet", "FeasibleSet", "Polyhedron", "Presolved", "Rows", "SetAt", "Simplex"]
