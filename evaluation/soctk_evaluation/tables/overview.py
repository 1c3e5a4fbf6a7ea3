"""The leaderboard's tables in one: a line for each, with the best method of every kind."""

from __future__ import annotations

from collections.abc import Sequence

from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.report import ABSENT, Entry, regret_entry, small
from soctk_evaluation.tables.summary import Line, Table


def overview(tables: Sequence[Table]) -> str:
    """Return a line for each table: the reference and the best of the others, with their scores.

    The least is bold, or all that are below the table's floor. Of single fits the reference is apart; "with a setting"
    are rows METHOD+SETTING; the oracle is not among the trivial rows. Only methods with every task and seed take part.
    """
    if not tables:
        return ""
    reference = tables[0].measure.reference
    found = head(["tasks", "d", "seeds", reference, "best other single fit", "best with a setting", "best trivial row"])
    for table in tables:
        single = [each for each in table.learned if "+" not in each.method]
        kinds = [
            [each for each in single if each.method == reference],
            [each for each in single if each.method != reference],
            [each for each in table.learned if "+" in each.method],
            [each for each in table.trivial if each.method != "oracle"],
        ]
        best = [_best(kind) for kind in kinds]
        scores = [max(each.mean or 0.0, table.floor) for each in best if each is not None]
        least = min(scores) if len(scores) > 1 else 0.0
        texts = [_text(each, least, reference) for each in best]
        found.append(line(_suite(table), str(table.dim), str(_seeds(table)), *texts))
    return "\n".join(found)


def _suite(table: Table) -> str:
    return table.measure.suite_of(table.tasks[0]).strip() or "the paper's six tasks"


def _seeds(table: Table) -> int:
    return max(regret.expected for each in table.learned for regret in each.regrets)


def _best(lines: Sequence[Line]) -> Line | None:
    complete = [(each.mean, index) for index, each in enumerate(lines) if each.mean is not None]
    return lines[min(complete)[1]] if complete else None


def _text(best: Line | None, least: float, reference: str) -> str:
    """Return a score, bold up to `least`, and the method's name where that is not the reference's."""
    if best is None or best.mean is None:
        return ABSENT
    entry = regret_entry(best.regrets[0]) if len(best.regrets) == 1 else Entry(small(best.mean))
    text = f"**{entry.text}**" if best.mean <= least else entry.text
    return text if best.method == reference else f"{text} ({escape(best.method)})"
