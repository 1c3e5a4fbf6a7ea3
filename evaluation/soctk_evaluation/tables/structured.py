"""The pages of the structured experiments: faces restored, trajectories smoothed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median, stdev
from typing import Any

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.names import STRUCTURED as LEARNED
from soctk_evaluation.harness.names import STRUCTURED_TRIVIAL as TRIVIAL
from soctk_evaluation.harness.store import Row, last_by
from soctk_evaluation.tables.markdown import code_notes, escape, head, line
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.summary import WHICH

PAPER = {
    "smoothing": {
        "relu": (0.1920, 0.4515, 0.5458),
        "softplus": (0.2359, 0.4150, 0.5528),
        "quad": (0.0914, 0.0697, 0.3094),
        "norm": (0.1154, 0.0903, 0.3708),
        "soc": (0.0671, 0.0524, 0.2810),
    },
    "restoration": {
        "relu": (0.0492, 0.0254, 0.2497),
        "softplus": (0.4434, 0.0821, 0.4736),
        "quad": (0.0474, 0.0111, 0.1633),
        "norm": (0.0473, 0.0074, 0.1377),
        "soc": (0.0461, 0.0041, 0.1303),
    },
}
"""The paper's relative error, regret and decision error."""
TITLES = {
    "structured": "The recipe as it comes (structured start where there are branches)",
    "plain": "One plain recipe for all five models (AdamW, then L-BFGS, from random weights)",
}
INTRODUCTION = {
    "smoothing": "Reference trajectories of 40 steps in four dimensions are smoothed over [-1, 1]^160; the context is "
    "the reference, the models are recurrent (`soctk.RecurrentSOCICNN`).",
    "restoration": "Photographs of faces, blurred, noisy and with holes, are restored over [0, 1]^n; the context is "
    "the observation and its mask, the models are convolutional (`soctk.ConvSOCICNN`).",
}
PAGE = Page(
    "{title}",
    "soctk {experiment}",
    """
{introduction} Here: {data}.
Regret is the true energy's, against optima certified to a gap of {reference:.0e} of the energy's spread ({spread:.3g});
± is the standard error of the mean over seeds, from the spread between them (over the test instances where there is
one seed); decision error is the root mean square of x̂ − x*. Trivial decisions are in italics: a model that loses to
one learned nothing worth deciding with. Every model is minimised, not improved for some steps from the data as in the
paper, to a gap of 1e-4 of the spread, of which the largest is in the table: larger where a method of first order ended
at its limit. Where a learned minimum is wrong it shows, and a smaller relative error can go with a larger regret than
the paper's.
""",
    "Decisions",
)
COLUMNS = ("method", "relative error", "regret", "decision error", "gap max", "params", "fit s", "decide ms")
NEEDED = ("regret_mean", "regret_stderr", "reference_gap", "spread")
NEEDED += tuple(f"config.{name}" for name in ("train", "validation", "test", "candidates"))
"""What the tables cannot do without."""
STEPS = {
    "fit.epochs": "{} epochs of AdamW",
    "fit.lbfgs_iterations": "at most {} steps of L-BFGS",
    "fit.newton_iterations": "{} of Levenberg and Marquardt",
}
"""What of a row's configuration says how long its model learned, in words."""


