"""Default sizes: rivals have SOC's weights, structures their blocks, and weights grow like n in many variables."""

from __future__ import annotations

import pytest

import soctk
from soctk.models.presets import FULL_RANK_DIM, MIN_WIDTH, WIDE, WIDE_DIM

DIMS = (1, 4, 10, FULL_RANK_DIM, FULL_RANK_DIM + 1, 50, WIDE_DIM, WIDE_DIM + 1, 300)
"""On both sides of where sizes change."""
P = 3


def weights(name: str, dim: int) -> int:
    return soctk.make_surrogate(name, dim, P).parameter_count


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    ("name", "times"), [("relu", 1), ("softplus", 1), ("quad", 1), ("norm", 1), ("relu_wide", WIDE)]
)
def test_networks_have_at_least_socs_weights_and_no_unit_more_than_that_takes(name: str, times: int, dim: int) -> None:
    model, wanted = soctk.make_surrogate(name, dim, P), times * weights("soc", dim)
    assert isinstance(model, soctk.SOCICNN)
    assert model.parameter_count >= wanted
    narrower = tuple(width - 2 for width in model.hidden)
    if min(narrower) >= MIN_WIDTH:
        assert type(model)(**model.config() | {"hidden": narrower}).parameter_count < wanted


@pytest.mark.parametrize("dim", DIMS)
def test_every_structure_of_soc_names_blocks_that_it_has(dim: int) -> None:
    model = soctk.make_surrogate("soc", dim, P)
    for structure in range(len(model.structures)):
        chosen = type(model)(**model.config() | {"structure": structure})
        assert set(chosen.traits.blocks) == set(model.structures[structure])
    assert model.centred == sum("norm0" not in blocks for blocks in model.structures)


def test_branches_of_soc_grow_with_the_variables_and_its_weights_like_them_in_many() -> None:
    branches = [soctk.make_surrogate("soc", dim, P).hyperbolics for dim in (10, FULL_RANK_DIM, 40, 50, WIDE_DIM)]
    assert branches == sorted(branches)
    assert branches[-1] > branches[0]
    assert weights("soc", 800) / weights("soc", 400) == pytest.approx(2, rel=0.05)
