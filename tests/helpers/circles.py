"""Import circles between files."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def check_no_circles(edges: Mapping[str, Collection[str]]) -> None:
    """Fail where a depth-first walk over modules and what each imports meets one that it is still inside of."""
    done: set[str] = set()

    def walk(name: str, inside: tuple[str, ...]) -> None:
        assert name not in inside, " -> ".join([*inside[inside.index(name) :], name])
        if name not in done:
            for other in edges[name]:
                walk(other, (*inside, name))
            done.add(name)

    for name in edges:
        walk(name, ())