def write_structured(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for.

    The problem that most models have rows of comes first, then the larger one. Seeds are expected as asked for, or as
    many as there are of any method.
    """
    if not results.measured:
        print("no results yet")
        return
    experiment = results.measured[0]["experiment"]
    expected = len({cell.seed for cell in results.cells})
    done, *others = _problems(results.measured)
    tables = _tables(experiment, done, expected)
    for rest in others:
        tables += f"\n\nThe same with {_data(_example(rest))}:\n\n{_tables(experiment, rest, expected)}"
    print(tables)
    fields = {
        "title": {"smoothing": "Trajectories smoothed", "restoration": "Faces restored"}[experiment],
        "experiment": experiment,
        "introduction": INTRODUCTION[experiment],
        "data": _data(_example(done)),
        "reference": max(row["reference_gap"] for row in done),
        "spread": done[0]["spread"],
    }
    PAGE.write(results, files, tables, fields)
    if "figure" in files:
        from soctk_evaluation.tables.pictures import face_figure, trajectory_figure

        draw = trajectory_figure if experiment == "smoothing" else face_figure
        kept = results.folder / decision_folder(done[0]["config"])
        if kept.is_dir():
            draw(kept, files["figure"])
        else:
            print(f"soctk: no picture: the decisions are not in {kept}", file=sys.stderr)


def decision_folder(config: Mapping[str, Any]) -> str:
    """Return the name of the folder for a problem's kept decisions."""
    sizes = [str(config[name]) for name in ("train", "size", "steps") if name in config]
    return "-".join([*sizes, *(["stand-in"] if config.get("stand_in") else [])])


def _problems(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the newest rows of each size and source of the data."""
    found: dict[tuple[int, int, str], list[Row]] = {}
    for row in last_by(rows, lambda row: (*_data_of(row), *(row[name] for name in WHICH))).values():
        found.setdefault(_data_of(row), []).append(row)
    learned = {size: len({row["method"] for row in part} & set(LEARNED)) for size, part in found.items()}
    return [found[size] for size in sorted(found, key=lambda size: (learned[size], size), reverse=True)]


def _data_of(row: Row) -> tuple[int, int, str]:
    config = row["config"]
    return row["dim"], config["train"], str(config.get("images", ""))


def _tables(experiment: str, rows: Sequence[Row], expected: int) -> str:
    """Return a table for each recipe."""
    expected = expected or len({row["seed"] for row in rows})
    return "\n\n".join(
        f"## {TITLES[protocol]}\n\n{structured_table(experiment, rows, protocol, expected)}"
        for protocol in TITLES
        if any(row["protocol"] == protocol for row in rows)
    )


def _example(rows: Sequence[Row]) -> Row:
    """Return a row of a learned model, where there is one."""
    return next((row for row in rows if row["method"] in LEARNED), rows[0])


def _data(row: Row) -> str:
    """Return what the rows were learned from, in words."""
    config = row["config"]
    parts = f"{config['train']} training, {config['validation']} validation and {config['test']} test instances"
    images = f", {config['size']} × {config['size']} pixels ({config['images']})" if "images" in config else ""
    return escape(f"{parts} with {config['candidates']} candidates each{images}{_recipe(config)}")


def _recipe(config: Mapping[str, Any]) -> str:
    """Return how long a row's model learned, in words; nothing for a trivial row."""
    if "fit.starts" not in config:
        return ""
    starts = "one start" if config["fit.starts"] == 1 else f"{config['fit.starts']} starts"
    steps = [words.format(config[name]) for name, words in STEPS.items() if config.get(name)]
    return f", {', '.join([f'{starts} of each fit', *steps])}"


def structured_table(experiment: str, rows: Sequence[Row], protocol: str, expected: int) -> str:
    """Return one recipe's table, the trivial rows below the learned ones, the best learned regret in bold."""
    lines = head([*COLUMNS, "paper: rel. error / regret / error"])
    groups = {name: [r for r in rows if r["method"] == name and r["protocol"] == protocol] for name in LEARNED}
    learned = {name: group for name, group in groups.items() if group}
    complete = [name for name, group in learned.items() if len(group) >= expected]
    best = min(complete, key=lambda name: mean(row["regret_mean"] for row in learned[name]), default=None)
    for name, group in learned.items():
        lines.append(_line(name, group, expected, PAPER[experiment].get(name), bold=name == best))
    trivial = {name: group for name in TRIVIAL[experiment] if (group := [row for row in rows if row["method"] == name])}
    for name, group in trivial.items():
        lines.append(_line(f"*{_words(name)}*", group, expected, None, bold=False))
    seeds = "one seed: another may give another order" if expected == 1 else f"{expected} seeds"
    notes = [seeds, *_beaten(trivial, learned), *code_notes([row for group in learned.values() for row in group])]
    return "\n".join([*lines, "", *[f"- {escape(note)}" for note in notes]]) + "\n"


def _words(method: str) -> str:
    return method.replace("_", " ")


def _beaten(trivial: Mapping[str, Sequence[Row]], learned: Mapping[str, Sequence[Row]]) -> list[str]:
    """Name the learned methods whose mean regret is above that of each trivial one."""
    regrets, least = (
        {name: mean(row["regret_mean"] for row in group) for name, group in some.items()} for some in (learned, trivial)
    )
    lost = {name: [method for method in regrets if regrets[method] > below] for name, below in least.items()}
    return [f"lose to {_words(name)}: {', '.join(methods)}" for name, methods in lost.items() if methods]


def _line(name: str, group: Sequence[Row], expected: int, paper: tuple[float, ...] | None, *, bold: bool) -> str:
    def known(field: str, form: str, pool: Callable[[list[float]], float] = mean) -> str:
        values = [row[field] for row in group if row[field] is not None]
        return format(pool(values), form) if values else "–"

    means = [row["regret_mean"] for row in group]
    regret = f"{mean(means):.2e}"
    if len(group) > 1:
        regret += f" ± {stdev(means) / len(group) ** 0.5:.0e}"
    elif expected == 1:
        regret += f" ± {group[0]['regret_stderr']:.0e}"
    return line(
        name if len(group) >= expected else f"{name} ({len(group)} of {expected} seeds)",
        known("relative_error", ".2e"),
        f"**{regret}**" if bold else regret,
        known("decision_error", ".2e"),
        known("gap_max", ".0e", max),
        known("params", ".0f", median),
        known("fit_seconds", ".0f", median),
        known("decide_ms", ".3g", median),
        " / ".join(f"{value:g}" for value in paper) if paper else "",
    )
