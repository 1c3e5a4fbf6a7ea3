"""The command line: reports from a store, errors in one line, a sweep end to end, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import support

from soctk_evaluation.cli import main
from soctk_evaluation.harness.store import ResultsStore


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "box_scop"], "unknown task 'box_scop' (did you mean box_socp?)"),
        (["--methods", "socc"], "unknown method 'socc' (did you mean soc?)"),
        pytest.param(
            ["--methods", "lpcf"],
            'pip install "soctk[pcf]"',
            marks=pytest.mark.skipif(find_spec("lpcf") is not None, reason="lpcf is installed"),
        ),
        (["--dims", "0"], "--dims: expected integers of at least 1, got 0"),
        (["--seeds", "-1"], "--seeds: expected integers of at least 0, got -1"),
        (["--jobs", "-2"], "--jobs: expected the number of workers"),
        (["--cell-time-limit", "0"], "--cell-time-limit: expected a positive number of seconds, got 0"),
        (["--cell-time-limit", "inf"], "--cell-time-limit: expected a positive number of seconds, got inf"),
        (["--figure", "regret.jpeg"], "--figure: expected a file ending in .svg or .png, got regret.jpeg"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leaderboard", *arguments]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_unparseable_arguments_exit_2() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", "--dims", "ten"])
    assert ended.value.code == 2


def test_report_of_an_absent_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.jsonl")]) == 2
    assert capsys.readouterr().err == f"soctk: no results file {tmp_path}/none.jsonl; `soctk leaderboard` makes one\n"


def test_report_writes_every_kind_of_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ResultsStore(tmp_path / "results.jsonl")
    store.append(support.row())
    names = {kind: tmp_path / "out" / f"table.{kind}" for kind in ("html", "markdown", "csv")}
    flags = [text for kind, path in names.items() for text in (f"--{kind}", str(path))]
    assert main(["report", str(store.path), *flags]) == 0
    assert "Mean regret, d = 10, protocol exact" in capsys.readouterr().out
    assert names["html"].read_text().startswith("<!doctype html>")
    assert "| soc |" in names["markdown"].read_text()
    assert "regret_mean" in names["csv"].read_text()


def test_report_alone_writes_the_projects_pages_from_their_rows(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "evaluation/results" in capsys.readouterr().err
    rows = [support.row(method=method) for method in ("soc", "norm")]
    ResultsStore(tmp_path / "evaluation/results/leaderboard.jsonl").append(*rows)
    rows = [row | {"experiment": "factorial", "key": f"f{row['key']}"} for row in rows]
    ResultsStore(tmp_path / "evaluation/results/factorial.jsonl").append(*rows)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/results.md").write_text("<!-- begin others -->\n<!-- end others -->\n")
    (tmp_path / "README.md").write_text("before\n")
    assert main(["report"]) == 2
    assert "begin leaderboard" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"results.md"}  # nothing is half written
    (tmp_path / "README.md").write_text("before\n<!-- begin leaderboard -->\nold\n<!-- end leaderboard -->\nafter\n")
    for _ in range(2):
        assert main(["report"]) == 0
        readme = (tmp_path / "README.md").read_text()
        assert readme.startswith("before\n<!-- begin leaderboard -->\n\n| method |")
        assert readme.endswith("- all rows are of code aaa\n\n<!-- end leaderboard -->\nafter\n")
        assert "| soc |" in readme
        assert "old" not in readme
    more = support.row(dim=20)
    ResultsStore(tmp_path / "evaluation/results/leaderboard.jsonl").append(more)
    assert main(["report"]) == 0
    assert (tmp_path / "README.md").read_text() == readme
    assert "| the paper's six tasks | 20 |" in (tmp_path / "docs/results.md").read_text()
    assert "| norm |" in (tmp_path / "docs/factorial.md").read_text()
    assert {path.name for path in (tmp_path / "docs/images").iterdir()} == {"regret.svg", "factorial.svg"}
    assert main(["report", "--csv", "out.csv"]) == 2


def test_a_file_that_cannot_be_written_is_one_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ResultsStore(tmp_path / "results.jsonl")
    store.append(support.row())
    assert main(["report", str(store.path), "--html", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("soctk: ")


def test_help_does_not_load_torch() -> None:
    script = "import sys, soctk_evaluation.cli; print('torch' in sys.modules, 'pandas' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], env=support.environment(), capture_output=True, text=True)
    assert run.stdout.split() == ["False", "False"], run.stderr


def test_a_command_needs_no_output_stream() -> None:
    """As of a service that is started with it closed: `soctk ... >&-`."""
    command = [sys.executable, "-m", "soctk_evaluation.cli", "benchmark", "score", "--help"]
    shell = ["sh", "-c", '"$@" >&-', "sh", *command]
    run = subprocess.run(shell, env=support.environment(), stderr=subprocess.PIPE, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    """As in `soctk benchmark score --help | head`."""
    command = [sys.executable, "-m", "soctk_evaluation.cli", "benchmark", "score", "--help"]
    process = subprocess.Popen(command, env=support.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


COMMAND = [
    sys.executable,
    "-m",
    "soctk_evaluation.cli",
    "leaderboard",
    "--dims",
    "4",
    "--seeds",
    "0",
    "--jobs",
    "1",
]


def test_a_small_leaderboard_end_to_end_and_again(tmp_path: Path) -> None:
    command = [*COMMAND, "--tasks", "box_socp", "--methods", "oracle", "--store", "deep/store.jsonl"]
    runs = [
        subprocess.run(command, env=support.environment(), cwd=tmp_path, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert "[1/1] box_socp d=4 oracle seed 0: ok" in runs[0].stderr
    assert "1 of 1 cells were in deep/store.jsonl already" in runs[1].stderr
    assert "200 test instances a cell; 1 seed" in runs[1].stdout
    (row,) = ResultsStore(tmp_path / "deep" / "store.jsonl").read().rows
    assert 0 <= row["solver_regret"] + 1e-8 < 1e-5


def test_cells_of_other_code_are_taken_where_that_is_asked_for(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [*COMMAND[3:], "--tasks", "box_socp", "--methods", "constant", "--store", "store.jsonl"]
    assert main(command) == 0
    store = ResultsStore(tmp_path / "store.jsonl")
    (row,) = store.read().rows
    store.path.unlink()
    earlier = row | {"key": "0" * len(row["key"]), "versions": row["versions"] | {"code": "0" * 12}, "regret_mean": 7.0}
    store.append(earlier)
    capsys.readouterr()
    assert main([*command, "--any-code"]) == 0
    shown = capsys.readouterr()
    assert "1 of 1 cells were in store.jsonl already" in shown.err
    assert "7" in shown.out
    assert main([*command, "--any-code", "--seeds", "0", "1"]) == 0
    assert [(found["seed"], found["versions"]["code"] == "0" * 12) for found in store.read().rows] == [
        (0, True),
        (1, False),
    ]
    assert main(command) == 0
    assert store.read().rows[-1]["key"] == row["key"]
    store.path.unlink()
    store.append(earlier | {"status": "quarantined: killed its worker twice"})
    assert main([*command, "--any-code"]) == 0
    assert store.read().rows[-1]["status"] == "ok"


def test_ctrl_c_says_what_is_stored_and_how_to_go_on(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store.jsonl")
    command = [*COMMAND, "--methods", "oracle", "--seeds", *map(str, range(40)), "--store", str(store.path)]
    process = subprocess.Popen(
        command,
        env=support.environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=support.heed_ctrl_c,
    )
    deadline = time.monotonic() + 60
    while not store.done() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert f"{len(store.done())} of 240 cells are in {store.path}; run it again for the rest" in errors
    assert "Traceback" not in errors
