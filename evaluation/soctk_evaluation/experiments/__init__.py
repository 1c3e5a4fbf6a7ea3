"""The experiments: one file each, with an `Experiment` named EXPERIMENT.

Another package adds one by declaring an entry point in the group `soctk.experiments` whose value is an `Experiment`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from soctk_evaluation.harness.experiment import Experiment
from soctk_evaluation.harness.request import UsageError

GROUP = "soctk.experiments"
BUILT_IN = (
    *("leaderboard", "factorial", "samples", "approximation", "equivalence", "scaling", "rates"),
    *("smoothing", "restoration", "timing", "polyhedra", "devices"),
)


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments, those that other packages add last; imports none."""
    added = sorted(point.name for point in entry_points(group=GROUP))
    return tuple(dict.fromkeys((*BUILT_IN, *added)))


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name.

    Raises:
        KeyError: there is none.
        UsageError: that of another package cannot be imported, or is none.
    """
    if name in BUILT_IN:
        return import_module(f"{__name__}.{name}").EXPERIMENT
    for point in entry_points(group=GROUP, name=name):
        try:
            found = point.load()
        except Exception as error:  # whatever that package does
            raise UsageError(f"experiment {name!r} cannot be imported: {type(error).__name__}: {error}") from error
        if not isinstance(found, Experiment):
            raise UsageError(f"experiment {name!r}: expected {point.value} to be an Experiment, got {found!r}")
        return found
    raise KeyError(f"expected one of {', '.join(experiment_names())}, got {name!r}")
