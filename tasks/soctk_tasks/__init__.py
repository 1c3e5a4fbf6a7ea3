"""Parametric decision tasks (a context in, a convex objective over a feasible set out), and targets to approximate."""

from soctk_tasks.faces import Faces, FacesNotFoundError, load_faces
from soctk_tasks.registry import TASKS, UNTUNED, make_task, task_names
from soctk_tasks.restoration import Restoration, make_restoration
from soctk_tasks.smoothing import Smoothing, make_smoothing
from soctk_tasks.structured import Part, Splits, StructuredTask, choose_width
from soctk_tasks.targets import TARGETS, Target, make_target
from soctk_tasks.task import Task, TrueObjective

__all__ = [
    "TARGETS",
    "TASKS",
    "UNTUNED",
    "Faces",
    "FacesNotFoundError",
    "Part",
    "Restoration",
    "Smoothing",
    "Splits",
    "StructuredTask",
    "Target",
    "Task",
    "TrueObjective",
    "choose_width",
    "load_faces",
    "make_restoration",
    "make_smoothing",
    "make_target",
    "make_task",
    "task_names",
]
