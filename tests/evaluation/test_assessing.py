"""`soctk assess`, the verdict of `soctk fit`, and what `soctk decide` says of contexts that the log does not know."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from soctk_evaluation.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a log, the model learned from it, another log, and a part of the first."""
    path = tmp_path_factory.mktemp("assess")
    random = np.random.default_rng(0)
    log = pd.DataFrame(random.normal(size=(900, 2)), columns=["context_<b>heat", "context_load"])
    x = 0.5 + 0.2 * random.normal(size=(900, 2))
    log[["x_a & b", "x_c"]] = x
    log["value"] = ((x - 0.5) ** 2).sum(axis=1) + 0.01 * random.normal(size=900)
    log[:600].to_csv(path / "log.csv", index=False)
    log[600:].to_csv(path / "other.csv", index=False)
    log[300:].to_csv(path / "part.csv", index=False)
    assert main(["fit", str(path / "log.csv"), "--model", "quadratic"]) == 0
    return path


def assess(folder: Path, log: str, *more: str) -> int:
    return main(["assess", str(folder / "log.safetensors"), str(folder / log), *more])


def test_fit_prints_the_verdict(folder: Path, capsys) -> None:
    arguments = ["fit", str(folder / "log.csv"), "--model", "quadratic", "--output", str(folder / "again.st")]
    assert main(arguments) == 0
    assert "verdict: no better than the least-squares quadratic: keep the quadratic" in capsys.readouterr().out


def test_the_held_out_rows_of_its_own_log_are_found_again(folder: Path, capsys) -> None:
    assert assess(folder, "log.csv", "--set", "box") == 0
    said = capsys.readouterr().out
    assert "measured on the 120 values held out" in said
    assert "\n120 rows\n" in said
    assert "fitted to what the model learned from" in said
    assert "keep the quadratic" in said


def test_another_log_is_taken_whole(folder: Path, capsys) -> None:
    assert assess(folder, "other.csv") == 0
    said = capsys.readouterr().out
    assert "\n300 rows\n" in said
    assert "smallest box around the logged ones" in said


def test_a_later_log_is_compared_with_the_quadratic_of_the_earlier_one(folder: Path, capsys) -> None:
    """In the later period costs are higher by 1, which no earlier row tells: the quadratic has to err by it as well."""
    later = pd.read_csv(folder / "other.csv")
    later["value"] += 1.0
    later.to_csv(folder / "later.csv", index=False)
    errors = []
    for more in ([], ["--train", str(folder / "log.csv")]):
        assert assess(folder, "later.csv", "--set", "box", *more) == 0
        said = capsys.readouterr().out
        errors.append(float(re.search(r"error: .*quadratic ([\d.]+)", said)[1]))
    assert errors[0] < 0.1
    assert errors[1] == pytest.approx(1.0, rel=0.02)
    assert "fitted to what the model learned from" in said
    assert "no row of" not in said
    assert assess(folder, "later.csv", "--set", "box", "--train", str(folder / "other.csv")) == 0
    assert "no row of" in capsys.readouterr().out


def test_the_verdict_stands_first_and_a_bad_one_promises_nothing(folder: Path, capsys) -> None:
    """Costs that curve down: a convex model's plan would be said to cost less than the log."""
    random = np.random.default_rng(0)
    for name in ("saddle", "saddle-later"):
        log = pd.DataFrame(random.normal(size=(600, 2)), columns=["x_a", "x_c"])
        log["value"] = log["x_a"] - log["x_a"] ** 2 + 0.1 * random.normal(size=600)
        log.to_csv(folder / f"{name}.csv", index=False)
    assert main(["fit", str(folder / "saddle.csv"), "--model", "quadratic"]) == 0
    capsys.readouterr()
    page = folder / "saddle.html"
    model, log = str(folder / "saddle.safetensors"), str(folder / "saddle-later.csv")
    assert main(["assess", model, log, "--set", "box", "--output", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("verdict: evidence against convexity")
    for text in (said, page.read_text(encoding="utf-8")):
        assert "with this verdict nothing is said of what its decisions cost" in text
        assert not re.search(r"promise|expected|regret", text)


def test_rows_that_the_model_has_seen_are_recognised(folder: Path, capsys) -> None:
    assert assess(folder, "part.csv", "--set", "box") == 0
    said = capsys.readouterr().out
    assert "the model has learned from rows of this log" in said
    assert "verdict: not enough data" in said


def test_the_page_needs_nothing_else(folder: Path) -> None:
    assert assess(folder, "other.csv", "--set", "box", "--output", str(folder / "page.html")) == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == page.count("</svg>") == 4
    assert "<script" not in page
    addresses = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)  # names of vocabularies, which nothing loads
    assert not re.search(r"https?://|@import|url\((?!#)", addresses)
    assert "x_a &amp; b" in page
    assert "keep the quadratic" in page
    assert "the verdict is to keep the quadratic all the same" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["log.csv", "--output", "page.txt"], "expected a file ending in .html"),
        (["none.csv"], "no file"),
        (["other.csv", "--train", "none.csv"], "no file"),
        (["log.csv", "--train", "other.csv"], "leave --train out"),
        (["log.csv", "--set", "budget"], "--total: expected the sum"),
        (["log.csv", "--set", "box", "--upper-columns", "none"], "no column none"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments: list[str], message: str, folder: Path, capsys) -> None:
    assert assess(folder, *arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_contexts_that_the_log_does_not_know_are_flagged(folder: Path, capsys) -> None:
    contexts = pd.DataFrame({"context_<b>heat": [0.0, 90.0, 0.5], "context_load": [0.0, 0.0, 0.5]})
    contexts.to_csv(folder / "days.csv", index=False)
    arguments = ["decide", str(folder / "log.safetensors"), str(folder / "days.csv"), "--set", "box"]
    assert main([*arguments, "--output", str(folder / "plan.csv")]) == 0
    assert "1 are outside of what the model has learned from" in capsys.readouterr().out
    assert pd.read_csv(folder / "plan.csv")["outside"].tolist() == [False, True, False]
