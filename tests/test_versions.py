"""One version throughout, and locked requirements that are the constraints' and complete."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import soctk

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = re.compile(r"^([\w.-]+)==(\S+)(.*?)(?=^\S|\Z)", flags=re.MULTILINE | re.DOTALL)


def pins(name: str) -> dict[str, tuple[str, str]]:
    """Return version and what follows it by canonical name."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return {canonicalize_name(found[1]): (found[2], found[3]) for found in PINNED.finditer(text)}


def test_the_version_is_the_same_everywhere() -> None:
    released = re.findall(
        r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE
    )
    assert released[0] == PROJECT["project"]["version"] == soctk.__version__


def test_every_locked_file_has_a_hash_and_the_constraints_version() -> None:
    locked, constraints = pins("requirements-lock.txt"), pins("constraints.txt")
    assert all("--hash=sha256:" in rest for _, rest in locked.values())
    assert {name: version for name, (version, _) in locked.items() if name in constraints} == {
        name: version for name, (version, _) in constraints.items() if name in locked
    }


def test_what_the_two_commands_need_is_locked() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *extras["test"]]
    locked = pins("requirements-lock.txt")
    for requirement in map(Requirement, needed):
        names = requirement.extras if requirement.name == "soctk" else ()
        for one in [requirement] if not names else [Requirement(line) for extra in names for line in extras[extra]]:
            assert one.specifier.contains(locked[canonicalize_name(one.name)][0]), one
