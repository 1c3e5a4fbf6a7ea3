"""Surrogates by name, found through the entry-point group `soctk.surrogates`.

A package adds one by declaring an entry point in that group whose value is a function
`(dim, context_dim, max_parameters, seed) -> ConvexSurrogate`. Nothing is imported until its name is asked for.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from soctk.checks import check_count
from soctk.surrogate import ConvexSurrogate

GROUP = "soctk.surrogates"


def surrogate_names() -> tuple[str, ...]:
    """Return the names of all installed surrogates, sorted."""
    return tuple(sorted(_registered()))


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
    registered = _registered()
    if name not in registered:
        raise ValueError(f"name: expected one of {', '.join(sorted(registered))}, got {name!r}")
    check_count(dim, "dim")
    check_count(context_dim, "context_dim", minimum=0)
    if max_parameters is not None:
        check_count(max_parameters, "max_parameters")
    return registered[name].load()(dim, context_dim, max_parameters, seed)


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}
