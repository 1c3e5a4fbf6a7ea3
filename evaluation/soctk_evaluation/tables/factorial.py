"""The page of the factorial: what each factor of SOC-ICNN and its recipe is worth."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import mean

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row, is_measured, last_by
from soctk_evaluation.harness.variants import VARIANTS
from soctk_evaluation.tables.leaderboard import REGRET
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.paired import INTERVAL, LEVEL, CellScores, Ratio, cell_scores, ratio_of
from soctk_evaluation.tables.report import ABSENT, regret_entry
from soctk_evaluation.tables.summary import Line, Table, build_tables, last_rows

FACTORIAL = replace(REGRET, experiment="factorial", title="Mean regret{suite}, d = {dim}")
PAGE = Page(
    "What each factor is worth",
    "soctk factorial{quick}",
    """
Tasks, data, decisions and regret are the leaderboard's (`evaluation/README.md` says what a row means).

The row `soc` is what everything is compared with: two starts, 100 iterations of b0, second-order steps on 24,000
values, all else `soctk.fit`'s own. That is the leaderboard's recipe but for the steps of L-BFGS, at most 300 here (1000
of ReLU networks) and 1000 there. The rows `soc_...` are the SOC-ICNN with one factor changed and everything else as it
is; those of other methods got what SOC had. Ratios are of rows of the same code alone, also where the row of `soc` that
is shown is of later code. "÷ soc" is the geometric mean over tasks of the ratio of regrets to SOC's, above 1 where the
change costs regret; "÷ beside" is the ratio to the row that it differs from by this change alone. Structures with one
centre for all branches (`soctk.learn.ladder`) need a quadratic block and coefficients that the context moves, so
`soc_no_quadratic` lacks them, and `soc_backbone`, `soc_constant_weights` and `soc_additive` are to be read beside
`soc_no_one_centre`. `soc_no_quadratic` is a norm network with all that SOC has, `soc_no_norms` a quadratic one. A
branch that is taken out shifts the random initial weights of the others, and with them the structure that is chosen: on
one task with one seed a ratio of ten and more either way may be chance. In a race, the default, starts and
structures are compared after a share of the iterations, and only the best goes on. Parameters and seconds are medians.
""",
    "Regret of every variant as a multiple of SOC's",
    """
The row of `soc` shown is of the code of `soc_no_race`, later than that of the others: their "÷ soc" is of an earlier
row of `soc`. What chance can do shows `soc_no_backbone` where no structure with a backbone is chosen: 34, 1.0 and 1.2
times by seed on simplex_logistic.
""",
)


def write_factorial(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture."""
    tables = build_tables(results, FACTORIAL, results.cells)
    text = "\n".join(_text(table, _rows(results, table)) for table in tables)
    print(text or "no factorial rows yet")
    quick = " --quick" if {row["seed"] for row in results.measured} == {0} else ""
    PAGE.write(results, files, text, {"quick": quick}, list(last_rows(results.measured).values()))
    if "figure" in files and tables:
        from soctk_evaluation.tables.figures import factorial_figure

        found = ratios(_rows(results, tables[0]))
        if found:
            factorial_figure(tables[0].dim, found, files["figure"])
        else:
            print("soctk: no picture: no variant has a row of soc by its own code beside it", file=sys.stderr)


def ratios(rows: Sequence[Row], beside: str | None = "soc") -> dict[str, tuple[Ratio, list[float]]]:
    """Return every variant's ratio to another's regret and the ratio on each task, in the order of `VARIANTS`.

    The last row of a cell is compared with the other's last row by the same code, also where later code has measured
    the other again; a variant without such a row is left out.

    Args:
        rows: of one table, in the order in which they were written.
        beside: the other variant; None for each one's `Variant.beside`.
    """
    floor, by_code = _floor(rows), {}
    for row in rows:
        by_code.setdefault(_code(row), []).append(row)
    scores = {code: cell_scores(own, FACTORIAL.score) for code, own in by_code.items()}
    found: dict[str, tuple[Ratio, list[float]]] = {}
    for name in _in_order({row["method"] for row in rows}):
        other = beside or VARIANTS[name].beside
        mine: CellScores = {}
        theirs: CellScores = {}
        for row in _last(rows, name):
            cell, own = (row["task"], row["seed"]), scores[_code(row)]
            if name != other and cell in own.get(name, {}) and cell in own.get(other, {}):
                mine[cell], theirs[cell] = own[name][cell], own[other][cell]
        ratio = ratio_of(mine, theirs, floor)
        if ratio is not None:
            tasks = [ratio_of(_of_task(mine, task), theirs, floor) for task in dict.fromkeys(task for task, _ in mine)]
            found[name] = ratio, [each.mean for each in tasks if each is not None]
    return found


def _code(row: Row) -> str | None:
    return row["versions"].get("code")


