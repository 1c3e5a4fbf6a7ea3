"""What is written of decisions, column by column, and how many of them are certified."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import soctk
from soctk import Decision, Status
from soctk.tables.columns import short_names
from soctk_evaluation.cli.feasible import Region
from soctk_evaluation.harness.request import UsageError

WRITTEN = ("value", "lower_bound", "gap", "status", "outside", "relaxation")
"""What stands beside a decision's coordinates: `outside` where the model knows its data, the last where sets were
moved."""


def check_names(names: Iterable[str], beside: Iterable[str] = WRITTEN) -> None:
    """Raise UsageError where two columns of a plan would have the same name, or that of one written beside them."""
    seen = set(beside)
    for name in names:
        if name in seen:
            raise UsageError(f"a plan has one column {name}: expected another name, as it writes {', '.join(WRITTEN)}")
        seen.add(name)


def plan_columns(decision: Decision, x_names: Sequence[str], region: Region, *, prices: bool) -> dict[str, np.ndarray]:
    """Return what is written, column by column; NaN where there is no decision."""
    count = decision.status.size
    x = decision.x.reshape(count, -1).numpy()
    columns = {name: x[:, k] for k, name in enumerate(x_names)}
    none = without_point(decision)
    for name in ("value", "lower_bound", "gap"):
        columns[name] = np.where(none, np.nan, getattr(decision, name).reshape(count).numpy())
    columns["status"] = decision.status.reshape(count).astype(str)
    if decision.outside is not None:
        columns["outside"] = decision.outside.reshape(count).numpy() & ~none
    if decision.relaxation is not None:
        columns["relaxation"] = decision.relaxation.reshape(count).numpy()
    if prices:
        columns |= _prices(decision, x_names, region)
    return columns


def without_point(decision: Decision) -> np.ndarray:
    """Return where there is no decision, bool (N,)."""
    return decision.x.reshape(decision.status.size, -1).isnan().any(dim=1).numpy()


def _prices(decision: Decision, x_names: Sequence[str], region: Region) -> dict[str, np.ndarray]:
    """Return the prices by name, those of one column added: the derivative of the value in that column.

    Bounds that no set has are left out. Where a column is called as a row without one is, as f_0, that is row_f_0.
    """
    prices, sets = decision.prices, region.sets
    assert prices is not None
    assert not isinstance(sets, soctk.Polyhedron)
    rows = sets.rows
    own = {side: [f"{side}_{name}" for name in short_names(x_names)] for side in ("lower", "upper")}
    own["f"] = ["total"] if rows.total is not None else [f"f_{k}" for k in range(len(rows.E))]
    own["h"] = [f"h_{k}" for k in range(len(rows.G))]
    taken = {name for names in region.columns.values() for name in names}
    found: dict[str, Any] = {}
    for side, names in own.items():
        usual = [f"row_{name}" if name in taken else name for name in names]
        part = getattr(prices, side).reshape(decision.status.size, -1).numpy() + 0.0  # + 0.0: there is one zero
        bounded = torch.isfinite(torch.atleast_2d(getattr(sets, side))).any(dim=0)
        given = region.columns.get(side, tuple(usual))
        for k in np.flatnonzero(bounded.numpy()):
            name = f"price_{given[k if len(given) > 1 else 0]}"
            found[name] = found.get(name, 0.0) + part[:, k]
    return found


@dataclass(frozen=True)
class Tally:
    """How many decisions there are and how good they are.

    Attributes:
        count: decisions.
        certified: of them, to the tolerance.
        largest: the largest relative gap.
        empty: contexts whose set is proved empty.
        moved: contexts whose rows were moved.
        seconds: what deciding took.
        outside: decisions that are, or whose context is, outside of what the model has learned from.
    """

    count: int = 0
    certified: int = 0
    largest: float = 0.0
    empty: int = 0
    moved: int = 0
    seconds: float = 0.0
    outside: int = 0

    @classmethod
    def of(cls, decision: Decision) -> Tally:
        empty = decision.status.flatten() == Status.INFEASIBLE
        gaps = decision.relative_gap.flatten()[torch.from_numpy(~empty)]
        largest = float(gaps.nan_to_num(nan=math.inf, posinf=math.inf).max()) if gaps.numel() > 0 else 0.0
        moved = 0 if decision.relaxation is None else int((decision.relaxation > 0).sum())
        certified = int(decision.optimal.sum())
        outside = (
            0
            if decision.outside is None
            else int((decision.outside.flatten().numpy() & ~without_point(decision)).sum())
        )
        return cls(decision.status.size, certified, largest, int(empty.sum()), moved, decision.seconds, outside)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.count + other.count,
            self.certified + other.certified,
            max(self.largest, other.largest),
            self.empty + other.empty,
            self.moved + other.moved,
            self.seconds + other.seconds,
            self.outside + other.outside,
        )

    def summary(self, tol: float, *, whole: bool = False) -> str:
        """Return how many decisions are certified, in words; `whole` where some columns have to be whole."""
        parts = [f"{self.certified} of {self.count} decisions certified to a relative gap of {tol:g}"]
        if self.empty < self.count:
            parts.append(f"the largest is {self.largest:.2g}")
        if self.empty:
            empty = "the set is proved to have no point in whole numbers" if whole else "the set is proved empty"
            parts.append(f"{empty} for {self.empty}")
        if self.moved:
            parts.append(f"rows were moved for {self.moved} whose set is empty")
        if self.outside:
            parts.append(f"{self.outside} are outside of what the model has learned from: see the column outside")
        return "; ".join([*parts, f"{self.seconds:.2g} s in all"])
