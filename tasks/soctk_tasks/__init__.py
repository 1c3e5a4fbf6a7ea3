"""Parametric decision tasks: a context in, a convex objective over a feasible set out."""

from soctk_tasks.decision import TASKS, Task, TrueObjective, make_task
from soctk_tasks.faces import Faces, FacesNotFoundError, load_faces
from soctk_tasks.restoration import Restoration, make_restoration
from soctk_tasks.smoothing import Smoothing, make_smoothing
from soctk_tasks.structured import Part, Splits, StructuredTask, choose_width

__all__ = [
    "TASKS",
    "Faces",
    "FacesNotFoundError",
    "Part",
    "Restoration",
    "Smoothing",
    "Splits",
    "StructuredTask",
    "Task",
    "TrueObjective",
    "choose_width",
    "load_faces",
    "make_restoration",
    "make_smoothing",
    "make_task",
]
