"""The names and the order of rows; light, so that `--help` is fast."""

from __future__ import annotations

from importlib.util import find_spec

from soctk.plugins import plugin_names

LEARNED = (
    "relu",
    "relu_wide",
    "softplus",
    "softplus_wide",
    "norm",
    "quad",
    "soc",
    "dcp",
    "pcf_template",
    "pcf",
    "lpcf",
    "ickan",
)
"""Learned surrogates, in the order they are shown; those that other packages add come after them."""

ASKED_FOR = ("relu_wide", "softplus_wide")
"""Those that a leaderboard has only where they are named: they take minutes."""

TRIVIAL = ("quadratic", "constant", "affine", "oracle")
"""Rows that every method should be compared with; "oracle" is the true objective itself."""

POLICIES = ("constant", "affine")
"""The rows that decide without an objective."""

FROM_VALUES = ("average", "focus", "units")
"""Other recipes for a learned method, from the same values: METHOD+SETTING (`soctk_evaluation.harness.recipe`)."""

FROM_DECISIONS = ("optima", "fy", "regret", "spo")
"""What a learned method may go on with after the values: METHOD+SETTING (`soctk_evaluation.harness.from_decisions`)."""

DECIDERS = ("affine", "oracle")
"""The rows that only a decision task has."""

WITH_LINEAR = ("quad+linear", "soc+linear")
"""Methods of the paper's approximation experiment with v'x, which its equations have and its sizes have not."""

APPROXIMATORS = (
    *("relu", "softplus", "norm", "quad", "quad+linear", "soc", "soc+linear", "ickan"),
    *("quadratic", "constant"),
)
"""The rows of that experiment: the paper's methods, a least-squares quadratic and the training mean."""

STRUCTURED = ("relu", "softplus", "quad", "norm", "soc")
"""The learned surrogates of the structured experiments."""

STRUCTURED_TRIVIAL = {
    "smoothing": ("zero", "reference", "moving_average"),
    "restoration": ("observation", "constant", "mean_image", "moving_average", "clean_image"),
}
"""Their rows that decide without a learned objective; "clean_image" is what the corruption was applied to."""


def default_methods() -> tuple[str, ...]:
    """Return a full leaderboard's methods: learned ones but `ASKED_FOR` (lpcf where installed), and trivial rows."""
    known = tuple(name for name in LEARNED if name not in ASKED_FOR)
    learned = tuple(name for name in known if name != "lpcf" or find_spec("lpcf") is not None)
    return (*learned, *TRIVIAL)


def known_methods() -> tuple[str, ...]:
    """Return every method that can be asked for, those of other installed packages included; a "+" is a setting's."""
    added = (name for name in plugin_names("soctk.surrogates") if "+" not in name)
    return tuple(dict.fromkeys((*LEARNED, *TRIVIAL, *added)))


def decision_methods() -> tuple[str, ...]:
    """Return what a leaderboard can be asked for: every method, and those with weights of ours with every setting."""
    fixed = {"lpcf", *POLICIES, "oracle"}
    settings = {method: () if method in fixed else (*FROM_VALUES, *FROM_DECISIONS) for method in known_methods()}
    settings["quadratic"] = FROM_DECISIONS  # least squares, which has no recipe
    return tuple(name for method in settings for name in (method, *(f"{method}+{more}" for more in settings[method])))


def base_of(method: str) -> str:
    """Return a method's name without its setting."""
    return split(method)[0]


def split(method: str) -> tuple[str, str]:
    """Return the two parts of METHOD+SETTING; the setting is "" where there is none."""
    base, _, setting = method.partition("+")
    return base, setting


def in_order(methods: set[str]) -> list[str]:
    """Return methods in the order of the leaderboard's rows, unknown ones after the learned ones."""
    place = {name: index for index, name in enumerate((*LEARNED, "", *TRIVIAL))}
    return sorted(methods, key=lambda name: (place.get(base_of(name), place[""]), name))
