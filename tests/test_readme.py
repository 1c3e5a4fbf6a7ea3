"""The README's code runs as it stands, and its numbers are those of the results file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    shape, _, all_optimal = re.match(r"(.*\]\)) (tensor\(.*\)) (\w+)", capsys.readouterr().out).groups()
    assert shape == "torch.Size([100, 10])"
    assert all_optimal == "True"


def test_the_table_is_the_results_files():
    rows = [json.loads(line) for line in (ROOT / "evaluation/results/leaderboard.jsonl").open(encoding="utf-8")]
    seeds: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:  # the newest of every cell
        if row["dim"] == 10 and row["protocol"] == "exact":
            seeds.setdefault((row["task"], row["method"]), {})[row["seed"]] = row["regret_mean"]
    part = README.partition("<!-- begin leaderboard -->")[2].partition("<!-- end leaderboard -->")[0]
    table = [line for line in part.splitlines() if line.startswith("| ")]
    header, *lines = [line for line in table if " ± " in line or "simplex_socp" in line]
    tasks = [cell.strip() for cell in header.split("|")[2:8]]
    assert len(lines) >= 10
    for line in lines:
        cells = [cell.strip(" *") for cell in line.split("|")[1:]]
        for task, cell in zip(tasks, cells[1:7], strict=True):
            assert float(cell.split(" ±")[0]) == pytest.approx(mean(seeds[task, cells[0]].values()), rel=0.05)


def test_linked_files_exist():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
