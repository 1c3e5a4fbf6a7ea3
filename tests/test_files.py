"""What is written takes the place of what was there, and of nothing else."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import soctk
from soctk.files import replacing


def write(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_not_complete_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write(path, "first")
    with pytest.raises(TypeError), replacing(path) as partial:
        partial.write_text(1)  # type: ignore[arg-type]
    assert [one.read_text() for one in tmp_path.iterdir()] == ["first"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link, dangling = tmp_path / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_text("old")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "new")
    for one in (link, dangling):
        write(one, "written")
        assert one.is_symlink()
        assert one.resolve().read_text() == "written"


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_permissions_are_those_of_the_older_file_or_the_usual_ones(tmp_path: Path) -> None:
    """Of models too, whose writer makes files that no other user can read."""
    usual, kept = tmp_path / "usual", tmp_path / "kept.safetensors"
    usual.touch()
    model = soctk.QuadICNN(2, 1)
    for path in (tmp_path / "model.safetensors", kept):
        soctk.save(model, path)
        assert permissions(path) == permissions(usual)
    kept.chmod(0o664)
    soctk.save(model, kept)
    assert permissions(kept) == 0o664


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="expected a file"):
            write(path, "text")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]
