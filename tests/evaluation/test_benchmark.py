"""The open benchmark: scores by hand, failures at the centre, files of decisions, data by hash, entries, the page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from soctk import ValueData
from soctk.tables.errors import TableError
from soctk_evaluation.benchmark.decisions import About, read_about, read_decisions, write_decisions
from soctk_evaluation.benchmark.entry import describe, load_entry
from soctk_evaluation.benchmark.folder import arrays_of
from soctk_evaluation.benchmark.page import to_html
from soctk_evaluation.benchmark.results import read_boards, rows_of
from soctk_evaluation.benchmark.runner import Played, Player, given_to, play
from soctk_evaluation.benchmark.scoring import FLOOR, Judge, judge_of, score_all, score_problem, summarize
from soctk_evaluation.benchmark.versions import (
    VERSIONS,
    Problem,
    choose,
    from_selection,
    hash_of,
    held_out,
    label_of,
    published_hash,
    selection_of,
    task_of,
    training,
)
from soctk_evaluation.cli import main
from soctk_evaluation.harness.request import UsageError
from soctk_evaluation.harness.store import ResultsStore

TRIAL = choose("trial", ["box_socp"], [3], [100])
(PROBLEM,) = TRIAL.problems()
SMALL = ["--version", "trial", "--tasks", "box_socp", "--dims", "3", "--seeds", "100"]
EVIL = "<script>alert(1)</script>"


def best() -> np.ndarray:
    return judge_of(PROBLEM).optimum.x.numpy().copy()


def written(path: Path, decisions: np.ndarray, about: About | None = None) -> Path:
    write_decisions(path, about or About(name="mine"), {PROBLEM.name: decisions})
    return path


def test_a_score_is_the_mean_regret_over_that_of_the_mean_optimum() -> None:
    task, contexts = task_of(PROBLEM), held_out(PROBLEM)
    x = task.feasible_set.sample(PROBLEM.test, torch.Generator().manual_seed(1))
    optimum = task.solve(contexts)
    constant = task.solve(training(PROBLEM).context).x.mean(dim=0).expand(PROBLEM.test, -1)
    regrets = [float((task.objective(point, contexts) - optimum.value).mean()) for point in (x, constant)]
    scored = score_problem(PROBLEM, x.numpy())
    assert scored.failed == 0
    assert scored.regret == pytest.approx(regrets[0], rel=1e-5)
    assert scored.ratio == pytest.approx(regrets[0] / regrets[1], rel=1e-5)
    assert scored.cost == pytest.approx(float(task.objective(x, contexts).mean()), rel=1e-9)


def test_the_interval_is_students_over_the_seeds_of_geometric_means() -> None:
    ratios = {
        ("a", 3, 0): 0.1,
        ("b", 3, 0): 0.4,
        ("a", 3, 1): 0.2,
        ("b", 3, 1): 0.8,
        ("a", 3, 2): 0.05,
        ("b", 3, 2): 0.2,
    }
    found = summarize(ratios)
    seeds = np.log([0.2, 0.4, 0.1])
    assert found.score == pytest.approx(0.2)
    assert found.tasks["b", 3] == pytest.approx(0.4)
    low, high = stats.t.interval(0.95, 2, loc=seeds.mean(), scale=stats.sem(seeds))
    assert (found.low, found.high) == pytest.approx((np.exp(low), np.exp(high)))
    assert summarize({("a", 3, 0): 0.1}).low is None


def test_failures_are_scored_at_the_centre_and_counted() -> None:
    x = best()
    x[0], x[1, 0], x[2] = np.nan, np.inf, 1e300
    x[3] += 1e-3 + 1.0  # outside of the box [0, 1]^3
    scored = score_problem(PROBLEM, x)
    assert scored.failures == {"missing": [0], "not finite": [1], "infeasible": [2, 3]}
    said = "1 missing (row 0); 1 not finite (row 1); 2 infeasible (rows 2, 3, by up to 1e+300), scored at the centre"
    assert scored.status == said
    by_hand = best()
    by_hand[:4] = 0.5
    assert scored.regret == pytest.approx(score_problem(PROBLEM, by_hand).regret, rel=1e-9)


def test_nothing_is_gained_by_a_violation_within_the_tolerance() -> None:
    x = np.full((PROBLEM.test, PROBLEM.dim), -5e-7)
    scored = score_problem(PROBLEM, x)
    assert scored.failed == 0
    assert scored.regret == score_problem(PROBLEM, np.zeros_like(x)).regret


def test_a_perfect_decider_scores_nearly_zero_from_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "best.npz", best())
    (scored,) = score_all([PROBLEM], read_decisions(path, [PROBLEM]))
    assert scored.ratio == FLOOR
    table = tmp_path / "best.csv"
    lines = [",".join([PROBLEM.name, str(row), *map(repr, map(float, x))]) for row, x in enumerate(best())]
    table.write_text("\n".join(["problem,row,x_0,x_1,x_2", *lines]))
    np.testing.assert_allclose(read_decisions(table, [PROBLEM])[PROBLEM.name], best(), rtol=1e-14)


@pytest.mark.parametrize("missing", ["", "NA", "nan"])
def test_a_missing_decision_is_so_however_it_is_written(missing: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"problem,row,x_0,x_1,x_2\n{PROBLEM.name},3,{missing},.5,.5\n{PROBLEM.name},4,1,2,3\n")
    given = read_decisions(path, [PROBLEM])[PROBLEM.name]
    np.testing.assert_array_equal(given[3:5], [[np.nan, 0.5, 0.5], [1, 2, 3]])
    assert np.isnan(given[[0, 1, 2, *range(5, 20)]]).all()


def test_the_centre_of_a_set_that_moves_is_in_it() -> None:
    problem = replace(PROBLEM, task="moving_dispatch", dim=4, test=5)
    judge = Judge(problem)
    assert bool(judge.sets.contains(judge.centre, atol=1e-6).all())
    arrays = arrays_of(judge, "values")
    assert "optimum" not in arrays
    x = torch.from_numpy(arrays["x"])[:, 0]
    rows = torch.from_numpy(arrays["h"]) - x @ torch.from_numpy(arrays["G"]).mT
    moved = task_of(problem).sets(judge.data.context)
    assert arrays["test_f"].shape[0] == 5
    np.testing.assert_array_equal((rows.amin(dim=1) >= -1e-9) & _sum(x, arrays), moved.contains(x))


def _sum(x: torch.Tensor, arrays: dict[str, np.ndarray]) -> torch.Tensor:
    left = (x @ torch.from_numpy(arrays["E"]).mT - torch.from_numpy(arrays["f"])).abs().amax(dim=1)
    return left <= 1e-9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("problem,row,x_0,x_1,x_2\nnone-3-1,0,0,0,0\n", "unknown problem 'none-3-1'"),
        (f"problem,row,x_0,x_1,x_2\n{PROBLEM.name},20,0,0,0\n", "expected rows 0 to 19, as there are 20 test contexts"),
        (f"problem,row,x_0,x_1,x_2\n{PROBLEM.name},0.5,0,0,0\n", "expected rows 0 to 19"),
        (f"problem,row,x_0,x_1,x_2\n{PROBLEM.name},,0,0,0\n", "expected rows 0 to 19"),
        (f"problem,row,x_0,x_1,x_2\n{PROBLEM.name},0,a,0,0\n", "column x_0, row 1: expected a number, got 'a'"),
        (f"problem,row,x_0,x_1,x_2\n{PROBLEM.name},0,0,0,0,5\n", "as in the header, got more"),
        ("problem,row,x_0,x_1,x_2\n,0,0,0,0\n", "row 1: expected the name of a problem, got a missing value"),
        (f"problem,row,x_0,x_1,x_2\n{PROBLEM.name},0,0,0,0\n{PROBLEM.name},0,0,0,0\n", "got row 0 more than once"),
        ("problem,row,x_0\n", "expected columns problem, row, x_0, x_1, x_2"),
        ("", "not a readable .csv file"),
    ],
)
def test_a_wrong_table_is_one_line(text: str, message: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    assert main(["benchmark", "score", str(path), *SMALL]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ({PROBLEM.name: np.zeros((19, 3))}, "expected numbers (20, 3), got float64 (19, 3)"),
        ({PROBLEM.name: np.array([["a"] * 3] * 20)}, "expected numbers (20, 3), got <U1 (20, 3)"),
        ({PROBLEM.name: np.array([[None] * 3] * 20)}, "not a readable .npz file of numbers"),
        ({"box-3-1": np.zeros((20, 3))}, "unknown problem 'box-3-1'"),
    ],
)
def test_wrong_arrays_are_refused(decisions: dict, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **decisions)
    with pytest.raises((UsageError, TableError), match=re.escape(message)):
        read_decisions(tmp_path / "mine.npz", [PROBLEM])


def test_decisions_for_other_data_are_refused(tmp_path: Path, capsys) -> None:
    path = written(tmp_path / "mine.npz", best(), About(name="mine", data={PROBLEM.name: "0" * 64}))
    assert main(["benchmark", "score", str(path), *SMALL]) == 2
    assert "decisions made for other data" in capsys.readouterr().err


@pytest.mark.parametrize(
    "about",
    [
        '{"track": "all"}',
        '{"surprise": 1}',
        "[]",
        "{",
        '{"who": 3}',
        '{"fit_seconds": {"a": "b"}}',
        '{"decide_ms": {"a": -5}}',
        json.dumps({"fit_seconds": {"a": 10**400}}),
        json.dumps({"name": "\ud800"}),
        json.dumps({"how": "x" * 301}),
    ],
)
def test_what_a_file_says_of_its_entry_is_checked(about: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", entry=np.array(about))
    with pytest.raises(UsageError):
        read_about(tmp_path / "mine.npz")


def test_the_hash_changes_with_the_data() -> None:
    data, contexts = training(PROBLEM), held_out(PROBLEM)
    expected = hash_of(data, contexts)
    for name in ("context", "x", "value"):
        parts = {other: getattr(data, other).clone() for other in ("context", "x", "value")}
        parts[name].view(-1)[5] += 1e-3
        assert hash_of(ValueData(**parts), contexts) != expected
    assert hash_of(data, contexts + 1e-3) != expected
    assert hash_of(data, contexts + 1e-12) == expected


@pytest.mark.parametrize("version", VERSIONS.values(), ids=lambda version: version.name)
def test_every_problem_of_a_version_has_a_published_hash_and_its_data(version) -> None:
    problems = version.problems()
    assert all(published_hash(version, problem) for problem in problems)
    for problem in problems[:2]:
        assert hash_of(training(problem), held_out(problem)) == published_hash(version, problem)


def test_other_test_seeds_give_other_contexts_and_the_same_training_data() -> None:
    other = replace(PROBLEM, test_seed=1)
    assert not torch.equal(held_out(other), held_out(PROBLEM))
    assert torch.equal(training(other).x, training(PROBLEM).x)
    assert label_of(choose("trial", test_seed=1)) == "trial (own choice)"
    assert label_of(choose("trial")) == "trial"
    assert choose("trial", ["box_socp", "box_socp"], [3], [100, 100]) == TRIAL
    assert from_selection(json.loads(json.dumps(selection_of(TRIAL)))) == TRIAL


@pytest.mark.parametrize("track", ["values", "optima", "objective"])
def test_a_track_shows_what_it_says(track: str) -> None:
    seen = []

    class Looking:
        def fit(self, data) -> None:
            seen.append(data)

        def decide(self, contexts: np.ndarray) -> np.ndarray:
            return np.zeros((len(contexts), 3))

    play(Looking, given_to(PROBLEM, track), held_out(PROBLEM).numpy())
    (data,) = seen
    assert (data.optimum is None) == (track == "values")
    assert (data.task is None) == (track != "objective")


ENTRIES = """
import os, time
import numpy as np

