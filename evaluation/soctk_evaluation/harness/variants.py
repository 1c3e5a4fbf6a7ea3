"""SOC-ICNN with one factor switched off at a time, and its rivals with what SOC has: the rows of `soctk factorial`.

A variant is a method of the leaderboard with changes of its sizes (`ConvexSurrogate.config`) and of its recipe
(`FitConfig`). Structures with one centre need coefficients that the context moves and one quadratic block, so that
what takes these away takes away those structures too: such a variant is compared with SOC without them (`beside`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from soctk import FitConfig

Config = dict[str, Any]
"""A surrogate's `config()`."""

HYPERBOLICS, HIDDEN = 8, (4,)
"""SOC's hyperbolic branches, as in up to 32 variables, and ReLU units (`soctk.models.presets`), for its rivals."""
KINDS = {
    "quadratic": ("diagonal", "quadratic"),
    "norms": ("norm",),
    "hyperbolics": ("hyperbolics",),
    "backbone": ("backbone",),
}
"""The beginnings of the names of the blocks of each kind of branch."""
ABSENT = {"quadratic": {"quadratics": (), "diagonal": False}, "norms": {"norms": ()}}
ABSENT |= {"hyperbolics": {"hyperbolics": 0}, "backbone": {"hidden": ()}}
"""The sizes of a surrogate without a kind of branch."""


def _as_it_is(config: Config) -> Config:
    return config


@dataclass(frozen=True)
class Variant:
    """One row of the factorial.

    Attributes:
        method: the leaderboard's method that it departs from.
        change: what it departs by, in words.
        beside: the variant that it differs from by that alone.
        sizes: from the method's configuration to its own.
        recipe: changes of the training recipe.
    """

    method: str
    change: str
    beside: str = "soc"
    sizes: Callable[[Config], Config] = _as_it_is
    recipe: Mapping[str, Any] = field(default_factory=dict)


def without(*kinds: str) -> Callable[[Config], Config]:
    """Return the change that takes kinds of branches out of every structure; of equal structures one is left."""
    gone = tuple(beginning for kind in kinds for beginning in KINDS[kind])

    def change(config: Config) -> Config:
        centred, free = _structures(config)
        rest = [
            list(dict.fromkeys(tuple(block for block in blocks if not block.startswith(gone)) for blocks in part))
            for part in (centred, free)
        ]
        if "quadratic" in kinds:
            rest[0] = []
        absent: Config = {}
        for kind in kinds:
            absent |= ABSENT[kind]
        return config | absent | {"structures": tuple(rest[0] + rest[1]), "centred": len(rest[0])}

    return change


def with_backbone(config: Config) -> Config:
    """Return sizes whose every structure has the ReLU backbone."""
    _, free = _structures(config)
    forced = dict.fromkeys((*(block for block in blocks if block != "backbone"), "backbone") for blocks in free)
    return config | {"structures": tuple(forced), "centred": 0}


def many_centres(config: Config) -> Config:
    """Return sizes without the structures with one centre."""
    return config | {"structures": tuple(_structures(config)[1]), "centred": 0}


def sized(**sizes: Any) -> Callable[[Config], Config]:
    """Return the change to other sizes."""
    return lambda config: config | sizes


def conditioned(conditioning: str) -> Callable[[Config], Config]:
    """Return the change to another conditioning, which structures with one centre do not have."""
    return lambda config: many_centres(config) | {"conditioning": conditioning}


def norm_ladder(config: Config) -> Config:
    """Return NormICNN's sizes with SOC's hyperbolic branches, small backbone and choice, the smallest first."""
    steps = (("norm0",), ("norm0", "hyperbolics"), ("norm0", "hyperbolics", "norm1"))
    return _with_choice(config, (*steps, (*steps[-1], "backbone")), 0)


def quad_ladder(config: Config) -> Config:
    """Return QuadICNN's sizes with SOC's hyperbolic branches, small backbone and choice, two with one centre first."""
    centred = (("quadratic0",), ("quadratic0", "hyperbolics"))
    return _with_choice(config, (*centred, centred[-1], (*centred[-1], "backbone")), len(centred))


def _with_choice(config: Config, structures: Sequence[tuple[str, ...]], centred: int) -> Config:
    sizes = {"hidden": HIDDEN, "hyperbolics": HYPERBOLICS, "level_squares": True}
    return config | sizes | {"structures": tuple(structures), "centred": centred}