def _last(rows: Sequence[Row], name: str) -> list[Row]:
    """Return a variant's last row of every cell."""
    own = [row for row in rows if row["method"] == name]
    return list(last_by(own, lambda row: (row["task"], row["seed"])).values())


def _floor(rows: Sequence[Row]) -> float:
    return FACTORIAL.floor_of(rows[0]["task"]) if rows else FACTORIAL.floor


def _of_task(scores: CellScores, task: str) -> CellScores:
    return {cell: score for cell, score in scores.items() if cell[0] == task}


def _rows(results: Results, table: Table) -> list[Row]:
    own = [row for row in results.history if row["method"] in VARIANTS and is_measured(row)]
    return [row for row in own if row["dim"] == table.dim and row["task"] in table.tasks]


def _in_order(names: Collection[str]) -> list[str]:
    return [name for name in VARIANTS if name in names]


def _text(table: Table, rows: Sequence[Row]) -> str:
    notes = [
        *table.notes,
        f"intervals are of {INTERVAL}",
        f"regrets below {table.floor:.0e}, which is the decisions' tolerance, count as that in ratios",
    ]
    parts = [
        f"## {escape(table.title)}",
        _regrets(table, rows),
        "\n".join(f"- {escape(note)}" for note in notes),
        verdict(rows),
    ]
    return "\n\n".join([*parts, "### The structure that was chosen", _structures(table, rows)]) + "\n"


def verdict(rows: Sequence[Row]) -> str:
    """Return in words which changes cost or save regret beyond chance, each beside the row that it changes."""
    found = {name: ratio for name, (ratio, _) in ratios(rows, None).items()}
    dearer = [name for name, ratio in found.items() if ratio.low is not None and ratio.low > 1]
    cheaper = [name for name, ratio in found.items() if ratio.high is not None and ratio.high < 1]
    parts = {
        "Cost regret, with an interval above 1": sorted(dearer, key=lambda name: -found[name].mean),
        "Save regret, with an interval below 1": sorted(cheaper, key=lambda name: found[name].mean),
        "Cannot be told from no change": [name for name in found if name not in (*dearer, *cheaper)],
    }
    text = [
        f"- {what}: {', '.join(_named(name, found[name]) for name in names)}." for what, names in parts.items() if names
    ]
    chance = f"- Of {len(found)} such intervals about {(1 - LEVEL) * len(found):.0f} exclude 1 by chance alone."
    return "\n".join(["Beside the row that each differs from by its change alone:", "", *text, chance])


def _named(name: str, ratio: Ratio) -> str:
    return f"`{name}` {ratio.text}"


def _regrets(table: Table, rows: Sequence[Row]) -> str:
    lines_of = {own.method: own for own in table.learned}
    to_soc, to_beside = ratios(rows), ratios(rows, None)
    names = _in_order(list(lines_of))
    header = ["variant", "change", "÷ soc", "÷ beside", "beside", *table.tasks, "mean of tasks", "params", "fit s"]
    found = head(header, names=2)
    for name in names:
        beside = VARIANTS[name].beside
        own = [_entry(to_soc, name), _entry(to_beside, name), beside if name != beside else ABSENT]
        found.append(line(name, VARIANTS[name].change, *own, *_numbers(lines_of[name])))
    return "\n".join(found)


def _entry(found: dict[str, tuple[Ratio, list[float]]], name: str) -> str:
    return found[name][0].text if name in found else ABSENT


def _numbers(own: Line) -> list[str]:
    regrets = [regret_entry(regret).text for regret in own.regrets]
    params, seconds = own.numbers["params"], own.numbers["fit_seconds"]
    return [
        *regrets,
        ABSENT if own.mean is None else f"{own.mean:.2e}",
        ABSENT if params is None else f"{params:.0f}",
        ABSENT if seconds is None else f"{seconds:.1f}",
    ]


def _structures(table: Table, rows: Sequence[Row]) -> str:
    """Return which structure each variant has on each task, a number for each seed, and the numbers' blocks."""
    found = head(["variant", *table.tasks, "backbone", "blocks"], names=1)
    for name in _in_order([own.method for own in table.learned]):
        own = sorted(_last(rows, name), key=lambda row: row["seed"])
        named = [str(row["structure"]) for row in own if row.get("structure") is not None]
        chosen = [
            " ".join(_number(str(row["structure"])) for row in own if row["task"] == task and row.get("structure"))
            for task in table.tasks
        ]
        share = f"{mean('backbone' in each.split() for each in named):.0%}" if named else ABSENT
        found.append(line(name, *(text or ABSENT for text in chosen), share, "; ".join(sorted(set(named)))))
    return "\n".join(found)


def _number(structure: str) -> str:
    """Return a structure's number, "all" where there is nothing to choose."""
    number, colon, _ = structure.partition(":")
    return number if colon else "all"
