"""Named arrays and numbers that lie one after another in a few vectors.

A `Table` declares them once, with their shapes: `Table(("n",), state={"x": ("n",), "mu": ()})`. For given sizes its
`layout`, an array of integers, says where each begins. Python sees the parts by `slices`, compiled code as a record
(`soctk.simd.records`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import prod
from types import SimpleNamespace

_NUMBERS = count()
Shape = tuple[str, ...]


class Table:
    """The parts of some vectors.

    Args:
        sizes: names of the whole numbers that shapes are made of; the layout begins with them.
        vectors: for each vector the shapes of its parts by name, as names of sizes; () for a number. Names of sizes and
            parts differ from each other throughout.
    """

    def __init__(self, sizes: tuple[str, ...], **vectors: dict[str, Shape]) -> None:
        self.sizes, self.vectors, self.number = sizes, vectors, next(_NUMBERS)
        self.places = {size: place for place, size in enumerate(sizes)}
        self.vector_of: dict[str, str] = {}
        for vector, parts in vectors.items():
            for name in parts:
                assert name not in self.places, f"{name} is declared twice"
                self.places[name] = len(sizes) + 2 * len(self.vector_of)
                self.vector_of[name] = vector

    @property
    def length(self) -> int:
        """The number of integers in a layout."""
        return len(self.sizes) + 2 * len(self.vector_of)

    def count(self, vector: str, sizes: Mapping[str, int]) -> int:
        """Return how many numbers a vector has."""
        return sum(prod(sizes[name] for name in shape) for shape in self.vectors[vector].values())

    def measure(self, sizes: Mapping[str, int]) -> list[int]:
        """Return the layout: the sizes, then where each part begins in its vector and how many numbers it has."""
        layout = [sizes[name] for name in self.sizes]
        for parts in self.vectors.values():
            start = 0
            for shape in parts.values():
                layout += [start, prod(sizes[name] for name in shape)]
                start += layout[-1]
        return layout

    def slices(self, layout: Sequence[int], vector: str) -> SimpleNamespace:
        """Return where the parts of a vector are: slices, and positions of numbers."""
        found = {}
        for name, shape in self.vectors[vector].items():
            start, size = layout[self.places[name]], layout[self.places[name] + 1]
            found[name] = slice(start, start + size) if shape else start
        return SimpleNamespace(**found)

    def scalar(self, name: str) -> bool:
        """Whether a part is a number."""
        return self.vectors[self.vector_of[name]][name] == ()
