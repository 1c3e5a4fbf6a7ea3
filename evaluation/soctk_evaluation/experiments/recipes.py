"""How much data the leaderboard's methods get and how they learn.

A cell's configuration holds all of it, so no hash of this file is in a row's key: rows whose configuration a change
leaves alone stay measured.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from soctk import FitConfig

SIZES = {"train": 1000, "validation": 1000, "test": 200, "candidates": 64}
"""Instances of each data set, and candidates of each instance (the paper's)."""

FEW = {"train": 600, "validation": 150, "test": 100, "candidates": 16}
OWN_SIZES = {
    **{"opf_case14": FEW, "opf_case30": FEW},
    "opf_case118": {"train": 1000, "validation": 250, "test": 100, "candidates": 40},
}
"""Departures where every value is a cone program: few decide case14 and case30, and one of case118 takes 14 ms."""
DIMS = (10, 20, 50)
"""Decision dimensions (the paper's)."""
OWN_DIMS = {"voltage": (8,), "opf_case14": (1,), "opf_case24": (9,), "opf_case30": (5,), "opf_case118": (18,)}
"""Those of tasks on networks: of an `opf` task all set-points that it has."""

RECIPE = FitConfig(starts=2, level_iterations=100, rows=24_000, lbfgs_iterations=1000)
"""The recipe of every method: `soctk.fit`'s with half the starts, few iterations of b0, which decides nothing, as many
values as let the curved part see all instances at d = 10, and as many iterations of L-BFGS as most fits end before: 300
cut off 11 of SOC's 18 fits at d = 10 and 7 of DCP's 18."""

NETWORKS = ("relu", "relu_wide", "softplus", "softplus_wide")
OWN_RECIPES: dict[str, dict[str, Any]] = {
    **{name: {"rows": 38_400} for name in NETWORKS},
    "pcf": {"rows": 64_000},
    "pcf_template": {"project_affine": False},
}
"""What a method is given beyond the recipe of all: without more values the networks are far from their best. The v of
the paper's template of PCF, affine in the context, cannot follow a curved part that is learned with the best v of every
instance: so learned one fit in 54 was lost, a regret of .95."""

LARGE_DIM = 50
STEEP = ("opf_case24", "opf_case118", "voltage")
"""Tasks whose values are so steep that `soctk.fit` learns from them with a focus as well, and where few values tell
then both projecting and not."""
OWN_RECIPES_APART: dict[str, dict[str, Any]] = {"pcf_template": {"project_affine": True}}
"""The same from `LARGE_DIM` on, where the template of PCF is better learned apart: a mean regret of .014 in place of
.016, on simplex_logistic 1.9e-4 in place of .024. And on tasks of `STEEP`: on opf_case118 it loses 2.9 $/h so and 193
learned whole (seed 0)."""


def own_recipe(method: str, dim: int, task: str = "") -> FitConfig:
    """Return `RECIPE` with what a method, without its setting, is given beyond it at this dimension and task."""
    apart = OWN_RECIPES_APART.get(method, {}) if dim >= LARGE_DIM or task in STEEP else {}
    return replace(RECIPE, **OWN_RECIPES.get(method, {}) | apart)
