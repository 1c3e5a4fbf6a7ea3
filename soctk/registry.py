"""Surrogates by name, and the classes that a model's file may name.

A package adds a surrogate by an entry point in the group `soctk.surrogates`, a function
`(dim, context_dim, max_parameters, seed) -> ConvexSurrogate`. Nothing is imported until its name is asked for.

A file says of which class its model is. That name is looked up among the registered classes alone: ours, those in the
modules of the entry points, and what `register_surrogate_class` was called with. No file can have anything imported.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar

from soctk.checks import check_count
from soctk.plugins import broken, call_plugin, find_plugin, plugin_names
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
        PluginError: another package's function fails, or returns no surrogate of these dimensions.
    """
    entry = find_plugin(GROUP, name)
    check_count(dim, "dim")
    check_count(context_dim, "context_dim", minimum=0)
    if max_parameters is not None:
        check_count(max_parameters, "max_parameters")
    model = call_plugin(entry, dim, context_dim, max_parameters, seed)
    if not isinstance(model, ConvexSurrogate):
        raise broken(entry, f"made no soctk.ConvexSurrogate: {type(model).__name__}")
    if (model.dim, model.context_dim) != (dim, context_dim):
        made = f"{model.dim} variables and {model.context_dim} context numbers"
        raise broken(entry, f"made a surrogate of {made}, asked for {dim} and {context_dim}")
    if max_parameters is not None and model.parameter_count > max_parameters:
        raise ValueError(
            f"max_parameters: {name} has {model.parameter_count} weights, expected {max_parameters} at most"
        )
    return model


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
    failed = [] if name in _classes else _import_package_of(name)
    if name not in _classes:
        raise ValueError(
            f"class: expected a registered surrogate, got {name!r}; import its package and register the class with "
            f"soctk.register_surrogate_class, or its package in the entry-point group {GROUP!r}{''.join(failed)}"
        )
    return _current(_classes[name])


def _import_package_of(name: str) -> list[str]:
    """Import the modules of a class's package that entry points name, its own first, until it is registered.

    Returns:
        What is wrong with modules that cannot be imported.
    """
    own, package = name.partition(":")[0], name.replace(":", ".").partition(".")[0]
    modules = dict.fromkeys([*OWN, *(entry.module for entry in entry_points(group=GROUP))])
    failed = []
    for module in sorted(modules, key=lambda module: module != own):
        if name in _classes:
            break
        if module.partition(".")[0] == package:
            try:
                _register_all(import_module(module))
            except Exception as error:  # whatever a package does that may have nothing to do with the class
                failed.append(f" ({module} cannot be imported: {type(error).__name__}: {error})")
    return failed


def _register_all(module: ModuleType) -> None:
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, ConvexSurrogate) and kind is not ConvexSurrogate:
            _classes.setdefault(class_name(kind), kind)


def _current(kind: type[ConvexSurrogate]) -> type[ConvexSurrogate]:
    """Return the class of that name in its module, which may have been reloaded."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, ConvexSurrogate) else kind