def _structures(config: Config) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the structures with one centre and the others."""
    return list(config["structures"][: config["centred"]]), list(config["structures"][config["centred"] :])


LM = {"optimizer": "levenberg_marquardt"}
DEFAULT = {name: getattr(FitConfig(), name) for name in ("starts", "level_iterations")}
SMALL = {"hidden": HIDDEN, "hyperbolics": HYPERBOLICS}
_LM, _HYPERBOLICS = "Levenberg-Marquardt throughout", f"with {HYPERBOLICS} hyperbolic branches"
_SMALL = f"with {HYPERBOLICS} hyperbolic branches and only {HIDDEN[0]} ReLUs, so Levenberg-Marquardt"
_LADDER = "that with structures to choose from: SOC's recipe"

VARIANTS: dict[str, Variant] = {
    "soc": Variant("soc", "as fitted by default"),
    "soc_default_recipe": Variant("soc", "soctk.fit's recipe: four starts, b0 to the end", recipe=DEFAULT),
    "soc_no_quadratic": Variant("soc", "no quadratic branch, so no one-centre", sizes=without("quadratic")),
    "soc_no_norms": Variant("soc", "no norms", sizes=without("norms")),
    "soc_no_hyperbolics": Variant("soc", "no hyperbolic branches", sizes=without("hyperbolics")),
    "soc_no_conic": Variant("soc", "neither norms nor hyperbolics", sizes=without("norms", "hyperbolics")),
    "soc_no_backbone": Variant("soc", "no ReLU backbone to choose", sizes=without("backbone")),
    "soc_backbone": Variant("soc", "ReLU backbone in every structure", "soc_no_one_centre", with_backbone),
    "soc_lbfgs": Variant("soc", "L-BFGS for Levenberg-Marquardt", recipe={"optimizer": "lbfgs"}),
    "soc_no_choice": Variant("soc", "the largest structure, no choice", recipe={"choose_structure": False}),
    "soc_no_reduction": Variant("soc", "nothing left out of the structure chosen", recipe={"reduce": False}),
    "soc_own_slopes": Variant("soc", "no layer shared by v's entries, so other starts", sizes=sized(slope_hidden=0)),
    "soc_one_weight": Variant("soc", "one weight for the diagonal quadratic", sizes=sized(diagonal_weights=False)),
    "soc_no_one_centre": Variant("soc", "no one-centre structures", sizes=many_centres),
    "soc_constant_weights": Variant("soc", "c, α, λ constant, v moves", "soc_no_one_centre", conditioned("affine")),
    "soc_additive": Variant("soc", "v, c, α, λ constant (as published)", "soc_no_one_centre", conditioned("additive")),
    "soc_no_projection": Variant("soc", "affine part not projected out", recipe={"project_affine": False}),
    "soc_no_race": Variant("soc", "every start to the end, no race", recipe={"race": False}),
    "soc_no_level": Variant("soc", "b0 with the other weights", recipe={"level_regression": False}),
    "norm": Variant("norm", "as in the leaderboard", "norm"),
    "norm_lm": Variant("norm", _LM, "norm", recipe=LM),
    "norm_hyperbolics": Variant("norm", _HYPERBOLICS, "norm", sized(hyperbolics=HYPERBOLICS)),
    "norm_small": Variant("norm", _SMALL, "norm", sized(**SMALL)),
    "norm_ladder": Variant("norm", _LADDER, "norm_small", norm_ladder),
    "quad": Variant("quad", "as in the leaderboard", "quad"),
    "quad_lm": Variant("quad", _LM, "quad", recipe=LM),
    "quad_hyperbolics": Variant("quad", _HYPERBOLICS, "quad", sized(hyperbolics=HYPERBOLICS)),
    "quad_small": Variant("quad", _SMALL, "quad", sized(**SMALL)),
    "quad_ladder": Variant("quad", _LADDER, "quad_small", quad_ladder),
    "relu": Variant("relu", "as in the leaderboard", "relu"),
    "relu_lm": Variant("relu", _LM, "relu", recipe=LM),
    "dcp": Variant("dcp", "as in the leaderboard", "dcp"),
    "dcp_lbfgs": Variant("dcp", "L-BFGS for Levenberg-Marquardt", "dcp", recipe={"optimizer": "lbfgs"}),
}
"""The rows, in the order that they are shown."""
