"""Tasks by name: the paper's six, further ones, and those of other packages, of the entry-point group `soctk.tasks`.

Each is made by a function `(dim, seed) -> Task`. Nothing is imported until its name is asked for, and a leaderboard
without `--tasks` stays that of the six.
"""

from __future__ import annotations

from importlib import import_module

from soctk.checks import check_choice, check_count
from soctk.plugins import broken, call_plugin, find_plugin, plugin_names
from soctk_tasks.families import FAMILIES
from soctk_tasks.task import Task

GROUP = "soctk.tasks"
TASKS = tuple(family.name for family in FAMILIES)
"""The paper's six tasks."""
UNTUNED = ("box_dense", "budget_categorical", "moving_dispatch")
"""Three that no recipe was chosen by."""
OPF = ("opf_case14", "opf_case24", "opf_case30", "opf_case118")
"""Set-points of generators on networks of so many buses."""
HOMES = {
    **{name: f"soctk_tasks.untuned:{name}" for name in UNTUNED},
    "voltage": "soctk_tasks.grid.voltage:make",
    **{name: f"soctk_tasks.grid.opf:{name}" for name in OPF},
}
"""Where the functions are that make further tasks."""


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks: the paper's six, our further ones, those of other installed packages, sorted."""
    own = (*TASKS, *HOMES)
    return (*own, *(name for name in plugin_names(GROUP) if name not in own))


def make_task(name: str, dim: int = 10, seed: int = 0) -> Task:
    """Return a task by name, its constants fixed by (name, dim, seed).

    Args:
        name: one of `task_names()`; another package's task of one of our names is not reached.
        dim: decision dimension n.
        seed: of the random constants.

    Raises:
        ValueError: an unknown name, dim < 1, one that the task cannot have, or seed < 0.
        FileNotFoundError: a task whose data come with an extra that is not installed.
        PluginError: another package's function fails, or returns no `Task` of this name, dimension and seed.
    """
    check_choice(name, "name", task_names())
    check_count(dim, "dim")
    check_count(seed, "seed", minimum=0)
    if name in TASKS:
        return FAMILIES[TASKS.index(name)](dim, seed)
    if name in HOMES:
        module, function = HOMES[name].split(":")
        return getattr(import_module(module), function)(dim, seed)
    entry = find_plugin(GROUP, name)
    task = call_plugin(entry, dim, seed)
    if not isinstance(task, Task):
        raise broken(entry, f"made no soctk_tasks.Task: {type(task).__name__}")
    for what, asked in (("name", name), ("dim", dim), ("seed", seed)):
        if getattr(task, what) != asked:
            raise broken(entry, f"made a task of {what} {getattr(task, what)!r}, asked for {asked!r}")
    return task
