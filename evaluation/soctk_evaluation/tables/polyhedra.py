"""The page of what a decision over a polyhedron takes."""

from __future__ import annotations

from pathlib import Path

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.races import at_their_best, largest_gap, races_of, share_certified, write_races

PAGE = Page(
    "What a decision over a polyhedron takes",
    "soctk polyhedra",
    """
One process, one thread, the best of at least three repeats, which go on for a fifth of a second; every method decides
the same contexts of the same surrogate with random weights, each over the set with its own right-hand sides: *dispatch*
(8 variables, a balance, 6 line limits in both directions), *polytope* (30 variables, 60 half-spaces), *transport* (30
flows without upper bounds, 6 demands, 5 capacities), *control* (6 steps of a double integrator: 18 variables, 12
equalities) and *portfolio* (40 variables, a budget, 15 limits). Whoever decides single contexts decides twenty of them
in turn, whose mean time counts. CVXPY re-solves one compiled parameterised program with Clarabel;
[Moreau](https://pypi.org/project/moreau/) is called on the cone data of the same lift, for one context and at its best
batch size: once on finished data, whose making is not counted, and once with the time for the coefficients at the
contexts that the data are made of (`model.conic_form`), putting them into their places not counted. This library and
Moreau are asked for 1e-6, Clarabel through CVXPY for its own 1e-8. Whatever the method, violations are those of its
answers as they came, and gaps are certified by `soctk.certify` once these have been projected to their sets.
""",
    "Milliseconds for a decision over each polyhedron",
    """
Batches are where this library is fast. A single prepared decision is quicker than CVXPY with Clarabel in every case; in
the smaller ones, where decisions wait for Python, Moreau's single solve of finished cone data comes nearest, and by 16
is quicker on dispatch, soc.
""",
)

LABELS = {
    ("newton", 1): "`soctk.minimize`, one context",
    ("prepared", 1): "`soctk.prepare`, one context",
    ("newton", 64): "`soctk.minimize`, 64",
    ("newton", 1024): "`soctk.minimize`, 1024",
}

MOREAU = ("moreau", "moreau_with_coefficients")
RIVALS = {
    "cvxpy_clarabel": "CVXPY re-solve, Clarabel",
    "moreau": "Moreau, batch {}, finished cone data",
    "moreau_with_coefficients": "Moreau, batch {}, and the coefficients",
}


def write_polyhedra(results: Results, files: Files) -> None:
    """Show the tables, and write the page asked for."""
    write_races(results, files, PAGE, polyhedra_tables, _draw)


def _draw(rows: list[Row], path: Path) -> None:
    from soctk_evaluation.tables.figures import polyhedra_figure

    polyhedra_figure(_best_times(rows), path)


def polyhedra_tables(rows: list[Row]) -> str:
    """Return a table for each surrogate and set in Markdown: time, quality, and how many times as long rivals take."""
    return "\n\n".join(_race(*which, race) for which, race in _races(rows).items()) + "\n"


def _races(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows by set and surrogate, Moreau's for one context and at its best batch size."""
    return {(name, model): at_their_best(race, MOREAU) for (_, model, name), race in races_of(rows).items()}


def _best_times(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return who takes how long in each race, in a large batch and for one context."""
    names = {
        ("newton", 1024): "soctk, 1024 contexts",
        ("prepared", 1): "soctk, one, prepared",
        ("cvxpy_clarabel", 1): "CVXPY + Clarabel, one",
    }
    found: dict[str, dict[str, float]] = {}
    for (name, model), race in _races(rows).items():
        times = {(row["method"], row["config"]["batch"]): row["decide_ms"] for row in race}
        known = {label: times[which] for which, label in names.items() if which in times}
        batched = [row["decide_ms"] for row in race if row["method"] == "moreau"]
        found[f"{name}, {model}"] = known | ({"Moreau, best batch": min(batched)} if batched else {})
    return found


def _race(name: str, model: str, race: list[Row]) -> str:
    times = {(row["method"], row["config"]["batch"]): row["decide_ms"] for row in race}
    lines = [f"**{escape(name)}, {escape(model)}**\n"]
    columns = [
        "times ours at 1024",
        "times ours at 1, prepared",
        "certified 1e-6",
        "largest gap",
        "violation",
        "iterations",
    ]
    lines += head(["method", "ms a decision", *columns])
    for row in race:
        here = row["method"], row["config"]["batch"]
        label = LABELS.get(here, RIVALS.get(here[0], "").format(here[1]))
        ratios = [
            f"{row['decide_ms'] / times[own]:.3g}" if own in times else ""
            for own in (("newton", 1024), ("prepared", 1))
        ]
        quality = [share_certified([row]), largest_gap(row), f"{row['violation_max']:.0e}"]
        steps = "" if row["iterations"] is None else f"{row['iterations']:.0f}"
        lines.append(line(label, f"{row['decide_ms']:.3g}", *ratios, *quality, steps))
    return "\n".join(lines)