class Moody:
    def fit(self, data):
        if data.problem.seed == 101:
            raise KeyError("no such thing")
        if data.problem.seed == 102:
            os._exit(3)
        if data.problem.seed == 103:
            time.sleep(60)

    def decide(self, contexts): return np.zeros((len(contexts), 3))

class Other(Moody):
    pass
"""


def test_an_entry_that_fails_costs_only_its_own_problem(tmp_path: Path) -> None:
    file = tmp_path / "entries.py"
    file.write_text(ENTRIES)
    player = Player(f"{file}:Moody", 60.0)
    try:
        assert player.about().name == "entries"
        assert player.play(PROBLEM, "values").ended == ""
        for seed, message in ((101, "KeyError"), (102, "its process died"), (103, "took longer than 0.5 s")):
            if seed == 103:
                player.about()
                player.time_limit = 0.5
            played = player.play(replace(PROBLEM, seed=seed), "values")
            assert message in played.ended
            assert np.isnan(played.x).all()
    finally:
        player.close()


def test_what_was_run_before_an_interruption_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All was in memory until the end, which for all problems may be hours."""
    file, output, played = tmp_path / "entries.py", tmp_path / "out.npz", []
    file.write_text(ENTRIES)

    def play_once(player: Player, problem: Problem, track: str) -> Played:
        if played:
            raise KeyboardInterrupt
        played.append(problem.name)
        return Played(np.zeros((problem.test, problem.dim)), 1.0, 1.0)

    monkeypatch.setattr(Player, "play", play_once)
    command = ["benchmark", "run", f"{file}:Other", "--output", str(output), "--tasks", "box_socp", "--dims", "3"]
    assert main([*command, "--seeds", "1", "2"]) == 130
    about = read_about(output)
    assert about.ended == {"box_socp-3-2": "not run"}
    with np.load(output) as arrays:
        assert (arrays["box_socp-3-1"] == 0).all()
        assert np.isnan(arrays["box_socp-3-2"]).all()


