"""Default sizes of the baselines, behind `soctk.make_surrogate`."""

from __future__ import annotations

from typing import Any

from soctk import ConvexSurrogate
from soctk.models.presets import SLOPE_HIDDEN, largest_within
from soctk_baselines.dcp import DCP
from soctk_baselines.ickan import ICKAN
from soctk_baselines.lpcf_surrogate import LPCF
from soctk_baselines.pcf import PCF
from soctk_baselines.pcf_template import PCFTemplate
from soctk_baselines.quadratic import QuadraticRegression

SHARED = {"slope_hidden": SLOPE_HIDDEN}
"""The size that DCP, PCF and P1-ICKAN have in common, unless `max_parameters` keeps them small."""


def dcp(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> DCP:
    """Return the disciplined template."""
    return largest_within(lambda sizes: DCP(dim, context_dim, seed=seed, **sizes), [SHARED, {}], max_parameters)


def pcf(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> PCF:
    """Return the LPCF paper's network with its quadratic term, and an affine part that can be learned apart."""
    kind: dict[str, Any] = {"widths_psi": (16, 16), "quadratic": True, "affine": True}
    return largest_within(lambda sizes: PCF(dim, context_dim, seed=seed, **kind, **sizes), [SHARED, {}], max_parameters)


def pcf_template(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> ConvexSurrogate:
    """Return the SOC-ICNN paper's PCF, a template of atoms, at its sizes."""
    return largest_within(lambda _: PCFTemplate(dim, context_dim, seed=seed), [{}], max_parameters)


def lpcf(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> ConvexSurrogate:
    """Return the real lpcf with its quadratic term; it chooses its widths itself."""
    return largest_within(lambda _: LPCF(dim, context_dim, seed=seed), [{}], max_parameters)


def ickan(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> ICKAN:
    """Return a P1-ICKAN with one hidden layer: the largest of a ladder of sizes within `max_parameters`."""
    ladder: list[dict[str, Any]] = [{"hidden": (w,), "segments": 6, **more} for more in (SHARED, {}) for w in (8, 4, 2)]
    ladder.append({"hidden": (1,), "segments": 2, "ridges": 0, "affine_hidden": 0})
    return largest_within(lambda sizes: ICKAN(dim, context_dim, **sizes, seed=seed), ladder, max_parameters)


def quadratic(dim: int, context_dim: int, max_parameters: int | None, seed: int) -> ConvexSurrogate:
    """Return the least-squares quadratic; it has no random start."""
    return largest_within(lambda _: QuadraticRegression(dim, context_dim), [{}], max_parameters)
