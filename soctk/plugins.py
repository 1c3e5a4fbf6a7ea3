"""What other packages add by name: the entry points of a group, found without importing anything."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points


def plugin_names(group: str) -> tuple[str, ...]:
    """Return the names in a group of entry points, sorted."""
    return tuple(sorted({entry.name for entry in entry_points(group=group)}))


def find_plugin(group: str, name: str) -> EntryPoint:
    """Return the entry point of a name.

    Raises:
        ValueError: an unknown name, or one that two packages claim.
    """
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if not found:
        raise ValueError(f"name: expected one of {', '.join(plugin_names(group))}, got {name!r}")
    if len(found) > 1:
        raise ValueError(f"name: {name!r} is claimed by {' and '.join(sorted(found))}; uninstall all but one")
    return next(iter(found.values()))
