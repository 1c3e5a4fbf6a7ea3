"""The HTML pages in headless Chromium: nothing fails or is fetched, tables sort and filter, paper shows all columns.

Needs the extra `browser` and a Chromium or Chrome on the path, or the one that `playwright install chromium` brings.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import support
import torch

import soctk
from soctk_evaluation.benchmark.page import to_html as benchmark_page
from soctk_evaluation.benchmark.results import Board, Line
from soctk_evaluation.benchmark.scoring import summarize
from soctk_evaluation.benchmark.versions import VERSIONS
from soctk_evaluation.harness.store import Contents
from soctk_evaluation.tables.assessment import to_html as assessment_page
from soctk_evaluation.tables.leaderboard import REGRET
from soctk_evaluation.tables.report import to_html as leaderboard_page
from soctk_evaluation.tables.summary import build_tables

api = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")

INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAPER = {"width": 1046, "height": 718}
"""A4 landscape less margins of 10 mm, at 96 pixels an inch."""
PROBLEMS = VERSIONS["1"].problems()
CASES = list(dict.fromkeys((problem.task, problem.dim) for problem in PROBLEMS))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, the system's own where there is one."""
    path = next(filter(None, map(shutil.which, INSTALLED)), None)
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path)
        except api.Error as error:
            pytest.skip(f"no browser: {str(error).strip().splitlines()[0]}")
        yield browser
        browser.close()


