"""The site of the documentation: complete, without dead links, and built without a warning."""

from __future__ import annotations

import html
import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
PAGES = sorted(DOCS.rglob("*.md"))
PACKAGES = ("soctk", "soctk_tasks", "soctk_baselines", "soctk_evaluation")
SOURCES = ("soctk", "baselines", "tasks", "evaluation/soctk_evaluation")
BUILDS = all(find_spec(name) for name in ("zensical", "mkdocstrings", "mkdocstrings_handlers"))


def in_navigation(entries: list[dict]) -> Iterator[str]:
    for entry in entries:
        for target in entry.values():
            if isinstance(target, str):
                yield target
            else:
                yield from in_navigation(target)


def text_of(page: Path) -> str:
    """Return a page with the files that it shows, without its blocks of code."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(
        r'^--8<-- "([^":]+).*"$', lambda found: (ROOT / found[1]).read_text("utf-8"), text, flags=re.MULTILINE
    )
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(in_navigation(CONFIG["nav"])) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_and_pictures_exist_and_stay_in_the_site(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)\)", text_of(page)):
        found = (page.parent / target).resolve() if target else page
        assert found.is_file(), target
        assert found.is_relative_to(DOCS), f"{target} is no page of the site"
        assert not anchor or anchor in anchors(found), f"{target}#{anchor}"


def test_every_picture_is_shown() -> None:
    shown = {
        name
        for page in [*PAGES, ROOT / "README.md"]
        for name in re.findall(r"images/([\w.-]+)\)", page.read_text("utf-8"))
    }
    assert {path.name for path in (DOCS / "images").iterdir() if path.suffix in (".svg", ".png")} == shown


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").iterdir())
    described = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    public = {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    assert public - set(described) == set()
    assert len(set(described)) == len(described)
    for name in described:
        package, *path = name.split(".")
        found = importlib.import_module(package)
        for part in path:
            found = getattr(found, part)


def test_the_pictures_of_the_concepts_are_drawn_by_their_script(tmp_path) -> None:
    draw = runpy.run_path(str(DOCS / "images" / "concepts.py"))["draw"]
    assert {path.name for path in draw(tmp_path)} == {path.name for path in (DOCS / "images").glob("concepts-*.svg")}


def test_the_picture_of_the_public_log_is_drawn_by_its_script(tmp_path) -> None:
    (drawn,) = runpy.run_path(str(DOCS / "images" / "public_log.py"))["draw"](tmp_path)
    assert (DOCS / "images" / drawn.name).is_file()
    assert drawn.read_text(encoding="utf-8").count("<path") > 50


def test_the_notebooks_run_and_draw_their_pictures(tmp_path) -> None:
    notebooks = sorted((DOCS / "notebooks").glob("*.py"))
    drawn = runpy.run_path(str(DOCS / "images" / "notebooks.py"))["draw"](tmp_path)
    assert {path.name for path in drawn} == {path.name for path in (DOCS / "images").glob("notebook-*.svg")}
    assert len(drawn) == len(notebooks) == 2
    assert all(path.read_text(encoding="utf-8").count("<path") > 20 for path in drawn)
    shown = (DOCS / "notebooks.md").read_text(encoding="utf-8")
    assert all(f'--8<-- "docs/notebooks/{notebook.name}"' in shown for notebook in notebooks)


@pytest.mark.parametrize("notebook", sorted((DOCS / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_is_cells_of_text_and_of_code(notebook: Path) -> None:
    first, *cells = re.split(r"^# %%(.*)$", notebook.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert first == ""
    for kind, cell in zip(cells[::2], cells[1::2], strict=True):
        assert kind in ("", " [markdown]")
        lines = cell.strip().splitlines()
        assert lines
        assert all(line.startswith("#") or not line for line in lines) == (kind == " [markdown]")


@pytest.mark.skipif(not BUILDS, reason="needs the extra `docs`")
def test_the_site_builds_without_a_warning(tmp_path) -> None:
    for folder in ("docs", *SOURCES):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in [ROOT / "zensical.toml", *ROOT.glob("*.md")]:
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / CONFIG["site_dir"]
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("index.html")}
    assert len(pages) == len(PAGES)
    known = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    for page, text in pages.items():
        article = text[text.index("<article") : text.index("</article")]
        paragraphs = re.findall(r"<p>(.*?)</p>", article, flags=re.DOTALL)
        assert not [text for text in paragraphs if "\n- <" in text], "a list needs an empty line before it"
        assert not re.search(r"<em>[^<]*\) -", article), f"{page.relative_to(site)}: the asterisks of shapes are text"
        for link in re.findall(r'(?:href|src)="(?!\w+:)([^"]+)"', article):
            target, _, anchor = html.unescape(link).partition("#")
            found = Path(os.path.normpath(page.parent / target)) if target else page
            found = found / "index.html" if found.is_dir() else found
            assert found.is_file(), f"{page.relative_to(site)}: {link}"
            assert not anchor or anchor in known[found], f"{page.relative_to(site)}: {link}"
