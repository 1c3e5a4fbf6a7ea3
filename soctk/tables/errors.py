"""What is wrong with a table."""

from __future__ import annotations


class TableError(ValueError):
    """A table does not hold what is asked of it; the message names file, column and row."""
