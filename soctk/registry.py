"""Surrogates by name, and the classes that a model's file may name.

A package adds a surrogate by an entry point in the group `soctk.surrogates`, a function
`(dim, context_dim, max_parameters, seed) -> ConvexSurrogate`. Nothing is imported until its name is asked for.

A file says of which class its model is. That name is looked up among the registered classes alone: ours, those in the
modules of the entry points, and what `register_surrogate_class` was called with. No file can have anything imported.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import TypeVar

from soctk.checks import check_count
from soctk.plugins import find_plugin, plugin_names
from soctk.surrogate import ConvexSurrogate

GROUP = "soctk.surrogates"
OWN = (
    "soctk.imports.layers",
    "soctk.models.average",
    "soctk.models.conv",
    "soctk.models.exact",
    "soctk.models.recurrent",
)
"""Modules with classes of ours that have no default sizes, so no entry point."""
Kind = TypeVar("Kind", bound=type[ConvexSurrogate])

_classes: dict[str, type[ConvexSurrogate]] = {}


def surrogate_names() -> tuple[str, ...]:
    """Return the names of all installed surrogates, sorted."""
    return plugin_names(GROUP)


def make_surrogate(
    name: str, dim: int, context_dim: int = 0, max_parameters: int | None = None, seed: int = 0
) -> ConvexSurrogate:
    """Return a new surrogate by name, its sizes chosen by the dimensions.

    Args:
        name: one of `surrogate_names()`.
        dim: decision dimension n.
        context_dim: context dimension p.
        max_parameters: the largest number of weights allowed; None for the default sizes.
        seed: of the initial weights.

    Raises:
        ValueError: an unknown name, or no member of the family fits into `max_parameters`.
        ImportError: the surrogate's package is missing; the message names what to install.
    """
    entry = find_plugin(GROUP, name)
    check_count(dim, "dim")
    check_count(context_dim, "context_dim", minimum=0)
    if max_parameters is not None:
        check_count(max_parameters, "max_parameters")
    return entry.load()(dim, context_dim, max_parameters, seed)


def register_surrogate_class(kind: Kind) -> Kind:
    """Allow models of a class to be saved and loaded; returns the class, so it serves as a decorator.

    Not needed for the classes in the module of an entry point. The constructor is called with whatever a file holds
    and must refuse what is none of its own configurations.
    """
    _classes[class_name(kind)] = kind
    return kind


def class_name(kind: type[ConvexSurrogate]) -> str:
    """Return what files call a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def surrogate_class(name: str) -> type[ConvexSurrogate]:
    """Return the registered class of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in _classes:
        package = name.replace(":", ".").partition(".")[0]
        modules = [*OWN, *(entry.module for entry in entry_points(group=GROUP))]
        for module in modules:
            if module.partition(".")[0] == package:
                _register_all(import_module(module))
    if name not in _classes:
        raise ValueError(
            f"class: expected a registered surrogate, got {name!r}; import its package and register the class with "
            f"soctk.register_surrogate_class, or its package in the entry-point group {GROUP!r}"
        )
    return _classes[name]


def _register_all(module: ModuleType) -> None:
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, ConvexSurrogate) and kind is not ConvexSurrogate:
            _classes.setdefault(class_name(kind), kind)
