"""What other packages add by name: the entry points of a group, found without importing anything.

Of an entry point of another package nothing is believed: whatever goes wrong in it is said to be its package's.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

OURS = "soctk"
"""The distribution whose entry points come before all others'."""


class PluginError(RuntimeError):
    """What another package adds by name cannot be used; the message names the package."""


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names in a group of entry points, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=group)}))


def find_plugin(group: str, name: str) -> EntryPoint:
    """Return the entry point of a name: ours where we have one, whatever others call theirs.

    Raises:
        ValueError: an unknown name, or one that two packages claim.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group, name=name):
        found.setdefault(_provider(entry) or entry.value, entry)  # a package's first, as in imports
    if not found:
        raise ValueError(f"name: expected one of {', '.join(plugin_names(group))}, got {name!r}")
    if OURS in found:
        return found[OURS]
    if len(found) > 1:
        claims = " and ".join(f"{provider} ({entry.value})" for provider, entry in sorted(found.items()))
        raise ValueError(f"name: {name!r} is claimed by {claims}; uninstall all but one")
    return next(iter(found.values()))


def load_plugin(entry: EntryPoint) -> Any:
    """Return what an entry point names.

    Raises:
        PluginError: another package's cannot be imported.
    """
    try:
        return entry.load()
    except Exception as error:  # whatever that package does
        if _is_ours(entry):
            raise
        raise broken(entry, f"cannot be imported ({type(error).__name__}: {error})") from error


def call_plugin(entry: EntryPoint, *arguments: object) -> Any:
    """Return what the function that an entry point names returns.

    Raises:
        PluginError: another package's cannot be imported, or ends in an error that says nothing of its arguments.
    """
    function = load_plugin(entry)
    try:
        return function(*arguments)
    except (ValueError, ImportError, NotImplementedError):  # what it is to raise
        raise
    except Exception as error:
        if _is_ours(entry):
            raise
        raise broken(entry, f"ended in an error ({type(error).__name__}: {error})") from error


def broken(entry: EntryPoint, what: str) -> PluginError:
    """Return the error of an entry point that says what is wrong with it, a predicate."""
    provider = _provider(entry)
    whose = "" if provider is None else f" of the package {provider}"
    remedy = "" if provider is None else f"; upgrade or uninstall {provider}"
    return PluginError(f"{entry.name!r}{whose}, entry point {entry.value} in {entry.group!r}, {what}{remedy}")


def _is_ours(entry: EntryPoint) -> bool:
    """Whether an entry point is this library's own."""
    return _provider(entry) == OURS


def _provider(entry: EntryPoint) -> str | None:
    """Return the name of the distribution of an entry point as indices write it."""
    return None if entry.dist is None else entry.dist.name.lower().replace("_", "-")
