"""Files that take the place of others only once they are complete. PyTorch is not loaded here."""

from __future__ import annotations

import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file to write, which takes the place of `path` once it is complete.

    A link stays one, to what is written. An older file's permissions are kept, a new one has the usual ones.

    Raises:
        OSError: there is something else than a file, such as a device or a folder.
    """
    path = path.resolve()  # what a link leads to
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a file, or none yet; got something else, such as a folder or a device")
    partial = _partial(path)
    try:
        partial.touch()
        mode = stat.S_IMODE((path if path.exists() else partial).stat().st_mode)
        yield partial
        partial.chmod(mode)  # writers have permissions of their own
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def try_writing(path: Path) -> None:
    """Raise OSError where `path` could not be written: before what takes long, not after it."""
    partial = _partial(path.resolve())
    try:
        partial.write_bytes(b"-")
        partial.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"{path}: cannot be written ({reason}); name a file in a folder that can") from None


def _partial(path: Path) -> Path:
    """Return a name beside `path` that no other thread or process has, on another machine either."""
    return path.with_name(f".{path.stem}.{uuid.uuid4().hex}.partial{path.suffix}")
