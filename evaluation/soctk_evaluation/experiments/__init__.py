"""The experiments: one file each, with an `Experiment` named EXPERIMENT.

Another package adds one by declaring an entry point in the group `soctk.experiments` whose value is an `Experiment`.
"""

from __future__ import annotations

from importlib import import_module

from soctk.plugins import PluginError, find_plugin, load_plugin, plugin_names
from soctk_evaluation.harness.experiment import Experiment
from soctk_evaluation.harness.request import UsageError

GROUP = "soctk.experiments"
BUILT_IN = (
    *("leaderboard", "factorial", "samples", "approximation", "equivalence", "scaling", "rates"),
    *("smoothing", "restoration", "timing", "polyhedra", "devices"),
)


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments, those that other packages add last; imports none."""
    return tuple(dict.fromkeys((*BUILT_IN, *plugin_names(GROUP))))


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name.

    Raises:
        KeyError: there is none.
        UsageError: that of another package cannot be imported, or is none.
    """
    if name in BUILT_IN:
        return import_module(f"{__name__}.{name}").EXPERIMENT
    if name not in experiment_names():
        raise KeyError(f"expected one of {', '.join(experiment_names())}, got {name!r}")
    try:
        point = find_plugin(GROUP, name)
        found = load_plugin(point)
    except (ValueError, PluginError) as error:
        raise UsageError(f"experiment {name!r}: {error}") from error
    if not isinstance(found, Experiment):
        raise UsageError(f"experiment {name!r}: expected {point.value} to be an Experiment, got {found!r}")
    return found
