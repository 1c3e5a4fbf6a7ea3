"""Parametric decision tasks: a context in, a convex objective over a feasible set out."""

from soctk_tasks.decision import TASKS, Task, TrueObjective, make_task

__all__ = ["TASKS", "Task", "TrueObjective", "make_task"]
