"""Model files that `soctk.save` would not write, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

import soctk
from soctk.io import checkpoint


def write_unchecked(model: soctk.ConvexSurrogate, path: Path) -> None:
    """Write a model whatever its weights are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_check_weights", lambda model: None)
        soctk.save(model, path)
