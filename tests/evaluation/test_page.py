"""A page says where its rows are, shows the picture that was made with it, and tells of the project only there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from soctk_evaluation.cli.command_line import main
from soctk_evaluation.experiments import experiment_names, find_experiment
from soctk_evaluation.harness.experiment import STORES

ROOT = Path(__file__).resolve().parents[2]
FILES = {name: find_experiment(name) for name in experiment_names() if (ROOT / STORES / f"{name}.jsonl").is_file()}


@pytest.mark.parametrize("name", FILES)
def test_a_page_of_rows_elsewhere_names_their_file_and_says_nothing_of_the_projects(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / STORES / f"{name}.jsonl", "mine.jsonl")
    page = Path("pages", "mine.md")
    assert main(["report", "mine.jsonl", "--markdown", str(page)]) == 0
    text, project = page.read_text(), (ROOT / FILES[name].pages["markdown"]).read_text()
    assert "The rows are those of `mine.jsonl`, measured by" in text
    assert str(STORES) not in text
    assert "](" not in text.replace("](https://", "")  # no picture and no page that is not there
    assert set(text.split("\n\n")[2:]) < set(project.split("\n\n"))
    assert text.split("\n\n")[-2:] == project.split("\n\n")[-2:]


def test_a_page_shows_the_picture_made_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / STORES / "rates.jsonl", "mine.jsonl")
    picture = Path("drawn here", "mine.svg")
    assert main(["report", "mine.jsonl", "--markdown", "docs/mine.md", "--figure", str(picture)]) == 0
    assert "](<../drawn here/mine.svg>)" in Path("docs", "mine.md").read_text()
    assert picture.is_file()
