"""The pages of the documentation: their code runs as it stands, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from soctk_evaluation.cli import main

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_in_order(page: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        if language == "python":
            exec(compile(block, page.name, "exec"), namespace)
        else:
            for line in block.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line)
                assert (program, main(arguments)) == ("soctk", 0), line


def test_some_pages_have_code() -> None:
    assert {"value-function.md", "logged-decisions.md", "logs.md", "assess.md", "benchmark.md", "public-log.md"} <= {
        page.name for page in WITH_CODE
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