@pytest.mark.parametrize("command", ["benchmark run", "fit"])
def test_a_file_that_cannot_be_written_is_said_before_hours_of_work(command: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "log.csv").write_text("x_0,value\n" + "".join(f"{k},{k * k}\n" for k in range(30)))
    (tmp_path / "entries.py").write_text("raise SystemExit")
    given = "log.csv" if command == "fit" else "entries.py"
    suffix = ".st" if command == "fit" else ".npz"
    assert main([*command.split(), str(tmp_path / given), "--output", f"/proc/out{suffix}"]) == 1
    assert f"/proc/out{suffix}: cannot be written" in capsys.readouterr().err


ONCE = """
import time
from pathlib import Path
Path(__file__).with_suffix(".running").touch(exist_ok=False)

class Once:
    def fit(self, data):
        time.sleep(60)

    def decide(self, contexts):
        return contexts
"""


def test_an_entry_that_cannot_start_again_after_its_time_is_over_costs_no_earlier_problem(tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ONCE)
    player = Player(str(tmp_path / "once.py"), 0.5)
    try:
        player.about()
        assert "took longer" in player.play(PROBLEM, "values").ended
        assert "FileExistsError" in player.play(PROBLEM, "values").ended
    finally:
        player.close()


class Answers:
    """An entry whose decisions are of another kind than real numbers."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def fit(self, data) -> None:
        pass

    def decide(self, contexts: np.ndarray):
        x = np.zeros((len(contexts), PROBLEM.dim))
        if self.kind == "masked":
            return np.ma.masked_less(x, 1.0)
        return x.astype(self.kind)


@pytest.mark.parametrize("kind", ["complex", "str", "bool", "masked", "object"])
def test_decisions_that_are_no_real_numbers_are_refused(kind: str) -> None:
    with pytest.raises((TypeError, ValueError), match="expected"):
        play(lambda: Answers(kind), given_to(PROBLEM, "values"), held_out(PROBLEM).numpy())


def test_a_full_disk_leaves_an_earlier_file_of_decisions_as_it_was(tmp_path: Path, monkeypatch) -> None:
    path = written(tmp_path / "mine.npz", best())
    before = path.read_bytes()

    def full(file, **arrays) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space"):
        written(path, best())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "expected one class with fit and decide, got none"),
        (ENTRIES, "got Moody and Other"),
        ("raise RuntimeError('no')", "RuntimeError: no"),
    ],
)
def test_a_file_without_an_entry_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "no_entry.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_entry(str(file))
    with pytest.raises(UsageError, match="no file"):
        load_entry(str(tmp_path / "none.py"))


def test_the_page_shows_texts_of_entries_as_text_and_fetches_nothing(tmp_path: Path) -> None:
    about = About(name=EVIL, who=f'"{EVIL}', how=EVIL, machine=EVIL, ended={PROBLEM.name: EVIL})
    path = written(tmp_path / "evil.npz", best(), about)
    store = ResultsStore(tmp_path / "store.jsonl")
    store.append(*rows_of(about, [score_problem(PROBLEM, best())], TRIAL, path))
    boards, skipped = read_boards(store)
    page = to_html(boards)
    assert not skipped
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"https?:|src=|href=|@import", page)
    assert all(f">{name}<" in page for name in ("constant", "affine", "centre"))


def test_an_entry_that_is_added_again_replaces_itself_and_damage_is_skipped(tmp_path: Path, capsys) -> None:
    store, html = tmp_path / "store.jsonl", tmp_path / "page.html"
    files = [written(tmp_path / f"{k}.npz", x) for k, x in enumerate((np.zeros_like(best()), best()))]
    for path in files:
        assert main(["benchmark", "add", str(path), *SMALL, "--who", "me", "--store", str(store)]) == 0
    with store.open("a") as file:
        file.write('{"experiment": "benchmark"}\n')
    assert main(["benchmark", "page", str(store), "--html", str(html)]) == 0
    assert "skipped line 3" in capsys.readouterr().err
    (board,), _ = read_boards(ResultsStore(store))
    (line,) = [line for line in board.lines if not line.trivial]
    assert line.summary.score == pytest.approx(FLOOR)
    assert next(one for one in board.lines if one.name == "constant").summary.score == pytest.approx(1.0)


def test_an_entry_that_lost_a_problem_is_named_and_not_ranked(tmp_path: Path) -> None:
    store, path = ResultsStore(tmp_path / "store.jsonl"), written(tmp_path / "mine.npz", best())
    rows = rows_of(About(name="whole", who="me"), [score_problem(PROBLEM, best())], TRIAL, path)
    other = [row | {"task": "box_huber", "key": f"other{row['key']}"} for row in rows]
    part = [row | {"method": "part", "key": f"part{row['key']}"} for row in rows]
    store.append(*rows, *other, *part)
    (board,), skipped = read_boards(store)
    assert [line.name for line in board.lines if not line.trivial] == ["whole"]
    assert skipped == ["entry part of me: 1 of 2 problems"]


def test_numbers_of_other_languages_are_numbers_and_a_wrong_selection_is_said() -> None:
    assert About(fit_seconds={"a": 1}, decide_ms={"a": 0.5}).fit_seconds == {"a": 1}
    with pytest.raises(UsageError, match="fit_seconds: expected a number of at least 0 for each problem"):
        About(fit_seconds={"a": True})
    with pytest.raises(UsageError, match="selection: expected version"):
        from_selection(selection_of(TRIAL) | {"cases": [["box_socp", "ten"]]})


def test_what_entries_are_given_holds_no_test_optimum(tmp_path: Path) -> None:
    assert main(["benchmark", "data", str(tmp_path / "data"), *SMALL, "--track", "optima"]) == 0
    with np.load(tmp_path / "data" / f"{PROBLEM.name}.npz") as file:
        names = set(file.files)
        assert file["test_context"].shape == (20, 8)
        assert file["optimum"].shape == (60, 3)
    usual = {"context", "x", "value", "test_context", "optimum", "E", "G", "lower", "upper", "f", "h"}
    assert names == usual
    listed = json.loads((tmp_path / "data" / "benchmark.json").read_text())
    assert listed["problems"][PROBLEM.name]["hash"] == hash_of(training(PROBLEM), held_out(PROBLEM))


def test_a_side_that_moves_with_the_context_is_null_and_has_columns(tmp_path: Path) -> None:
    """It had been left out, which is not what the page says."""
    choice = ["--tasks", "moving_dispatch", "--dims", "3", "--seeds", "7"]
    assert main(["benchmark", "data", str(tmp_path), *choice, "--format", "csv"]) == 0
    folder = tmp_path / "moving_dispatch-3-7"
    sides = json.loads((folder / "set.json").read_text())
    assert (sides["f"], sides["h"]) == (None, None)
    assert len(sides["lower"]) == 3
    columns = (folder / "test_contexts.csv").read_text().splitlines()[0].split(",")
    assert {"f_0", "h_0"} <= set(columns)


HOME = Path(__file__).resolve().parents[2] / "evaluation"
SHIPPED = [HOME / "soctk_evaluation" / "benchmark" / "assets" / "entry.py", *sorted((HOME / "entries").glob("*.py"))]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_every_entry_here_runs_and_beats_the_constant(file: Path) -> None:
    pytest.importorskip("sklearn")
    make = load_entry(str(file))
    about = describe(make, str(file))
    assert about.how
    played = play(make, given_to(PROBLEM, about.track), held_out(PROBLEM).numpy())
    scored = score_problem(PROBLEM, played.x)
    assert scored.failed == 0
    assert scored.ratio < 1.0


def test_an_entry_may_have_the_name_of_any_module(tmp_path: Path) -> None:
    entry = tmp_path / "json.py"
    entry.write_text("raise RuntimeError('not today')")
    with pytest.raises(UsageError, match="not today"):
        load_entry(str(entry))
    import sys

    assert sys.modules["json"] is json
