"""The page of what a decision takes on a processor and on a GPU."""

from __future__ import annotations

from pathlib import Path

from soctk_evaluation.harness.experiment import Files, Results
from soctk_evaluation.harness.store import Row
from soctk_evaluation.tables.markdown import escape, head, line
from soctk_evaluation.tables.page import Page
from soctk_evaluation.tables.races import largest_gap, races_of, share_certified, write_races

PAGE = Page(
    "What a decision takes on a GPU",
    "soctk devices",
    """
Every method decides the same contexts of the same SOC-ICNN with random weights over the same set: the *compact* model
is the leaderboard's with every branch on, the *wide* one has a backbone of two layers of 64 ReLUs, a full quadratic and
a full norm. Times are the best of at least three, until the device has done all.

`soctk.minimize` of a model on a GPU leaves small batches to the processor's compiled code, and takes large ones there
(docs/gpu.md): what a small one takes is the processor, and the way to it and back. For one context at a time
`soctk.prepare` is the quick way, measured apart (docs/timing.md). Weights in single precision are decided in double
precision too, since certificates to 1e-6 need it; the answers' rounding to single precision is in their gaps.
[Moreau](https://pypi.org/project/moreau/), a batched interior-point method, is called on finished cone data of the same
lift, in large batches that of 256 contexts again and again; its making is not counted, its way to the GPU is. All are
asked for 1e-6, and gaps are certified by `soctk.certify` whatever the method. Cells without a number were not measured.
""",
    "Microseconds for a decision by batch size",
)

LABELS = {
    "processor": "`soctk.minimize`, one thread",
    "processor_threads": "`soctk.minimize`, a thread a core",
    "gpu": "`soctk.minimize`, GPU",
    "gpu_single": "`soctk.minimize`, GPU, float32 weights",
    "processor_layer": "`soctk.DecisionLayer`, one thread, forward and backward",
    "gpu_layer": "`soctk.DecisionLayer`, GPU, forward and backward",
    "moreau": "Moreau, processor",
    "moreau_gpu": "Moreau, GPU",
}


def write_devices(results: Results, files: Files) -> None:
    """Show the tables, and write the page and the picture asked for."""
    write_races(results, files, PAGE, devices_table, _draw)


def _draw(rows: list[Row], path: Path) -> None:
    from soctk_evaluation.tables.figures import devices_figure

    races = sorted(races_of(rows).items())
    devices_figure({f"{model} model, d = {dim}, {name}": _times(race) for (dim, model, name), race in races}, path)


def devices_table(rows: list[Row]) -> str:
    """Return Markdown tables, one for each race: microseconds by method and batch size, and quality."""
    return "\n\n".join(_race(*which, race) for which, race in sorted(races_of(rows).items())) + "\n"


def _label(row: Row) -> str:
    return LABELS.get(row["method"], row["method"])


def _times(race: list[Row]) -> dict[str, dict[int, float]]:
    """Return microseconds for a decision by label and batch size."""
    times: dict[str, dict[int, float]] = {}
    places = {name: place for place, name in enumerate(LABELS)}
    for row in sorted(race, key=lambda row: (places.get(row["method"], len(places)), row["config"]["batch"])):
        times.setdefault(_label(row), {})[row["config"]["batch"]] = 1e3 * row["decide_ms"]
    return times


def _race(dim: int, model: str, name: str, race: list[Row]) -> str:
    batches = sorted({row["config"]["batch"] for row in race})
    lines = [f"**d = {dim}, {escape(name)}, {escape(model)} model: microseconds for a decision by batch size**\n"]
    lines += head(["method", *map(str, batches), "certified 1e-6", "largest gap"])
    for label, times in _times(race).items():
        certified = [row for row in race if _label(row) == label and row["certified"] is not None]
        worst = max(certified, key=lambda row: row["gap_max"] or float("inf"), default=None)
        quality = ["", ""] if worst is None else [share_certified(certified), largest_gap(worst)]
        lines.append(line(label, *(f"{times[batch]:.3g}" if batch in times else "" for batch in batches), *quality))
    return "\n".join(lines)
