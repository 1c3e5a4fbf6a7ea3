"""What `soctk benchmark` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

Track = Literal["values", "optima", "objective"]


@dataclass(frozen=True)
class Selection:
    """Which problems.

    Attributes:
        version: 1, or trial, a small one to try things out; 1 by default.
        tasks: names of tasks; the version's by default.
        dims: decision dimensions; the version's by default.
        seeds: the version's by default.
        test_seed: another number than 0 for test contexts that no entry has seen.
    """

    version: str | None = None
    tasks: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    test_seed: int | None = None


@dataclass(frozen=True)
class RunEntry:
    """Let an entry learn and decide on every problem, and score its decisions.

    It runs in a process of its own, in one thread. Run only entries that you have read: they are programs.

    Attributes:
        entry: a Python file, FILE:NAME or MODULE:NAME, of a class with fit(data) and decide(contexts).
        output: where to write its decisions (.npz), for `soctk benchmark add`.
        time_limit: seconds for a problem, to learn and decide; after them its decisions are missing.
    """

    entry: tyro.conf.Positional[str]
    selection: tyro.conf.OmitArgPrefixes[Selection]
    output: Path | None = None
    time_limit: float = 600.0


@dataclass(frozen=True)
class Score:
    """Score a file of decisions: feasibility, cost and regret are computed anew.

    Attributes:
        file: an .npz file with an array (T, n) for each problem, or a .csv file with columns problem, row, x_0, ...
        name: of the entry; the file's by default, as the next five where the file has them.
        who: made it.
        how: one line on the method.
        track: what it learned from.
        machine: where the times were measured.
        fit_seconds: mean over problems.
        decide_ms: milliseconds for one decision, mean over problems.
    """

    file: tyro.conf.Positional[Path]
    selection: tyro.conf.OmitArgPrefixes[Selection]
    name: str | None = None
    who: str | None = None
    how: str | None = None
    track: Track | None = None
    machine: str | None = None
    fit_seconds: float | None = None
    decide_ms: float | None = None


@dataclass(frozen=True)
class Add(Score):
    """Score a file of decisions and add the entry to a store; it replaces an earlier one of the same name.

    Attributes:
        store: the file, made where it does not exist.
        html: where to write the page of all entries.
    """

    store: Path = Path("results/benchmark.jsonl")
    html: Path | None = None


@dataclass(frozen=True)
class Data:
    """Write training data and test contexts to a folder, with their hashes, for entries in any language.

    Attributes:
        folder: where to.
        format: arrays (.npz) or tables (.csv).
        track: values, or optima for the training optima too.
    """

    folder: tyro.conf.Positional[Path]
    selection: tyro.conf.OmitArgPrefixes[Selection]
    format: Literal["npz", "csv"] = "npz"
    track: Literal["values", "optima"] = "values"


@dataclass(frozen=True)
class Page:
    """Show the entries of a store.

    Attributes:
        store: the file.
        html: where to write a page that is sorted and filtered in the browser and needs no other file.
    """

    store: tyro.conf.Positional[Path]
    html: Path | None = None


@dataclass(frozen=True)
class Template:
    """Write an entry to start from.

    Attributes:
        file: where to, a Python file that does not exist yet.
    """

    file: tyro.conf.Positional[Path]


Action = (
    Annotated[RunEntry, tyro.conf.subcommand("run")]
    | Annotated[Score, tyro.conf.subcommand("score")]
    | Annotated[Add, tyro.conf.subcommand("add")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Page, tyro.conf.subcommand("page")]
    | Annotated[Template, tyro.conf.subcommand("template")]
)


@dataclass(frozen=True)
class Benchmark:
    """Enter the open benchmark, or keep its table (docs/benchmark.md)."""

    action: Action