Show = Callable[[str], Any]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Return a function that opens a page; in the end nothing has failed, and nothing but the page was asked for."""
    heard: list[str] = []
    asked: list[str] = []
    tab = browser.new_page(viewport={"width": 1400, "height": 900})
    tab.on("console", lambda message: heard.append(message.text))
    tab.on("pageerror", lambda error: heard.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    file = tmp_path / "page.html"

    def open_page(text: str) -> Any:
        file.write_text(text, encoding="utf-8")
        tab.goto(file.as_uri())
        return tab

    yield open_page
    tab.close()
    assert heard == []
    assert asked == [file.as_uri()]


# -- pages -------------------------------------------------------------------------------------------------


def line(name: str, track: str, level: float, **more: Any) -> Line:
    """Return a line of the benchmark whose regret is another one in each task."""
    named = {problem.name: (problem.task, problem.dim, problem.seed) for problem in PROBLEMS}
    ratios = {case: level * (1 + (7 * k) % 11) for k, case in enumerate(named.values())}
    usual = {
        "who": "someone",
        "how": f"what {name} does, in so many words that they go on to a second line of the cell",
    }
    numbers = {"failed": 0, "decisions": 13_500, "fit_seconds": None, "decide_ms": None}
    texts = {"machine": "a processor, 2 cores, Linux, Python 3.11", "label": "1", "track": track}
    return Line(name=name, summary=summarize(ratios), **{**usual, **texts, **numbers, **more})


def benchmark() -> str:
    lines = [
        line("trees", "values", 0.3, fit_seconds=250.0, decide_ms=3.0),
        line("soc", "values", 0.02, fit_seconds=9.1, decide_ms=0.21, who="others"),
        line("neighbours", "optima", 0.2, fit_seconds=0.02, decide_ms=41.0, machine="not stated"),
        line("program", "objective", 0.004, failed=12, notes=("box_socp-10-100: KeyError: no such thing",)),
        line("constant", "", 0.6, who="", machine="", decisions=0),
    ]
    boards = [
        Board("1", CASES, [100, 101, 102, 103, 104], sorted(lines, key=lambda one: one.summary.score)),
        Board("1, some", CASES[:2], [100], lines[:2]),
    ]
    return benchmark_page(boards, skipped=1)


def leaderboard() -> str:
    regrets = {"relu": 0.4, "soc": 0.002, "softplus": 0.03, "quadratic": 0.1, "constant": 2.0, "oracle": 1e-9}
    rows = [
        support.row(method=method, task=task, seed=seed, regret_mean=regret * (1 + len(task) % 5))
        for method, regret in regrets.items()
        for task in ("box_socp", "budget_twocone_socp", "simplex_logistic")
        for seed in range(3)
        if (method, task) != ("softplus", "box_socp")
    ]
    return leaderboard_page(build_tables(Contents(rows, []), REGRET))


def assessment() -> str:
    generator = torch.Generator().manual_seed(0)
    context, x = (torch.randn(80, *shape, generator=generator, dtype=torch.float64) for shape in ((1,), (1, 2)))
    noise = 0.1 * torch.randn(80, 1, generator=generator, dtype=torch.float64)
    data = soctk.ValueData(context, x, (x - context[:, None]).square().sum(dim=-1) + noise)
    model = soctk.make_surrogate("quadratic", dim=2, context_dim=1)
    soctk.fit(model, data)
    found = soctk.assess(model, data, soctk.Box(2, -1.0, 1.0))
    return assessment_page(found, ("valve a", "valve b"), "cost", "cost.safetensors")


TABLES = {"benchmark": benchmark, "leaderboard": leaderboard}
OTHERS = {
    "assessment": assessment,
    "no entries": lambda: benchmark_page([]),
    "no rows": lambda: leaderboard_page([]),
}


# -- what is there -----------------------------------------------------------------------------------------

READ = """
() => [...document.querySelectorAll("table.sortable")].map(table => ({
  columns: [...table.querySelectorAll("th")].map(head => head.textContent),
  sorted: [...table.querySelectorAll("th")].map(head => head.getAttribute("aria-sort")),
  bodies: [...table.tBodies].map(body => [...body.rows].map(row => [...row.cells].map(cell => {
    const {textContent, classList, dataset: {value}} = cell;
    return [textContent, classList.contains("text"), value === undefined ? null : +value];
  }))),
}))
"""


def in_order(rows: list[list[list[Any]]], column: int, sign: int) -> bool:
    """Return whether rows are sorted by a column: texts as text, numbers by value and those without one last."""
    cells = [row[column] for row in rows]
    if all(is_text for _, is_text, _ in cells):
        texts = [text.casefold() for text, *_ in cells]
        return texts == sorted(texts, reverse=sign < 0)
    numbers = [value for *_, value in cells]
    known = [value for value in numbers if value is not None]
    return numbers == sorted(known, reverse=sign < 0) + [None] * (len(numbers) - len(known))


def shown(tab: Any) -> list[str]:
    """Return the first cells of the rows that are to be seen."""
    rows = tab.locator("tbody tr").filter(visible=True).all()
    return [row.locator("td").first.inner_text() for row in rows]


@pytest.mark.parametrize("name", TABLES)
def test_every_column_sorts_both_ways_within_its_section(name: str, show: Show) -> None:
    tab = show(TABLES[name]())
    before = tab.evaluate(READ)
    assert len(before) == 2
    for index, table in enumerate(before):
        heads = tab.locator("table.sortable").nth(index).locator("th button")
        for column in range(len(table["columns"])):
            tab.evaluate("() => document.querySelectorAll('th').forEach(head => head.removeAttribute('aria-sort'))")
            for sign, word in ((1, "ascending"), (-1, "descending")):
                heads.nth(column).click()
                now = tab.evaluate(READ)[index]
                assert [k for k, state in enumerate(now["sorted"]) if state] == [column]
                assert now["sorted"][column] == word
                for old, new in zip(table["bodies"], now["bodies"], strict=True):
                    assert in_order(new, column, sign), (table["columns"][column], word)
                    assert sorted(map(str, old)) == sorted(map(str, new))


def test_the_benchmark_opens_sorted_as_its_heading_says(show: Show) -> None:
    table = show(benchmark()).evaluate(READ)[0]
    column = table["columns"].index("score")
    assert table["sorted"][column] == "ascending"
    assert in_order(table["bodies"][0], column, 1)


def test_headings_sort_by_the_keyboard(show: Show) -> None:
    tab = show(benchmark())
    tab.locator("th button").first.focus()
    tab.keyboard.press("Enter")
    assert shown(tab)[:5] == ["constant", "neighbours", "program", "soc", "trees"]


def test_search_and_track_hide_entries_and_no_trivial_row(show: Show) -> None:
    tab = show(benchmark())
    everything = ["program", "soc", "neighbours", "trees", "constant", "trees", "soc"]
    assert shown(tab) == everything
    tab.get_by_label("Track").select_option("values")
    assert shown(tab) == ["soc", "trees", "constant", "trees", "soc"]
    tab.get_by_label("Search").fill("OTHERS")
    assert shown(tab) == ["soc", "constant", "soc"]
    tab.keyboard.press("Enter")  # the form is sent nowhere
    tab.get_by_label("Track").select_option("")
    tab.get_by_label("Search").fill("what Neighbours does")
    assert shown(tab) == ["neighbours", "constant"]
    tab.get_by_label("Search").fill("")
    assert shown(tab) == everything


def test_what_failed_is_told_on_demand(show: Show) -> None:
    tab = show(benchmark())
    note = tab.get_by_text("program, box_socp-10-100: KeyError: no such thing")
    assert not note.is_visible()
    tab.get_by_text("What failed").click()
    assert note.is_visible()


def test_the_first_column_stays_when_a_table_is_moved_sideways(show: Show) -> None:
    tab = show(benchmark())
    tab.set_viewport_size({"width": 700, "height": 900})
    cell = tab.locator("tbody td").first
    before = cell.bounding_box()["x"]
    moved = tab.locator(".wide").first.evaluate("wide => (wide.scrollLeft = 400, wide.scrollLeft)")
    assert moved == 400
    assert cell.bounding_box()["x"] == pytest.approx(before)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 700  # the table moves, not the page


@pytest.mark.parametrize("name", [*TABLES, *OTHERS])
def test_on_paper_nothing_is_cut_off(name: str, show: Show) -> None:
    tab = show({**TABLES, **OTHERS}[name]())
    tab.emulate_media(media="print")
    tab.set_viewport_size(PAPER)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    for table in tab.locator("table, svg").all():
        box = table.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PAPER["width"]
    assert not tab.locator("form, .screen").filter(visible=True).count()
    assert tab.pdf(prefer_css_page_size=True).startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*TABLES, *OTHERS])
def test_text_can_be_read_in_both_colour_schemes(name: str, scheme: str, show: Show) -> None:
    """Contrast of 4.5 at least, as WCAG 2 wants it (AA), of what a cell, a paragraph or a heading is written in."""
    tab = show({**TABLES, **OTHERS}[name]())
    tab.emulate_media(color_scheme=scheme)
    worst = tab.evaluate(CONTRAST)
    assert worst["ratio"] >= 4.5, worst


CONTRAST = """
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgb = (...colors) => {
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = color => {
    const [r, g, b] = color.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const probe = document.body.appendChild(document.createElement("div"));
  probe.style.background = "Canvas";
  const paper = getComputedStyle(probe).backgroundColor;
  probe.remove();
  const behind = element => element === null ? [paper] : [...behind(element.parentElement),
    getComputedStyle(element).backgroundColor];
  let worst = {ratio: Infinity};
  for (const element of document.querySelectorAll("h1, h2, p, td, th button, li, summary, label")) {
    if (!element.textContent.trim()) continue;
    const layers = behind(element), text = rgb(...layers, getComputedStyle(element).color), back = rgb(...layers);
    const [low, high] = [luminance(text), luminance(back)].sort((a, b) => a - b);
    const ratio = (high + .05) / (low + .05);
    if (ratio < worst.ratio) worst = {ratio, text: element.textContent.slice(0, 40), layers};
  }
  return worst;
}
"""
