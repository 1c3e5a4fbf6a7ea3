"""Parametric decision tasks (a context in, a convex objective over a feasible set out), and targets to approximate."""

from soctk_tasks.decision import TASKS, Task, TrueObjective, make_task
from soctk_tasks.targets import TARGETS, Target, make_target

__all__ = ["TARGETS", "TASKS", "Target", "Task", "TrueObjective", "make_target", "make_task"]
